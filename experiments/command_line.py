"""``python -m experiments``: list rows, train one, write the tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from .configuration import PRECISIONS, TASK_NAMES, override, read_row, row_names
from .data_files import DataError
from .report import write_report
from .requirements import require

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
    except (DataError, ModuleNotFoundError, OSError, TypeError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {' '.join(str(error).split())}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("rows", help="list the rows")
    train = commands.add_parser("train", help="train a row; a run that was begun goes on")
    train.add_argument("row", help="name of a row")
    train.add_argument("--task", choices=TASK_NAMES, help="data, instead of the row's own")
    train.add_argument("--augment", action="store_true", help="flip and shift training images at random")
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--data", type=Path, help="folder of the data set's files, downloaded there where missing")
    train.add_argument("--output", type=Path, default=Path("runs"), help="folder of all runs (default: runs)")
    train.add_argument("--precision", choices=PRECISIONS)
    train.add_argument("--accelerator", default="auto")
    train.add_argument("--devices", type=int, default=1, help="on each machine")
    train.add_argument("--num-nodes", type=int, default=1, help="machines")
    train.add_argument("--no-progress-bar", action="store_true")
    train.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings, as epochs=10 or relax.rotation=0.5"
    )
    report = commands.add_parser("report", help="write the tables from the results of runs")
    report.add_argument("results", type=Path, help="folder of runs, or of their result.json alone")
    report.add_argument("--output", type=Path, default=Path("docs/results/paper.md"))
    return parser


def _list_rows(options: argparse.Namespace) -> None:
    for name in row_names():
        print(f"{name:24} {read_row(name).title}")


def _train(options: argparse.Namespace) -> None:
    # One process of a distributed run speaks.
    say = require("lightning.pytorch.utilities").rank_zero_only(print)
    # Only now: the module's classes are built on Lightning's.
    from .training import Machine, run, run_folder

    row = read_row(options.row)
    shorthand = [f'{key}="{value}"' for key in ("task", "precision") if (value := getattr(options, key)) is not None]
    if options.augment:
        shorthand.append("augment=true")
    configuration = override(row.configuration, [*shorthand, *options.set])
    say(f"{row.title}: {run_folder(options.output, row.name, configuration, options.seed)}", flush=True)
    machine = Machine(options.accelerator, options.devices, options.num_nodes, not options.no_progress_bar)
    result = run(row.name, configuration, options.seed, options.data, options.output, machine)
    accuracies = " and ".join(f"{result[f'{split}_accuracy']:.2f} % ({split})" for split in ("validation", "test"))
    say(f"{row.title}, seed {options.seed}: accuracy {accuracies}")


def _report(options: argparse.Namespace) -> None:
    write_report(options.results, options.output)
    print(f"written: {options.output}")


_COMMANDS = {"rows": _list_rows, "train": _train, "report": _report}
