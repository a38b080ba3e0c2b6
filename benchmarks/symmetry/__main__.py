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
from benchmarks.symmetry.order import CELLS
from benchmarks.symmetry.runs import Place, train_missing

# Option → the part of a cell that it names, and what separates values.
OPTIONS = {
    "tasks": ("task", ";"),
    "groups": ("group", ","),
    "poses": ("pose", ";"),
    "ways": ("way", ";"),
    "images": ("images", ","),
    "seeds": ("seed", ","),
}


def main() -> None:
    """Make the runs that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data; without, scikit-learn's digits, for a trial")
    parser.add_argument("--output", type=Path, required=True, help="the log, a file of JSON lines")
    parser.add_argument("--pause-file", type=Path, help="while this file exists, training waits between epochs")
    for option, (_, separator) in OPTIONS.items():
        parser.add_argument(f"--{option}", help=f"only these, separated by {separator}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    asked = {
        part: getattr(arguments, option).split(separator)
        for option, (part, separator) in OPTIONS.items()
        if getattr(arguments, option)
    }
    cells = [cell for cell in CELLS if all(str(getattr(cell, part)) in asked[part] for part in asked)]
    train_missing(cells, Place(arguments.data, Log(arguments.output), arguments.pause_file))


if __name__ == "__main__":
    main()
