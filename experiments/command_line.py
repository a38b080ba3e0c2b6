"""``python -m experiments``: list rows, train one, choose its ω′, run a plan of many, write the tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from escnn_relaxed.checks import check_integer

from .configuration import PRECISIONS, TASK_NAMES, changes, override
from .data_files import DataError
from .plans import PlannedRun, RunsFailedError, plan_names, read_plan, run_all
from .report import write_report
from .requirements import require
from .rows import ROWS, find_row
from .sweep import read_values, sweep_report, sweep_runs

__all__ = ["main"]

DESCRIPTION = "The paper's experiments: rows of its tables, trained, and its tables from what the runs wrote."


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line asks for.

    Args:
        arguments: of the command line, without the program's name; its own by default.

    Raises:
        SystemExit: with a line on standard error and the code 2 for a setting, a file or a package that is wrong or
            missing.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        _COMMANDS[options.command](options)
    except (DataError, ModuleNotFoundError, OSError, RunsFailedError, TypeError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {' '.join(str(error).split())}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("rows", help="list the rows")
    train = commands.add_parser("train", help="train a row; a run that was begun goes on")
    train.add_argument("row", help="name of a row")
    train.add_argument("--seed", type=int, default=0)
    sweep = commands.add_parser("sweep", help="train a row at several values, and choose one on validation images")
    sweep.add_argument("row", help="name of a row")
    sweep.add_argument("values", help="a setting and its values, as relax.rotation=0,0.25,0.5")
    sweep.add_argument("--seeds", type=int, default=3, help="number of seeds of each value (default: 3)")
    for command in (train, sweep):
        command.add_argument("--task", choices=TASK_NAMES, help="data, instead of the row's own")
        command.add_argument("--augment", action="store_true", help="flip and shift training images at random")
        command.add_argument("--precision", choices=PRECISIONS)
        command.add_argument(
            "--set",
            nargs="+",
            default=[],
            metavar="KEY=VALUE",
            help="settings, as epochs=10, kernel.net='fourier' or relax.rotation=0.5, which leaves the other entries "
            "of relax; relax={rotation=0.5} replaces them all",
        )
    plan = commands.add_parser("run", help="train all rows of a plan, in order; what was begun goes on")
    plan.add_argument("plan", choices=plan_names(), help="a file of experiments/plans")
    for command in (train, sweep, plan):
        _add_machine(command)
    report = commands.add_parser("report", help="write the tables from the results of runs")
    report.add_argument("results", type=Path, help="folder of runs, or of their log paper.jsonl alone")
    report.add_argument("--output", type=Path, default=Path("benchmarks/results/paper.md"))
    return parser


def _list_rows(options: argparse.Namespace) -> None:
    for row in ROWS.values():
        print(f"{row.name:24} {row.title}")


def _add_machine(command: argparse.ArgumentParser) -> None:
    command.add_argument("--data", type=Path, help="folder of the data set's files, downloaded there where missing")
    command.add_argument("--output", type=Path, default=Path("runs"), help="folder of all runs (default: runs)")
    command.add_argument("--pause-file", type=Path, help="a file while which exists no epoch starts")
    command.add_argument("--accelerator", default="auto")
    command.add_argument("--devices", type=int, default=1, help="on each machine")
    command.add_argument("--num-nodes", type=int, default=1, help="machines")
    command.add_argument("--no-progress-bar", action="store_true")


def _settings(options: argparse.Namespace) -> list[str]:
    """The settings of the command line, shorthand first."""
    shorthand = [f'{key}="{value}"' for key in ("task", "precision") if (value := getattr(options, key)) is not None]
    return [*shorthand, *(["augment=true"] if options.augment else []), *options.set]


def _say() -> Callable[[str], None]:
    """One process of a distributed run speaks."""
    say = require("lightning.pytorch.utilities").rank_zero_only(print)
    return lambda line: say(line, flush=True)


def _run(planned: PlannedRun, options: argparse.Namespace) -> dict[str, Any]:
    """Train one, or read what it gave; its settings are told before, its accuracies after."""
    say = _say()
    # Only now: the module's classes are built on Lightning's.
    from .training import Machine, run, run_folder

    row, configuration, seed = find_row(planned.row), planned.configuration, planned.seed
    say(f"{row.title}: {run_folder(options.output, row.name, configuration, seed)}")
    for change in changes(row.configuration, configuration):
        say(f"  {change}")
    machine = Machine(options.accelerator, options.devices, options.num_nodes, not options.no_progress_bar)
    result = run(row.name, configuration, seed, options.data, options.output, machine, options.pause_file)
    accuracies = " and ".join(f"{result[f'{split}_accuracy']:.2f} % ({split})" for split in ("validation", "test"))
    say(f"{row.title}, seed {seed}: accuracy {accuracies}")
    return result


def _train(options: argparse.Namespace) -> None:
    configuration = override(find_row(options.row).configuration, _settings(options))
    _run(PlannedRun(options.row, configuration, options.seed), options)


def _sweep(options: argparse.Namespace) -> None:
    key, values = read_values(options.values)
    runs = sweep_runs(options.row, key, values, check_integer("seeds", options.seeds, 1), _settings(options))
    results = {value: [_run(planned, options) for planned in of_value] for value, of_value in runs.items()}
    _say()(sweep_report(key, results))


def _run_plan(options: argparse.Namespace) -> None:
    run_all(read_plan(options.plan), lambda planned: _run(planned, options), _say())


def _report(options: argparse.Namespace) -> None:
    write_report(options.results, options.output)
    print(f"written: {options.output}")


_COMMANDS = {"rows": _list_rows, "train": _train, "sweep": _sweep, "run": _run_plan, "report": _report}
