"""The paper's cross-validation: a row at several ω′, chosen by validation images, reported on test images."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.shared.markdown import mean_and_error

from .configuration import override
from .plans import PlannedRun
from .rows import find_row

__all__ = ["read_values", "sweep_report", "sweep_runs"]


def read_values(text: str) -> tuple[str, list[str]]:
    """The setting and the values of ``relax.rotation=0,0.25,0.5``.

    Raises:
        ValueError: for text of another form.

    Example:
        >>> read_values("relax.rotation=0,0.25")
        ('relax.rotation', ['0', '0.25'])
    """
    key, equals, values = text.partition("=")
    found = [value.strip() for value in values.split(",")]
    if not (key.strip() and equals and all(found)):
        raise ValueError(f"a sweep must be key=value,value,… as relax.rotation=0,0.25,0.5; got {text!r}")
    if len(set(found)) < len(found):
        raise ValueError(f"a sweep must have each value once; got {text!r}")
    return key.strip(), found


def sweep_runs(
    row: str, key: str, values: Sequence[str], seeds: int, settings: Sequence[str]
) -> dict[str, list[PlannedRun]]:
    """The runs of each value.

    Args:
        row: name of the row.
        key: what changes, ``relax.rotation`` or any other setting.
        values: as in TOML; a whole number stands for the number.
        seeds: number of seeds.
        settings: of all runs, as of :func:`~experiments.configuration.override`.

    Raises:
        ValueError: for a setting that has no meaning.
        TypeError: for a value of the wrong type.
    """
    base = find_row(row).configuration
    configurations = {value: override(base, [*settings, f"{key}={value}"]) for value in values}
    return {
        value: [PlannedRun(row, configuration, seed) for seed in range(seeds)]
        for value, configuration in configurations.items()
    }


def sweep_report(key: str, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Accuracies on validation images, and on test images of the value that is best there, as text.

    Args:
        key: what was changed.
        results: value → results of the runs of its seeds.
    """
    validation = {value: [run["validation_accuracy"] for run in runs] for value, runs in results.items()}
    lines = [f"{key}={value}: validation {mean_and_error(accuracies)} %" for value, accuracies in validation.items()]
    # The first of several that are equally good: the values are in the user's order.
    best = max(validation, key=lambda value: statistics.fmean(validation[value]))
    tested = mean_and_error([run["test_accuracy"] for run in results[best]])
    return "\n".join([*lines, f"chosen on validation images: {key}={best}, test {tested} %"])
