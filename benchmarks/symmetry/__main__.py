"""Run the benchmark: what the log does not hold yet, in the order of the protocol.

    python -m benchmarks.symmetry --data FOLDER --output FILE.jsonl [--tasks digits] [--groups C8] [--poses upright]
        [--ways "R2Conv;Conv2d"] [--images 300,1000] [--seeds 0,1] [--pause-file PATH]

protocol.md beside this file says what is compared, and how. Runs go one after another; each is a line of the log as it
ends, and a second call goes on. ``benchmarks.symmetry.report`` makes tables of the log.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.shared.run_log import Log
from benchmarks.symmetry.order import ordered_cells
from benchmarks.symmetry.runs import Cell, Place, train_missing


def main() -> None:
    """Make the runs that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data; without, scikit-learn's digits, for a trial")
    parser.add_argument("--output", type=Path, required=True, help="the log, a file of JSON lines")
    parser.add_argument("--tasks", help="separated by commas")
    parser.add_argument("--groups", help="separated by commas")
    parser.add_argument("--poses", help="separated by ;")
    parser.add_argument("--ways", help="separated by ;")
    parser.add_argument("--images", help="numbers of training images, separated by commas")
    parser.add_argument("--seeds", help="separated by commas")
    parser.add_argument("--pause-file", type=Path, help="while this file exists, training waits between epochs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    place = Place(arguments.data, Log(arguments.output), arguments.pause_file)
    train_missing([cell for cell in ordered_cells() if _is_asked_for(cell, arguments)], place)


def _is_asked_for(cell: Cell, arguments: argparse.Namespace) -> bool:
    """Return whether each value of a cell is among those that were named, where some were."""
    named = (
        (cell.task, arguments.tasks, ","),
        (cell.group, arguments.groups, ","),
        (cell.pose, arguments.poses, ";"),
        (cell.way, arguments.ways, ";"),
        (cell.images, arguments.images, ","),
        (cell.seed, arguments.seeds, ","),
    )
    return all(names is None or str(value) in names.split(separator) for value, names, separator in named)


if __name__ == "__main__":
    main()
