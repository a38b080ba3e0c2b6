"""A checkpoint after each epoch, and the one before it: a kill, a full disk or a damaged file cost an epoch at most."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_warn

from .data_files import DataError, save

__all__ = ["CheckpointEachEpoch", "RunCheckpoints"]


class CheckpointEachEpoch(Checkpoint):
    """The state of the run after each epoch.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save. Lightning calls callbacks of this kind last, when the others have their state of this epoch."""
        trainer.save_checkpoint(self._path)


class RunCheckpoints(TorchCheckpointIO):
    """Writes checkpoints of a run, and finds the one to go on from.

    In place of Lightning's own way, which moves a file over the last one from the folder for temporary files: where
    that is on another file system the move is a copy, of which a kill leaves half.

    Args:
        run: words that tell the run from others; they are part of each checkpoint.
    """

    def __init__(self, run: str) -> None:
        self._run = run

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write the file whole or not at all, and keep the one before.

        Raises:
            OSError: if it cannot be written; the last one is as it was.
        """
        content = io.BytesIO()
        torch.save({**checkpoint, "run": self._run}, content)
        save(content.getvalue(), Path(path), before=_before(Path(path)))

    def newest(self, path: Path, module: LightningModule) -> Path | None:
        """The last checkpoint, or the one before it if that is damaged; None to begin from the start.

        Damaged ones are renamed, which a warning says, and so never take the place of a sound one.

        Args:
            path: of the last one.
            module: what is to go on; it takes the weights.

        Raises:
            DataError: for a checkpoint of something else.
        """
        for candidate, instead in ((path, "from the one before, if there is one"), (_before(path), "from the start")):
            try:
                content = candidate.read_bytes()
            except FileNotFoundError:
                continue
            damage = _damage(content)
            if damage is None:
                self._check(content, candidate, module)
                return candidate
            aside = candidate.with_name(candidate.name + ".damaged")
            # Another process of the run may have moved it already.
            with contextlib.suppress(FileNotFoundError):
                candidate.replace(aside)
            rank_zero_warn(f"{candidate} is damaged ({damage}) and now called {aside.name}: the run goes on {instead}")
        return None

    def _check(self, content: bytes, path: Path, module: LightningModule) -> None:
        remedy = f"move it out of {path.parent} to begin from the start"
        try:
            checkpoint = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            found = checkpoint["run"]
            module.load_state_dict(checkpoint["state_dict"])
        except Exception as error:  # torch has no error of its own for what is not the state of a module
            raise DataError(f"{path} is not a checkpoint of this run, {self._run}: {remedy}") from error
        if found != self._run:
            raise DataError(f"{path} is a checkpoint of another run, {found}, not of {self._run}: {remedy}")


def _before(path: Path) -> Path:
    return path.with_suffix(f".before{path.suffix}")


def _damage(content: bytes) -> str | None:
    """Return what is wrong with a file of torch, an archive with checksums, which torch itself does not compare."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            wrong = archive.testzip()
    except Exception as error:  # each part of an archive has errors of its own
        return str(error)
    return None if wrong is None else f"wrong checksum of {wrong}"
