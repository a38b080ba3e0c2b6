"""Results of runs, from the logs that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.shared.run_log import Log

from .configuration import Configuration
from .data_files import DataError
from .rows import ROWS, Row, find_row

__all__ = ["LOG_NAME", "Result", "as_result", "load_results"]

# Of the log of the paper's runs, in the folder of all runs.
LOG_NAME = "paper.jsonl"

# The settings that make a row; all else of a configuration is the scale it was run at.
OF_THE_ROW = (
    "rotations",
    "layer",
    "relax",
    "learn_relaxation",
    "share_relaxation",
    "penalty_weight",
    "kernel",
    "lifting_kernel_size",
    # Only so that a row that cannot be run in mixed precision has its place beside the others.
    "precision",
)


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        row: of the paper's tables.
        configuration: what was run, overrides included.
        seed: of the run.
        parameters: number of parameters.
        images: split → number of images.
        validation: accuracy on held-out images in %.
        test: accuracy on test images in %.
        epochs: what each epoch gave.
    """

    row: Row
    configuration: Configuration
    seed: int
    parameters: int
    images: Mapping[str, int]
    validation: float
    test: float
    epochs: Sequence[Mapping[str, float]]

    @property
    def is_overridden(self) -> bool:
        """Return whether ω′ is another than that of the row."""
        return self.configuration.relax != self.row.configuration.relax

    @property
    def title(self) -> str:
        """The title of the row, with what else was changed of it."""
        own, row = self.configuration, self.row.configuration
        changed = [name for name in OF_THE_ROW[:-1] if name != "relax" and getattr(own, name) != getattr(row, name)]
        return ", ".join([self.row.title, *(f"{name} {_in_words(getattr(own, name))}" for name in changed)])

    @property
    def scale(self) -> Configuration:
        """The configuration without what is the row's."""
        names = [entry.name for entry in fields(Configuration) if entry.name not in OF_THE_ROW]
        return Configuration(rotations=1, **{name: getattr(self.configuration, name) for name in names})


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_in_words(entry)}" for key, entry in value.items()) or "as published"
    return f"{value:g}" if isinstance(value, float) else str(value)


def as_result(run: str, content: Mapping[str, Any], path: Path) -> Result:
    """A run of a log as a result.

    Args:
        run: name of the run.
        content: what the log holds of it.
        path: of the log.

    Raises:
        DataError: for anything else.
    """
    try:
        return Result(
            find_row(content["row"]),
            Configuration(**content["configuration"]),
            content["seed"],
            content["parameters"],
            content["images"],
            content["validation_accuracy"],
            content["test_accuracy"],
            content["epochs"],
        )
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} holds {run}, which is not the result of a run: {error!r}; delete its line, and the run goes on "
            "when it is started again"
        ) from error


def load_results(folder: Path) -> list[Result]:
    """All runs of the logs ``paper.jsonl`` under a folder, in the order of the rows and seeds.

    Raises:
        DataError: for a run that is none of a row, or a folder without any.
    """
    logs = {path: Log(path) for path in sorted(folder.rglob(LOG_NAME))}
    results = [as_result(name, run, path) for path, log in logs.items() for name, run in log.runs.items()]
    if not results:
        raise DataError(f"{folder} holds no results in {LOG_NAME}: train rows with --output {folder} first")
    order = {name: number for number, name in enumerate(ROWS)}
    return sorted(results, key=lambda result: (order[result.row.name], result.seed))
