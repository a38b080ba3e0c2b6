"""How accurate each way is that relaxes a symmetry, and how robust to turned inputs. protocol.md says what is compared.

    python -m benchmarks.accuracy plan                      # count the runs
    python -m benchmarks.accuracy study --data FOLDER       # rules of training, on validation alone
    python -m benchmarks.accuracy choose --data FOLDER      # widths and rates, on validation alone
    python -m benchmarks.accuracy vector --data FOLDER      # why a reference vector does well, on validation alone
    python -m benchmarks.accuracy test --data FOLDER [--tasks "digits upright"] [--ways "strict;soft"] [--seeds 1000]
                                       [--processes 16] [--minutes 50]
    python -m benchmarks.accuracy report [--picture FILE.png]
    python -m benchmarks.accuracy pages                     # write the tables and the picture of README.md and the docs
    python -m benchmarks.accuracy layer --data FOLDER --layer package.module:Layer [--head free] --picture FILE.png

Runs go one after another, or as many at a time as there are processes, each of one thread. Each is a line of the log
as it ends, and a second call goes on. "test" chooses first what is not chosen yet. "layer" tries a layer of your own on
the first task of the plan, and draws it into that task's picture. It is called as ``Layer(in_type, out_type,
kernel_size, padding=…, bias=False)`` and is a module between fields of these types. Give it a log of its own, a copy of
the benchmark's. Ten trials and ten runs take less than half an hour.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

import torch

from benchmarks.accuracy import pages
from benchmarks.accuracy.layers import HEADS
from benchmarks.accuracy.report import OWN, draw, runs_of_the_test, tables
from benchmarks.accuracy.runs import (
    Cell,
    Place,
    choices_of,
    choose,
    families,
    planned,
    study_once,
    study_runs,
    test_once,
)
from benchmarks.accuracy.tasks import PLAN, TASKS, TEST_SEEDS
from benchmarks.accuracy.vector_study import vector_once, vector_runs, vector_table
from benchmarks.accuracy.ways import ALL_WAYS, Way
from benchmarks.shared.processes import Job, do
from benchmarks.shared.run_log import Log

STAGES = ("plan", "study", "choose", "vector", "test", "report", "pages", "layer")
LOG = Path(__file__).parents[1] / "results" / "accuracy" / "runs.jsonl"


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return what reads names that are known, separated by semicolons."""
    allowed = list(known)

    def read(text: str) -> list[str]:
        names = [name.strip() for name in text.split(";")]
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"there is no {name!r}, but " + "; ".join(allowed))
        return names

    return read


def _positive(text: str) -> int:
    """Return a number of processes."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")
    return int(text)


def _layer(text: str) -> Callable[..., torch.nn.Module]:
    """Return the layer of a name."""
    try:
        return resolve_name(text)
    except (ValueError, ImportError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no package.module:Layer ({error})") from error


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=STAGES, metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--data", type=Path, help="folder of the data; without, scikit-learn's digits, for a trial")
    parser.add_argument("--log", type=Path, default=LOG, help="the log, a file of JSON lines (%(default)s)")
    parser.add_argument("--tasks", type=_names(TASKS), help="only these, separated by semicolons")
    parser.add_argument("--ways", type=_names(ALL_WAYS), help="only these")
    parser.add_argument("--seeds", type=_names(map(str, TEST_SEEDS)), help="of the test, only these")
    parser.add_argument("--processes", type=_positive, default=1, help="runs at a time (%(default)s)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after these no run starts")
    parser.add_argument("--device", type=torch.device, default="cpu", help="where networks are trained (%(default)s)")
    parser.add_argument("--layer", type=_layer, help="package.module:Layer of your own")
    parser.add_argument("--head", choices=HEADS, default="pooled", help="of the networks of that layer (%(default)s)")
    parser.add_argument("--picture", type=Path, help="where the picture is written")
    arguments = parser.parse_args(words)
    if (arguments.layer is None) == (arguments.stage == "layer"):
        parser.error("the stage 'layer', and no other, needs --layer")
    return arguments


def main(words: Sequence[str] | None = None) -> None:
    """Make the runs of a stage that the log lacks, or tell what it holds."""
    arguments = _arguments(words)
    torch.set_num_threads(1)
    # float32 as on a CPU.
    torch.backends.cudnn.allow_tf32 = False
    end = time.time() + 60 * arguments.minutes
    place = replace(Place(arguments.data, Log(arguments.log)), end=end, device=arguments.device)
    tasks, ways, seeds = arguments.tasks or TASKS, arguments.ways or ALL_WAYS, arguments.seeds
    cells = [
        run for run in planned() if run.task in tasks and run.way in ways and (not seeds or str(run.seed) in seeds)
    ]
    if arguments.stage == "layer":
        place = replace(place, ways={OWN: Way(arguments.layer, arguments.head)})
        cells = [Cell(PLAN[0].task, PLAN[0].images, OWN, seed) for seed in TEST_SEEDS]
    if arguments.stage == "plan":
        print(f"{len(cells)} runs of the test, {sum(cell.key('test') in place.log.runs for cell in cells)} in the log")
    rounds: list[list[Job]] = []
    chosen: list[tuple[str, str]] = []
    if arguments.stage == "study":
        rounds = [[partial(study_once, *run) for run in study_runs() if run[0].task in tasks and run[0].way in ways]]
    elif arguments.stage == "vector":
        rounds = [[partial(vector_once, *run) for run in vector_runs() if run[0].task in tasks and run[0].way in ways]]
    elif arguments.stage == "choose":
        chosen = [name for name in families() if name[1] in ways and place.choosing[name[0]].task in tasks]
        rounds = _choices(chosen, place)
    elif arguments.stage in ("test", "layer"):
        rounds = _tests(cells, place)
    # The first round whose time is up ends all.
    if not all(do(jobs, place, arguments.processes) for jobs in rounds):
        print("The time is up. Another call goes on.")
    elif chosen:
        print("\n".join(f"{family}, {way}: {choose(family, way, place)}" for family, way in chosen))
    if arguments.stage == "pages":
        pages.write(place.log)
    if arguments.stage in ("report", "layer"):
        print("\n\n".join([*tables(place.log), *filter(None, [vector_table(place.log)])]))
        if arguments.picture:
            draw(runs_of_the_test(place.log), arguments.picture)


def _tests(cells: Sequence[Cell], place: Place) -> list[list[Job]]:
    """Return the choices of runs of the test, and then these."""
    names = [name for cell in cells for name in choices_of(cell, place)]
    return [*_choices(names, place), [partial(test_once, cell) for cell in cells]]


def _choices(names: Iterable[tuple[str, str]], place: Place) -> list[list[Job]]:
    """Return the choices of ways in families of tasks in two rounds, since a penalty has the width of ``soft``."""
    later = [(family, way) for family, way in dict.fromkeys(names) if place.ways[way].has_penalty]
    sooner = dict.fromkeys([*((family, "soft") for family, _ in later), *names])
    return [[partial(choose, *name) for name in some] for some in ([n for n in sooner if n not in later], later)]


if __name__ == "__main__":
    main()
