"""Charged particles, without a field, under gravity and above a wall: protocol.md says what is compared.

    python -m benchmarks.nbody plan                       # count the runs
    python -m benchmarks.nbody choose [--processes 2]     # widths and rates, on validation alone
    python -m benchmarks.nbody test [--minutes 50]
    python -m benchmarks.nbody report
    python -m benchmarks.nbody page                       # write the table of docs/how-to/points.md

Each run is a line of the log as it ends, and a second call goes on.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.nbody.networks import WAYS
from benchmarks.nbody.report import choice_table, gain_table, page_table, runs_of, score_table
from benchmarks.nbody.runs import Place, choose, planned, test_once
from benchmarks.shared.markdown import with_blocks
from benchmarks.shared.processes import Job, do
from benchmarks.shared.run_log import Log

ROOT = Path(__file__).parents[2]
LOG = ROOT / "benchmarks" / "results" / "nbody" / "runs.jsonl"
PAGE = ROOT / "docs" / "how-to" / "points.md"


def main(words: Sequence[str] | None = None) -> None:
    """Make the runs of a stage that the log lacks, or tell what it holds."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nbody", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=("plan", "choose", "test", "report", "page"))
    parser.add_argument("--log", type=Path, default=LOG, help="the log, a file of JSON lines (%(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time (%(default)s)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after these no run starts")
    arguments = parser.parse_args(words)
    torch.set_num_threads(1)
    place = Place(Log(arguments.log), time.time() + 60 * arguments.minutes)
    if arguments.stage == "plan":
        cells = list(planned())
        print(f"{len(cells)} runs of the test, {sum(cell.key('test') in place.log.runs for cell in cells)} in the log")
    elif arguments.stage == "report":
        runs = runs_of(place.log)
        print("\n\n".join([choice_table(place.log), score_table(runs), gain_table(runs)]))
    elif arguments.stage == "page":
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_blocks(text, "nbody", {"errors": page_table(runs_of(place.log))}), encoding="utf-8")
    else:
        rounds: list[list[Job]] = [[partial(choose, way) for way in WAYS]]
        if arguments.stage == "test":
            rounds.append([partial(test_once, cell) for cell in planned()])
        if not all(do(jobs, place, arguments.processes) for jobs in rounds):
            print("The time is up. Another call goes on.")


if __name__ == "__main__":
    main()
