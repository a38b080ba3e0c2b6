"""Plans: many runs in a fixed order, from a file of ``plans/``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from escnn_relaxed.checks import check_integer

from .configuration import Configuration, override
from .rows import find_row

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["PlannedRun", "RunsFailedError", "plan_names", "read_plan", "run_all"]


class RunsFailedError(Exception):
    """Some runs of a plan failed; the message names them."""


@dataclass(frozen=True)
class PlannedRun:
    """A run: a row's name, its configuration, overrides included, and a seed."""

    row: str
    configuration: Configuration
    seed: int

    def __str__(self) -> str:
        """Return the row and the seed."""
        return f"{self.row}, seed {self.seed}"


def plan_names() -> list[str]:
    """Names of all plans.

    Example:
        >>> plan_names()
        ['small', 'smoke']
    """
    return sorted(path.name.removesuffix(".toml") for path in _folder().iterdir() if path.name.endswith(".toml"))


def read_plan(name: str) -> list[PlannedRun]:
    """The runs of a plan, in order, each once.

    Its file holds ``set``, settings of all runs, and ``steps``, each with ``rows``, a number of ``seeds``, and its own
    ``set``. In a step every row is run with a seed before any is with the next one.

    Raises:
        ValueError: for an unknown name, or a setting that has no meaning.
        TypeError: for a value of the wrong type.

    Example:
        >>> [str(run) for run in read_plan("smoke")]
        ['smoke, seed 0', 'smoke, seed 1']
    """
    if name not in plan_names():
        raise ValueError(f"plan must be one of {', '.join(plan_names())}; got {name!r}")
    content = tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8"))
    runs = [
        PlannedRun(row, override(find_row(row).configuration, [*content.get("set", []), *step.get("set", [])]), seed)
        for step in content["steps"]
        for seed in range(check_integer("seeds", step["seeds"], 1))
        for row in step["rows"]
    ]
    # A configuration has no hash where it holds a dict.
    return list({(run.row, run.configuration.digest(), run.seed): run for run in runs}.values())


def run_all(runs: Sequence[PlannedRun], train: Callable[[PlannedRun], Any], say: Callable[[str], None]) -> None:
    """Train all; one that fails is named, and the rest goes on.

    Args:
        runs: in order.
        train: trains one, or returns at once where that was done before.
        say: takes a line for people.

    Raises:
        RunsFailedError: at the end, if any failed.
    """
    failed = []
    for number, run in enumerate(runs, start=1):
        say(f"{number} of {len(runs)}: {run}")
        try:
            train(run)
        except Exception as error:  # whatever stops one run
            failed.append(str(run))
            say(f"{run} failed: {type(error).__name__}: {error}")
    if failed:
        raise RunsFailedError(f"{len(failed)} of {len(runs)} runs failed: {'; '.join(failed)}")


def _folder() -> Any:
    return resources.files(__package__) / "plans"
