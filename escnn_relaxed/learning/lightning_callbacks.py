"""Callbacks for Lightning (the extra ``lightning``): softness that is learned or logged.

The first adds the gradient of its penalty right before the optimiser's step, where gradients are accumulated,
unscaled and reduced over processes; the loss that the module logs is its own. One optimiser only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..checks import check_choice, check_integer
from ..measure.monitoring import RelaxationMonitor
from ..network.relaxed_layers import in_eval_mode
from .evidence import SoftnessEvidence
from .likelihoods import LIKELIHOODS
from .soft_gradients import plain

__all__ = ["LearnSoftness", "LogRelaxation"]


class LearnSoftness(Callback):
    """Learns how soft each layer should be: :class:`~escnn_relaxed.SoftnessEvidence` over a Lightning run.

    It takes its images from the training batches: the first floating-point tensor (batch, C, H, W), or of volumes
    (batch, C, D, H, W), which the module's ``forward`` has to take. The loss has to be the mean of torch's function for
    the likelihood. The share γ/n of the weights that the data determine is logged as ``determined/<layer>/<subgroup>``
    at the end of each epoch.

    Args:
        likelihood: ``"categorical"``, ``"binary"`` or ``"gaussian"``. By default the targets say it, the tensor that
            follows the images in a batch: those of a regression are numbers, of a binary choice 0 and 1 in the shape of
            the output, others classes.
        first_epoch: number of the epoch after which the first update is, counted from 0.
        inputs: number of images of an update.

    Attributes:
        evidence: that of the run, from the end of its first epoch on, for ``evidence.table()`` and ``evidence.harden``.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for another likelihood, or a number that is too small.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(
        ...     max_epochs=30, callbacks=[LearnSoftness()], logger=False, accelerator="cpu"
        ... )
    """

    def __init__(self, likelihood: str | None = None, first_epoch: int = 2, inputs: int = 128) -> None:
        super().__init__()
        self._likelihood = None if likelihood is None else check_choice("likelihood", likelihood, LIKELIHOODS)
        self._first_epoch = check_integer("first_epoch", first_epoch, 0)
        self._wanted = check_integer("inputs", inputs, 10)
        self._restored: dict[str, Any] | None = None
        self._images: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._count = 0
        self.evidence: SoftnessEvidence | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue with the state of a checkpoint if one was loaded."""
        self.evidence = None
        if self._restored is not None:
            state = dict(self._restored)
            self.evidence = SoftnessEvidence(pl_module, state.pop("observations"), state.pop("likelihood"))
            self.evidence.load_state_dict(state)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the images of the last epoch."""
        self._images, self._targets, self._count = [], [], 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Count the images of the epoch, and keep some of them with their targets."""
        tensors = list(_tensors(batch))
        place = next((number for number, tensor in enumerate(tensors) if _is_image(tensor)), None)
        if place is None:
            raise ValueError("LearnSoftness: a training batch has no floating-point tensor (batch, C, H, W)")
        if self._count < self._wanted:
            self._images.append(tensors[place].detach())
            self._targets += [tensor.detach() for tensor in tensors[place + 1 : place + 2]]
        self._count += len(tensors[place])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update the precisions, and log γ/n."""
        images = torch.cat(self._images)[: self._wanted]
        targets = torch.cat(self._targets)[: self._wanted] if self._targets else None
        if self.evidence is None:
            likelihood = self._likelihood or _likelihood(pl_module, images, targets)
            self.evidence = SoftnessEvidence(pl_module, self._count * trainer.world_size, likelihood)
        if trainer.current_epoch >= self._first_epoch:
            self.evidence.update(images, targets)
            table = self.evidence.table()
            pl_module.log_dict({f"determined/{row.layer}/{row.subgroup}": row.share for row in table})

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Add the gradient of the penalty."""
        penalty = torch.zeros(()) if self.evidence is None else self.evidence.penalty()
        if penalty.requires_grad:
            penalty.backward()

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned, for checkpoints."""
        if self.evidence is None:
            return dict(self._restored or {})
        evidence = self.evidence
        return {
            "observations": evidence.observations,
            "likelihood": evidence.likelihood,
            **evidence.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep the state of a checkpoint for the start of training."""
        self._restored = dict(state_dict) or None


class LogRelaxation(Callback):
    """Logs ω′, softness and measured equivariance error of each layer, at the start and after each epoch.

    The tags are those of :func:`~escnn_relaxed.measure.relaxation_scalars`; they go to the trainer's logger,
    TensorBoard's for instance, and to its ``callback_metrics``, for early stopping and checkpoints. Nothing in the
    module changes.

    Args:
        measure: whether to measure the error, on 32 images of the first training batch: its first floating-point
            tensor (batch, C, H, W), which the module's ``forward`` has to take. Without such a tensor it is not logged.

    Attributes:
        history: tag → a pair (step, value) for each time, for ``escnn_relaxed.plots.plot_domain_frequency``.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[LogRelaxation()], logger=False, accelerator="cpu")
    """

    def __init__(self, measure: bool = True) -> None:
        super().__init__()
        self._measure = measure
        self._monitor: RelaxationMonitor | None = None
        self.history: dict[str, list[tuple[int, float]]] = {}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Take images from the first batch, and log ω′, softness and error at the start."""
        if self._monitor is not None:
            return
        images = next((images[:32] for images in _images(batch)), None) if self._measure else None
        self._monitor = RelaxationMonitor(pl_module, images)
        self._monitor.history = self.history
        if not self.history:
            scalars = self._monitor.record(trainer.global_step)
            for logger in trainer.loggers:
                logger.log_metrics(scalars, trainer.global_step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the present ω′, softness and error."""
        if self._monitor is not None:
            pl_module.log_dict(self._monitor.record(trainer.global_step))

    def state_dict(self) -> dict[str, Any]:
        """Return the history, for checkpoints."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue the history of a checkpoint."""
        self.history = state_dict["history"]


@torch.no_grad()
def _likelihood(network: LightningModule, images: Tensor, targets: Tensor | None) -> str:
    """Return the likelihood that the targets of a batch are of."""
    if targets is None:
        raise ValueError("LearnSoftness: likelihood must be given where nothing follows the images in a batch")
    with in_eval_mode(network):
        output = plain(network(images[:1]), "network: its output")
    if output.shape[1:] == targets.shape[1:] and ((targets == 0) | (targets == 1)).all():
        return "binary"
    return "gaussian" if targets.is_floating_point() else "categorical"


def _is_image(tensor: Tensor) -> bool:
    return tensor.dim() in (4, 5) and tensor.is_floating_point()


def _images(batch: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors (batch, C, H, W) or (batch, C, D, H, W) of a batch, in order."""
    yield from filter(_is_image, _tensors(batch))


def _tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, in order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, (Mapping, tuple, list)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(part)
