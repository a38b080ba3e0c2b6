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
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..measure.monitoring import RelaxationMonitor
from ..network.relaxed_layers import named_relaxed_layers
from .penalties import HardeningSchedule, SoftnessBound

__all__ = ["BoundSoftness", "HardenInTraining", "LogRelaxation"]


class _PenaltyCallback(Callback):
    """Adds the gradient of a rule's penalty to each optimiser step, and lets the rule take its own step after it."""

    rule: HardeningSchedule | SoftnessBound | None = None

    def __init__(self) -> None:
        self._restored: dict[str, Any] = {}
        self._steps_seen = 0

    @abstractmethod
    def _build_rule(self, trainer: Trainer, network: LightningModule) -> HardeningSchedule | SoftnessBound:
        """Return the rule, once the number of training steps is known."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Build the rule, with the state of a checkpoint if one was loaded."""
        self.rule = self._build_rule(trainer, pl_module)
        if self._restored:
            self.rule.load_state_dict(self._restored)
        self._steps_seen = trainer.global_step

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Add the gradient of the penalty."""
        if self.rule is not None and (penalty := self.rule.penalty()).requires_grad:
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
        return dict(self._restored if self.rule is None else self.rule.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep the state of a checkpoint for the start of training."""
        self._restored = dict(state_dict)


class HardenInTraining(_PenaltyCallback):
    """Relaxed in training, strict at the end: :class:`~escnn_relaxed.HardeningSchedule` over a Lightning run.

    A checkpoint that was written after hardening says so to this callback, in ``Trainer.fit`` and ``Trainer.test``;
    ``LightningModule.load_from_checkpoint`` does not ask it: call ``layer.harden()`` or ``harden_network`` there.

    Args:
        harden_at: part of the steps after which the layers become their strict parts, in (0, 1].
        largest_penalty: λ of Σ √s at that step; it rises linearly from 0.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[HardenInTraining(2 / 3)], logger=False, accelerator="cpu")
    """

    def __init__(self, harden_at: float = 2 / 3, largest_penalty: float = 0.0) -> None:
        super().__init__()
        self._harden_at, self._largest_penalty = harden_at, largest_penalty

    def _build_rule(self, trainer: Trainer, network: LightningModule) -> HardeningSchedule:
        steps = trainer.estimated_stepping_batches
        if steps == float("inf"):
            raise ValueError("HardenInTraining needs max_epochs or max_steps, to know when to harden")
        return HardeningSchedule(network, int(steps), self._harden_at, self._largest_penalty)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Harden a network that was hardened in the checkpoint, even if it is only tested."""
        if checkpoint.get("callbacks", {}).get(self.state_key, {}).get("is_hardened"):
            for _, layer in named_relaxed_layers(pl_module):
                layer.harden()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn of a network that was not hardened, since training ended early."""
        if isinstance(self.rule, HardeningSchedule) and not self.rule.is_hardened:
            warnings.warn("HardenInTraining: training ended before its step, the network is soft", stacklevel=2)


class BoundSoftness(_PenaltyCallback):
    """s ≤ ε in each layer by dual ascent: :class:`~escnn_relaxed.SoftnessBound` over a Lightning run.

    The multipliers are logged as ``multiplier/<layer>`` at the end of each epoch.

    Args:
        bound: ε, one for all layers or a dict from the name of a layer (in the Lightning module) to its own.
        rate: step size of the multipliers.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[BoundSoftness(0.01)], logger=False, accelerator="cpu")
    """

    def __init__(self, bound: float | Mapping[str, float], rate: float = 1.0) -> None:
        super().__init__()
        self._bound, self._rate = bound, rate

    def _build_rule(self, trainer: Trainer, network: LightningModule) -> SoftnessBound:
        return SoftnessBound(network, self._bound, self._rate)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the multipliers."""
        if isinstance(self.rule, SoftnessBound):
            pl_module.log_dict({f"multiplier/{name}": value for name, value in self.rule.multipliers.items()})


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


def _images(batch: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors (batch, C, H, W) of a batch, in order."""
    if isinstance(batch, Tensor):
        if batch.dim() == 4 and batch.is_floating_point():
            yield batch
    elif isinstance(batch, (Mapping, tuple, list)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _images(part)
