"""A run: a row trained with a seed in a folder of its own; killed and started again, it goes on."""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers import TensorBoardLogger

from benchmarks.shared.pause import wait_while
from benchmarks.shared.run_log import VERSIONS, Log, commit
from escnn_relaxed.checks import check_integer
from escnn_relaxed.measure import relaxation_scalars

from .batches import Batches, Examples
from .checkpoints import CheckpointEachEpoch, RunCheckpoints
from .configuration import Configuration
from .epoch_metrics import EpochMetrics
from .module import ImageClassifier
from .results import LOG_NAME
from .tasks import load_task

__all__ = ["Machine", "run", "run_folder"]

EVALUATION_BATCH = 256
TENSORBOARD_PACKAGES = ("tensorboard", "tensorboardX")


@dataclass(frozen=True)
class Machine:
    """The machine that a run takes place on, in the words of ``lightning.pytorch.Trainer``.

    Attributes:
        accelerator: ``"auto"``, ``"cpu"``, ``"gpu"``, …
        devices: number of devices on each machine.
        num_nodes: number of machines.
        progress_bar: whether to show one.

    Raises:
        TypeError: for a number of another type.
        ValueError: for a number below 1.
    """

    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    progress_bar: bool = True

    def __post_init__(self) -> None:
        for name in ("devices", "num_nodes"):
            check_integer(name, getattr(self, name), 1)


def run_folder(output: Path, name: str, configuration: Configuration, seed: int) -> Path:
    """Return the folder of a run of this row, configuration and seed."""
    return output / name / configuration.digest() / f"seed-{seed}"


def run(
    name: str,
    configuration: Configuration,
    seed: int,
    root: Path | None,
    output: Path,
    machine: Machine,
    pause: Path | None = None,
) -> dict[str, Any]:
    """Train, validate and, once at the end, test; or take up what was begun.

    The folder of the run holds ``metrics.csv`` with a line an epoch, ``last.ckpt``, the checkpoint before it as
    ``last.before.ckpt``, and TensorBoard's files where that is installed. At the end the result is a line of
    ``paper.jsonl``, the log of all runs. The weights tested are those of the last epoch: nothing is selected.

    Args:
        name: of the row.
        configuration: of the row, overrides included.
        seed: of weights, order and augmentation.
        root: folder of the data.
        output: folder of all runs.
        machine: what it runs on.
        pause: a file while which exists no epoch starts.

    Returns:
        The result, as the log holds it.

    Raises:
        DataError: for data or files of the run that are damaged, or missing and not to be had.
        ValueError: for a batch that cannot be divided among the devices, or is larger than the training images.
    """
    folder = run_folder(output, name, configuration, seed)
    finished, key = Log(output / LOG_NAME), folder.relative_to(output).as_posix()
    if key in finished.runs:
        return finished.runs[key]
    world_size = machine.devices * machine.num_nodes
    if configuration.batch_size % world_size:
        raise ValueError(f"batch_size must be divisible by {world_size} devices, got {configuration.batch_size}")
    folder.mkdir(parents=True, exist_ok=True)
    task = load_task(configuration, root)
    if len(task.train) < configuration.batch_size:
        raise ValueError(f"batch_size must be at most {len(task.train)} images, got {configuration.batch_size}")
    module = ImageClassifier(configuration, task, seed)
    metrics = EpochMetrics(folder / "metrics.csv")
    checkpoint = folder / "last.ckpt"
    checkpoints = RunCheckpoints(f"{configuration.digest()} with seed {seed}")
    wait = LambdaCallback(on_train_epoch_start=lambda *_: wait_while(pause))
    callbacks: list[Callback] = [wait, metrics, CheckpointEachEpoch(checkpoint)]
    trainer = _trainer(configuration, machine, folder, callbacks, checkpoints)
    shuffled = _batches(trainer, task.train, configuration.batch_size // world_size, seed)
    validation, test = (_batches(trainer, part, EVALUATION_BATCH) for part in (task.validation, task.test))
    trainer.fit(module, shuffled, validation, ckpt_path=checkpoints.newest(checkpoint, module))
    (validated,) = trainer.validate(module, validation, verbose=False)
    (tested,) = trainer.test(module, test, verbose=False)
    result: dict[str, Any] = {
        "row": name,
        "seed": seed,
        "configuration": dataclasses.asdict(configuration),
        "parameters": sum(parameter.numel() for parameter in module.network.parameters()),
        "images": {split: len(getattr(task, split)) for split in ("train", "validation", "test")},
        "validation_accuracy": 100 * validated["validation/accuracy"],
        "test_accuracy": 100 * tested["test/accuracy"],
        "epochs": metrics.lines,
        "device": f"{trainer.strategy.root_device.type}, {platform.machine()}",
        "versions": VERSIONS,
        "commit": commit(),
    }
    if trainer.is_global_zero:
        finished.add(key, result)
    return result


def _log_relaxation(trainer: Trainer, module: LightningModule) -> None:
    """Log the present ω′ and softness."""
    module.log_dict(relaxation_scalars(module))


def _trainer(
    configuration: Configuration, machine: Machine, folder: Path, callbacks: list[Callback], checkpoints: RunCheckpoints
) -> Trainer:
    if configuration.learn_relaxation:
        callbacks = [LambdaCallback(on_train_epoch_end=_log_relaxation), *callbacks]
    has_tensorboard = any(find_spec(package) for package in TENSORBOARD_PACKAGES)
    return Trainer(
        max_epochs=configuration.epochs,
        precision=configuration.precision,  # type: ignore[arg-type]  # a word of Lightning's list, checked
        accelerator=machine.accelerator,
        devices=machine.devices,
        num_nodes=machine.num_nodes,
        callbacks=callbacks,
        plugins=[checkpoints],
        logger=TensorBoardLogger(folder, name="", version="tensorboard") if has_tensorboard else False,
        log_every_n_steps=1,
        check_val_every_n_epoch=configuration.validate_every,
        num_sanity_val_steps=0,
        enable_progress_bar=machine.progress_bar,
        enable_model_summary=False,
        # Batches of several processes are dealt out by Batches.
        use_distributed_sampler=False,
    )


def _batches(trainer: Trainer, examples: Examples, batch_size: int, seed: int | None = None) -> Batches:
    """Return the batches of this process, on its device."""
    on_device = examples.to(trainer.strategy.root_device)
    return Batches(on_device, batch_size, seed, trainer.global_rank, trainer.world_size)
