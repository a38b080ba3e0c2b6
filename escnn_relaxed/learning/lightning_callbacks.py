"""Callbacks for Lightning (the extra ``lightning``): a network that ends strict, whose softness is bounded, or logged.

The first two add the gradient of their penalty right before the optimiser's step, where gradients are accumulated,
unscaled and reduced over processes; the loss that the module logs is its own. One optimiser only.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from escnn.nn import FieldType
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim.swa_utils import update_bn

from ..measure.measured_network import Shifts
from ..measure.monitoring import RelaxationMonitor
from ..network.relaxed_layers import named_relaxed_layers
from .hardening_schedule import HardeningSchedule
from .softness_bound import SoftnessBound

__all__ = ["BoundSoftness", "HardenInTraining", "LogRelaxation"]


class _PenaltyCallback(Callback):
    """Adds the gradient of a rule's penalty to each optimiser step, and lets the rule take its own step after it."""

    rule: HardeningSchedule | SoftnessBound | None = None

    def __init__(self) -> None:
        self._restored: dict[str, Any] | None = None
        self._steps_seen = 0

    @abstractmethod
    def _build_rule(self, trainer: Trainer, network: LightningModule) -> HardeningSchedule | SoftnessBound:
        """Return the rule, once the number of training steps is known."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Build the rule, with the state of a checkpoint if one was loaded."""
        self.rule = self._build_rule(trainer, pl_module)
        if self._restored is not None:
            self.rule.load_state_dict(self._restored)
        self._steps_seen = trainer.global_step

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Add the gradient of the penalty."""
        penalty = torch.zeros(()) if self.rule is None else self.rule.penalty()
        if penalty.requires_grad:
            penalty.backward()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count optimiser steps, which may take several batches."""
        if self.rule is not None and trainer.global_step > self._steps_seen:
            self._steps_seen = trainer.global_step
            self.rule.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the rule, for checkpoints."""
        return dict(self._restored or {}) if self.rule is None else dict(self.rule.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep the state of a checkpoint for the start of training."""
        self._restored = dict(state_dict) or None


class HardenInTraining(_PenaltyCallback):
    """Relaxed in training, strict at the end: :class:`~escnn_relaxed.HardeningSchedule` over a Lightning run.

    A checkpoint that was written after hardening says so to this callback, in ``Trainer.fit`` and ``Trainer.test``;
    ``LightningModule.load_from_checkpoint`` does not ask it: call ``layer.harden()`` or ``harden_network`` there.

    Args:
        harden_at: part of the steps after which the layers become their strict parts, in (0, 1]. At 1, statistics of
            batch norm are estimated anew with a pass over the training data at the end.
        largest_penalty: λ of Σ √s at that step; it rises linearly from 0.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(
        ...     max_epochs=30, callbacks=[HardenInTraining(2 / 3)], logger=False, accelerator="cpu"
        ... )
    """

    def __init__(self, harden_at: float = 2 / 3, largest_penalty: float = 0.0) -> None:
        super().__init__()
        self._harden_at = harden_at
        self._largest_penalty = largest_penalty

    def _build_rule(self, trainer: Trainer, network: LightningModule) -> HardeningSchedule:
        steps = trainer.estimated_stepping_batches
        if steps == float("inf"):
            raise ValueError("HardenInTraining needs max_epochs or max_steps, to know when to harden")
        self._steps = int(steps)
        return HardeningSchedule(network, self._steps, self._harden_at, self._largest_penalty)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count optimiser steps; where the last one hardened, estimate statistics before validation and checkpoints."""
        steps_before = self._steps_seen
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if self._steps_seen > steps_before and self._steps_seen >= self._steps:
            self._estimate_statistics(trainer, pl_module)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Harden a network that was hardened in the checkpoint, even if it is only tested."""
        if checkpoint.get("callbacks", {}).get(self.state_key, {}).get("is_hardened"):
            for _, layer in named_relaxed_layers(pl_module):
                layer.harden()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Estimate the statistics of a network that was hardened where training ended early; warn if it never was."""
        rule = self.rule
        if isinstance(rule, HardeningSchedule) and not rule.is_hardened:
            warnings.warn("HardenInTraining: training ended before its step, the network is soft", stacklevel=2)
        if self._steps_seen < self._steps:
            self._estimate_statistics(trainer, pl_module)

    def _estimate_statistics(self, trainer: Trainer, network: LightningModule) -> None:
        """Estimate the statistics of batch norm, if the last step was the one that hardened."""
        rule = self.rule
        if isinstance(rule, HardeningSchedule) and rule.was_hardened_last and trainer.train_dataloader is not None:
            update_bn(trainer.train_dataloader, network, device=network.device)


class BoundSoftness(_PenaltyCallback):
    """s ≤ ε in each layer by dual ascent: :class:`~escnn_relaxed.SoftnessBound` over a Lightning run.

    The multipliers are logged as ``multiplier/<layer>`` at the end of each epoch.

    Args:
        bound: ε, one for all layers or a dict from the name of a layer (in the Lightning module) to its own.
        rate: step size of the multipliers.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(
        ...     max_epochs=30, callbacks=[BoundSoftness(0.01)], logger=False, accelerator="cpu"
        ... )
    """

    def __init__(self, bound: float | Mapping[str, float], rate: float = 1.0) -> None:
        super().__init__()
        self._bound = bound
        self._rate = rate

    @property
    def multipliers(self) -> dict[str, float]:
        """Name of each layer → its multiplier."""
        return dict(self.rule.multipliers) if isinstance(self.rule, SoftnessBound) else {}

    def _build_rule(self, trainer: Trainer, network: LightningModule) -> SoftnessBound:
        return SoftnessBound(network, self._bound, self._rate)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the multipliers."""
        for name, value in self.multipliers.items():
            pl_module.log(f"multiplier/{name}", value)


class LogRelaxation(Callback):
    """Logs ω′, softness and measured equivariance error of each layer, at the start and after each epoch.

    The tags are those of :func:`~escnn_relaxed.measure.relaxation_scalars`; they go to the trainer's logger,
    TensorBoard's for instance, and to its ``callback_metrics``, for early stopping and checkpoints. Nothing in the
    module changes.

    Args:
        measure: whether to measure the error, on 32 images of the first training batch: its first floating-point
            tensor (batch, C, H, W), which the module's ``forward`` has to take. Without such a tensor it is not logged.
        in_type: fields of the images; by default those of the first escnn module inside.
        shifts: rows down and columns to the right in pixels, to measure beside the group elements.

    Attributes:
        history: tag → a pair (step, value) for each time, for ``escnn_relaxed.plots.plot_domain_frequency``.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(
        ...     max_epochs=30, callbacks=[LogRelaxation()], logger=False, accelerator="cpu"
        ... )
    """

    def __init__(self, measure: bool = True, in_type: FieldType | None = None, shifts: Shifts = ()) -> None:
        super().__init__()
        self._measure = measure
        self._in_type = in_type
        self._shifts = shifts
        self._monitor: RelaxationMonitor | None = None
        self.history: dict[str, list[tuple[int, float]]] = {}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Take images from the first batch, and log ω′, softness and error at the start."""
        if self._monitor is not None:
            return
        images = next(_images(batch), None) if self._measure else None
        self._monitor = RelaxationMonitor(pl_module, images, self._in_type, self._shifts)
        is_resumed = bool(self.history)
        self._monitor.history = self.history
        if not is_resumed:
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


def _images(batch: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors (batch, C, H, W) of a batch, in order."""
    if isinstance(batch, Tensor):
        if batch.dim() == 4 and batch.is_floating_point():
            yield batch
    elif isinstance(batch, (Mapping, tuple, list)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _images(part)
