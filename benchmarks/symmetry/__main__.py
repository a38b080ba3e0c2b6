"""Run the benchmark: what the log does not hold yet, in the order of the protocol.

    python -m benchmarks.symmetry --data FOLDER --output FILE.jsonl [--tasks digits] [--groups C8] [--poses upright]
        [--ways "R2Conv;Conv2d"] [--images 300,1000] [--seeds 0,1] [--pause-file PATH]
    python -m benchmarks.symmetry --data FOLDER --output OTHER.jsonl --layer package.module:Layer [--head free]

protocol.md beside this file says what is compared, and how. Runs go one after another; each is a line of the log as it
ends, and a second call goes on. ``benchmarks.symmetry.report`` makes tables of the log.

With ``--layer`` the benchmark tries your own layer beside the two strict heads, on digits in two poses, and prints the
tables. The layer is called as ``Layer(in_type, out_type, kernel_size, padding=…, stride=…, bias=False)`` and gives an
escnn module between fields of these types. Another layer needs another log.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from pkgutil import resolve_name

import torch

from benchmarks.shared.run_log import Log, options
from benchmarks.symmetry.networks import HEADS as LAYER_HEADS
from benchmarks.symmetry.report import tables
from benchmarks.symmetry.results import HEADS, KEY, grouped, rows_of
from benchmarks.symmetry.runs import Place, train_missing
from benchmarks.symmetry.tasks import CELLS, Cell
from benchmarks.symmetry.ways import WAYS, Way


def try_layer(way: Way, place: Place) -> str:
    """Train what the log lacks, and return the tables of a way beside both strict heads."""
    place = replace(place, ways={**{name: WAYS[name] for name in HEADS}, "own layer": way})
    runs = product((0, 1), ("upright", "turned"), place.ways)
    train_missing((Cell("digits", "C8", pose, 1000, name, seed) for seed, pose, name in runs), place)
    return "\n\n".join(tables(list(grouped(rows_of([place.log])).values())).values())


def main() -> None:
    """Make the runs that are missing."""
    parser = options(__doc__)
    parser.add_argument("--pause-file", type=Path, help="while this file exists, training waits between epochs")
    parser.add_argument("--layer", type=resolve_name, help="package.module:Layer, to be tried in place of the protocol")
    parser.add_argument("--head", choices=LAYER_HEADS, default="pooled", help="of that layer's networks")
    for part in KEY:
        words = "only these, separated by semicolons, or by commas without a space after them"
        parser.add_argument(f"--{part.removesuffix('s')}s", dest=part, type=partial(re.split, ";|,(?! )"), help=words)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    place = Place(arguments.data, Log(arguments.output), arguments.pause_file)
    if arguments.layer:
        print(try_layer(Way(arguments.layer, arguments.head), place))
        return
    asked = {part: values for part, values in vars(arguments).items() if part in KEY and values}
    for part, values in asked.items():
        known = dict.fromkeys(str(getattr(cell, part)) for cell in CELLS)
        for value in values:
            if value not in known:
                parser.error(f"--{part.removesuffix('s')}s: there is no {value!r}, but {'; '.join(known)}")
    train_missing((cell for cell in CELLS if all(str(getattr(cell, part)) in asked[part] for part in asked)), place)


if __name__ == "__main__":
    main()
