"""Epochs that wait while a file exists, so that something else can have the machine."""

from __future__ import annotations

import time
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["PauseWhile"]

POLL_SECONDS = 1.0


class PauseWhile(Callback):
    """No epoch starts while a file exists.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wait until the file is gone."""
        while self._path.exists():
            time.sleep(POLL_SECONDS)
