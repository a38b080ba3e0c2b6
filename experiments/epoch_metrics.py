"""The metrics of each epoch: comma-separated values in a file that survives a kill."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from .data_files import save

__all__ = ["EpochMetrics"]


class EpochMetrics(Callback):
    """A line an epoch: whatever is logged, and the CPU seconds it took.

    The lines are part of each checkpoint, and the file is written from them: after a kill it holds the epochs up to
    the checkpoint and those after it once each.

    Args:
        path: of the file.

    Attributes:
        lines: one for each epoch.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = 0.0
        self._is_validated = False
        self.lines: list[dict[str, float]] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._start = time.process_time()
        self._is_validated = False

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Metrics of validation are of this epoch."""
        self._is_validated = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the line."""
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if not self._is_validated:
            metrics = {name: value for name, value in metrics.items() if not name.startswith("validation/")}
        seconds = time.process_time() - self._start
        self.lines.append({"epoch": trainer.current_epoch + 1, "seconds": seconds, **metrics})
        if trainer.is_global_zero:
            save(self._text().encode(), self._path)

    def state_dict(self) -> dict[str, Any]:
        """The lines, for checkpoints."""
        return {"lines": self.lines}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.lines = list(state_dict["lines"])

    def _text(self) -> str:
        columns = list(dict.fromkeys(name for line in self.lines for name in line))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(self.lines)
        return text.getvalue()
