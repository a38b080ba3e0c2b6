"""A callback for Lightning (the extra ``lightning``): softness that is annealed to a strict network."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from ..checks import check_integer, check_subgroups, warn_once
from ..network.gate import GateHandle, gate_softness
from ..network.relaxed_layers import relaxed_layers
from .annealing import Schedule, annealed_gate


class AnnealSoftness(Callback):
    """Trains a strict network by a soft one: a gate on softness follows a schedule that ends at 0.

    The gate holds for validation, too, and is logged as ``gate``. In the last epochs g is 0, and layers are hardened,
    so that the network and its last checkpoint are strict. Checkpoints of earlier epochs hold the soft weights, without
    the gate, which a run that resumes from them has again.

    Args:
        schedule: of :func:`~escnn_relaxed.learning.annealed_gate`: ``"cosine"``, ``"linear"``,
            ``"constant then linear"``, ``"triangle"``, or a function from the progress to g.
        *subgroups: those that the network becomes strict in; by default all.
        strict_epochs: the number of last epochs in which the network is strict. Default: 1.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for another schedule or subgroup, and at the start of a training that has no number of epochs, or
            no more than the strict ones.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> anneal = AnnealSoftness("cosine", strict_epochs=3)
        >>> trainer = Trainer(max_epochs=30, callbacks=[anneal], logger=False, accelerator="cpu")
    """

    def __init__(self, schedule: str | Schedule = "cosine", *subgroups: str, strict_epochs: int = 1) -> None:
        super().__init__()
        annealed_gate(0.0, schedule)  # refuses another schedule before training
        self._schedule, self._subgroups = schedule, check_subgroups(subgroups)
        self._strict_epochs = check_integer("strict_epochs", strict_epochs, 1)
        self._handle: GateHandle | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the training has more epochs than the strict ones."""
        epochs = trainer.max_epochs or -1
        if epochs <= self._strict_epochs:
            raise ValueError(f"AnnealSoftness: max_epochs must be above {self._strict_epochs}, got {epochs}")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the gate of this epoch, or harden the layers where it is 0."""
        self._remove()
        soft_epochs = (trainer.max_epochs or 0) - self._strict_epochs
        progress = min(1.0, trainer.current_epoch / soft_epochs)
        gate = annealed_gate(progress, self._schedule) if progress < 1 else 0.0
        pl_module.log("gate", gate)
        if progress < 1:
            self._handle = gate_softness(pl_module, gate, *self._subgroups)
        else:
            for layer in relaxed_layers(pl_module).values():
                layer.harden(*self._subgroups)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the gate with a warning if the training stopped before its last epochs."""
        if self._handle is not None:
            self._remove()
            warn_once("AnnealSoftness: training has stopped before its strict epochs, so the network is still soft")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove the gate."""
        self._remove()

    def _remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
