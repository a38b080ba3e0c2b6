"""A callback for Lightning (the extra ``lightning``): softness that is learned.

It adds the gradient of its penalty right before the step of an optimiser, to the parameters of that optimiser, where
gradients are accumulated, unscaled and reduced over processes. The loss that the module logs is its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..checks import check_bool, check_choice, check_integer
from ..network.relaxed_layers import relaxed_layers
from .evidence import FEWEST_INPUTS, SoftnessEvidence
from .likelihoods import LIKELIHOODS

__all__ = ["LearnSoftness"]


class LearnSoftness(Callback):
    """Learns how soft each layer should be: :class:`~escnn_relaxed.SoftnessEvidence` over a Lightning run.

    It takes its images from the training batches: the first floating-point tensor (batch, C, H, W), or of volumes
    (batch, C, D, H, W), which the module's ``forward`` has to take. The tensor that follows it has the targets, which
    only a regression needs. The loss has to be the mean of torch's function for the likelihood. The share γ/n of the
    weights that the data determine is logged as ``determined/<layer>/<subgroup>`` at the end of each epoch.

    Args:
        likelihood: ``"categorical"``, ``"binary"`` or ``"gaussian"``, as of :class:`~escnn_relaxed.SoftnessEvidence`.
        first_epoch: number of the epoch after which the first update is, counted from 0. Default: 2, the third.
        inputs: number of images of an update.
        decoupled: whether soft weights shrink by :meth:`~escnn_relaxed.SoftnessEvidence.decay`, for few images, and not
            by the penalty.

    Attributes:
        evidence: that of the run, from the end of the first epoch with an update on, for ``evidence.table()`` and
            ``evidence.harden``; None before. Soft layers that are frozen have no updates until they learn.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for another likelihood, or a number that is too small.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> learned = LearnSoftness("categorical")
        >>> trainer = Trainer(max_epochs=30, callbacks=[learned], logger=False, accelerator="cpu")
    """

    def __init__(self, likelihood: str, first_epoch: int = 2, inputs: int = 128, *, decoupled: bool = False) -> None:
        super().__init__()
        self._decoupled = check_bool("decoupled", decoupled)
        self._likelihood = check_choice("likelihood", likelihood, LIKELIHOODS)
        self._first_epoch = check_integer("first_epoch", first_epoch, 0)
        self._wanted = check_integer("inputs", inputs, FEWEST_INPUTS)
        self._restored: dict[str, Any] = {}
        # Images of this epoch, also those before a run was resumed inside it.
        self._count = 0
        # Images of some batches, and their targets where an update needs them.
        self._batches: list[list[Tensor]] = []
        self.evidence: SoftnessEvidence | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue with the state of a checkpoint if one was loaded."""
        state, self.evidence = dict(self._restored), None
        self._count = state.pop("images", 0)
        if state:
            likelihood = state.pop("likelihood")
            if likelihood != self._likelihood:
                raise ValueError(f"likelihood must be {likelihood!r}, as in the checkpoint, got {self._likelihood!r}")
            self.evidence = SoftnessEvidence(pl_module, state.pop("observations"), likelihood)
            self.evidence.load_state_dict(state)
        elif not _is_frozen(pl_module):
            SoftnessEvidence(pl_module, 1, self._likelihood)  # refuses a strict network before it is trained

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the images of the last epoch."""
        self._batches = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Count the images of the epoch, and keep some of them with their targets."""
        tensors = list(_tensors(batch))
        first = next((number for number, tensor in enumerate(tensors) if _is_image(tensor)), None)
        if first is None:
            raise ValueError("LearnSoftness: a training batch has no floating-point tensor (batch, C, H, W)")
        if sum(len(images) for images, *_ in self._batches) < self._wanted:
            number = 2 if self._likelihood == "gaussian" else 1
            self._batches.append([tensor.detach() for tensor in tensors[first : first + number]])
        self._count = len(tensors[first]) + (self._count if batch_idx else 0)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update the precisions, and log γ/n."""
        if not self._batches:
            return  # a run that was resumed after the last batch
        inputs = [torch.cat(parts)[: self._wanted] for parts in zip(*self._batches, strict=False)]
        # Fewer may be left of an epoch inside which a run was resumed.
        is_enough = len(inputs[0]) >= min(FEWEST_INPUTS, self._count)
        if trainer.current_epoch < self._first_epoch or not is_enough or _is_frozen(pl_module):
            return
        if self.evidence is None:
            self.evidence = SoftnessEvidence(pl_module, self._count * trainer.world_size, self._likelihood)
        self.evidence.update(*inputs)
        table = self.evidence.table()
        pl_module.log_dict({f"determined/{row.layer}/{row.subgroup}": row.gamma_per_weight for row in table})

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Add the gradient of the penalty, or let the soft weights decay."""
        if self.evidence is None:
            return
        if self._decoupled:
            self.evidence.decay(optimizer)
        elif (penalty := self.evidence.penalty()).requires_grad:
            penalty.backward(inputs=[value for group in optimizer.param_groups for value in group["params"]])

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned, for checkpoints."""
        learned = self._restored
        if self.evidence is not None:
            given = {"observations": self.evidence.observations, "likelihood": self._likelihood}
            learned = {**given, **self.evidence.state_dict()}
        return {**learned, "images": self._count}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep the state of a checkpoint for the start of training."""
        self._restored = dict(state_dict)


def _is_frozen(network: LightningModule) -> bool:
    """Return whether all soft weights are frozen, so that they may learn later."""
    soft = [weight for layer in relaxed_layers(network).values() for weight in layer.soft_parameters()]
    return bool(soft) and not any(weight.requires_grad for weight in soft)


def _is_image(tensor: Tensor) -> bool:
    return tensor.dim() in (4, 5) and tensor.is_floating_point()


def _tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, in order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, (Mapping, tuple, list)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(part)
