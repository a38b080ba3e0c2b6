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

from ..checks import check_choice, check_integer, check_not_negative, check_positive
from ..measure.monitoring import relaxation_scalars
from ..network.relaxed_layers import in_eval_mode
from .evidence import FEWEST_INPUTS, SoftnessEvidence
from .likelihoods import LIKELIHOODS, likelihood_of
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
            follows the images in a batch: whole numbers below the number of classes, one for each pixel of the output;
            0 and 1 in the shape of the output; or other numbers in that shape. An error asks for the likelihood where
            targets fit several: one-hot vectors, probabilities, and other numbers from 0 to 1.
        first_epoch: number of the epoch after which the first update is, counted from 0.
        inputs: number of images of an update.
        prior_weights: n₀ of :class:`~escnn_relaxed.SoftnessEvidence`.
        prior_deviation: its σ₀.

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

    def __init__(
        self,
        likelihood: str | None = None,
        first_epoch: int = 2,
        inputs: int = 128,
        *,
        prior_weights: float = 1.0,
        prior_deviation: float = 0.5,
    ) -> None:
        super().__init__()
        self._prior_weights = check_not_negative("prior_weights", prior_weights)
        self._prior_deviation = check_positive("prior_deviation", prior_deviation)
        self._likelihood = None if likelihood is None else check_choice("likelihood", likelihood, LIKELIHOODS)
        self._first_epoch = check_integer("first_epoch", first_epoch, 0)
        self._wanted = check_integer("inputs", inputs, 10)
        self._restored: dict[str, Any] | None = None
        self._images: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._count = 0
        # Images of the present epoch before a run was resumed inside it.
        self._before = 0
        self._guessed: str | None = None
        self.evidence: SoftnessEvidence | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue with the state of a checkpoint if one was loaded."""
        self.evidence = self._guessed = None
        state = dict(self._restored or {})
        self._before = state.pop("images", 0)
        if state:
            self.evidence = self._evidence(pl_module, state.pop("observations"), state.pop("likelihood"))
            self.evidence.load_state_dict(state)

    def _evidence(self, module: LightningModule, observations: int, likelihood: str) -> SoftnessEvidence:
        """Return the evidence of a module with the priors that were given."""
        priors = {"prior_weights": self._prior_weights, "prior_deviation": self._prior_deviation}
        return SoftnessEvidence(module, observations, likelihood, 0, **priors)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the images of the last epoch."""
        self._images, self._targets, self._count = [], [], 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Count the images of the epoch, and keep some of them with their targets."""
        tensors = list(_tensors(batch))
        place = next((number for number, tensor in enumerate(tensors) if _is_image(tensor)), None)
        if place is None:
            raise ValueError("LearnSoftness: a training batch has no floating-point tensor (batch, C, H, W)")
        if not self._images:
            self._count = self._before = self._before if batch_idx else 0
        if self._count - self._before < self._wanted:
            self._images.append(tensors[place].detach())
            self._targets += [tensor.detach() for tensor in tensors[place + 1 : place + 2]]
            if self._count - self._before + len(tensors[place]) >= self._wanted:
                # An error now is better than at the end of an epoch.
                self._name(pl_module)
        self._count += len(tensors[place])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update the precisions, and log γ/n."""
        if not self._images:
            return  # a run that was resumed after the last batch
        if self.evidence is None:
            observations = self._count * trainer.world_size
            self.evidence = self._evidence(pl_module, observations, self._name(pl_module))
        images, targets = self._kept()
        is_enough = len(images) >= FEWEST_INPUTS or not self._before
        if trainer.current_epoch >= self._first_epoch and is_enough:
            try:
                self.evidence.update(images, targets)
            except (TypeError, ValueError) as error:
                if self._guessed is None:
                    raise
                hint = f"LearnSoftness took likelihood={self._guessed!r} from the targets: give it if it is another"
                raise ValueError(f"{error} ({hint})") from error
            table = self.evidence.table()
            pl_module.log_dict({f"determined/{row.layer}/{row.subgroup}": row.gamma_per_weight for row in table})
        self._before = 0

    def _kept(self) -> tuple[Tensor, Tensor | None]:
        """Return the images of an update, and their targets."""
        targets = torch.cat(self._targets)[: self._wanted] if self._targets else None
        return torch.cat(self._images)[: self._wanted], targets

    def _name(self, pl_module: LightningModule) -> str:
        """Return the likelihood that was given, or else is guessed from the kept images and targets."""
        known = self._likelihood or (self._guessed if self.evidence is None else self.evidence.likelihood)
        if known is None:
            known = self._guessed = _guessed(pl_module, *self._kept())
        return known

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Add the gradient of the penalty."""
        penalty = torch.zeros(()) if self.evidence is None else self.evidence.penalty()
        if penalty.requires_grad:
            penalty.backward()

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned, for checkpoints."""
        evidence = self.evidence
        if evidence is None:
            return {**(self._restored or {}), "images": self._count}
        given = {"observations": evidence.observations, "likelihood": evidence.likelihood}
        return {"images": self._count, **given, **evidence.state_dict()}

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
        self._has_started = False
        self._images: Tensor | None = None
        self.history: dict[str, list[tuple[int, float]]] = {}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Take images from the first batch, and log ω′, softness and error at the start."""
        if self._has_started:
            return
        self._has_started = True
        if self._measure:
            self._images = next((tensor[:32] for tensor in _tensors(batch) if _is_image(tensor)), None)
        if not self.history:
            scalars = self._record(trainer, pl_module)
            for logger in trainer.loggers:
                logger.log_metrics(scalars, trainer.global_step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the present ω′, softness and error."""
        if self._has_started:
            pl_module.log_dict(self._record(trainer, pl_module))

    def _record(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        """Take the numbers of now, keep them, and return them."""
        scalars = relaxation_scalars(pl_module, self._images)
        for tag, value in scalars.items():
            self.history.setdefault(tag, []).append((trainer.global_step, value))
        return scalars

    def state_dict(self) -> dict[str, Any]:
        """Return the history, for checkpoints."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue the history of a checkpoint."""
        self.history = state_dict["history"]


@torch.no_grad()
def _guessed(network: LightningModule, images: Tensor, targets: Tensor | None) -> str:
    """Return the only likelihood that targets fit, by the shape of the network's output."""
    if targets is None:
        raise ValueError("LearnSoftness: likelihood must be given where nothing follows the images in a batch")
    with in_eval_mode(network):
        output = plain(network(images[:1]), "network: its output")
    likelihood = likelihood_of(targets, tuple(output.shape[1:]))
    if likelihood is None:
        values = f"values from {targets.min().item():g} to {targets.max().item():g}" if targets.numel() else "no values"
        raise ValueError(
            f"LearnSoftness: likelihood must be given, one of {list(LIKELIHOODS)}: targets of shape "
            f"{tuple(targets.shape)} with {values} do not say it beside outputs of shape "
            f"{(len(targets), *output.shape[1:])}"
        )
    return likelihood


def _is_image(tensor: Tensor) -> bool:
    return tensor.dim() in (4, 5) and tensor.is_floating_point()


def _tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, in order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, (Mapping, tuple, list)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(part)
