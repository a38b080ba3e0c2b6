"""How softness trades accuracy on images as they are for accuracy on turned ones, and ways that protect the latter.

    python -m benchmarks.symmetry.tradeoff --data FOLDER --output FILE.jsonl [--task cifar10] [--table]

Digits or photographs that are all upright, with the networks, the training and the scores of the benchmark
(protocol.md). Validation chose the rates of digits for each way there; those of photographs were not chosen. Points of
one curve are one trained network whose soft part is multiplied by a factor, and nothing is trained after that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.shared.markdown import cell, table
from benchmarks.shared.run_log import Log, options
from benchmarks.shared.turns import ELEMENTS, Element, randomly_moved
from benchmarks.symmetry.data import Data
from benchmarks.symmetry.runs import Place, trained
from benchmarks.symmetry.tasks import Cell
from benchmarks.symmetry.training import Fit, scores
from benchmarks.symmetry.ways import WAYS, Setting, Way
from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.network.relaxed_layers import copy_network, relaxed_layers

SEEDS = (501, 502, 503)
# The factors by which the soft part of a trained network is multiplied.
FACTORS = (0.5, 0.25)
# A free head has as many fields below it as the others.
STRICT, FREE, SOFT = WAYS["R2Conv"], replace(WAYS["R2Conv, free head"], is_as_wide=True), WAYS["RelaxedR2Conv"]
KINDS: dict[str, Way] = {
    "strict": STRICT,
    "strict, 10 % turned": replace(STRICT, turned=0.1),
    "strict, 30 % turned": replace(STRICT, turned=0.3),
    "free head": FREE,
    "free head, 10 % turned": replace(FREE, turned=0.1),
    "free head, 30 % turned": replace(FREE, turned=0.3),
    "soft": SOFT,
    "evidence": WAYS["RelaxedR2Conv, evidence"],
    "soft, 10 % turned": replace(SOFT, turned=0.1),
    "soft, 30 % turned": replace(SOFT, turned=0.3),
    'soft, keep="C4"': Way(RelaxedR2Conv, settings=(Setting({"keep": "C4"}),)),
}
# Task → its group, its training images, the kinds that are tried, and their rates.
TRIED: dict[str, tuple[str, int, dict[str, float]]] = {
    "digits": ("C8", 1000, {name: 0.01 if name.startswith("free") else 0.03 for name in KINDS}),
    "cifar10": ("C4", 3000, {"strict": 0.01, "free head": 0.01, "soft": 0.01}),
}


def points(run: Cell, rate: float, place: Place) -> dict[str, Any]:
    """Train a network, and return the scores of its points by what was done to it after training."""
    network, data, course = trained(run, KINDS[run.way].settings[0], rate, place.rule, place)
    elements = ELEMENTS[run.group]
    changes = _changed(network, run.way == "soft", course, data, elements)
    found = {name: scores(changed, data, elements) for name, changed in changes}
    return {"points": found, "seconds": course.seconds, "epochs": course.best_epoch}


def _changed(
    network: nn.Module, has_curve: bool, course: Fit, data: Data, elements: Sequence[Element]
) -> Iterator[tuple[str, nn.Module]]:
    """Yield a network as it was trained, and as it is after each change."""
    yield "trained", network
    for factor in FACTORS if has_curve else ():
        scaled = copy_network(network)
        for layer in relaxed_layers(scaled).values():
            layer.kernel.scale_soft_part(factor)
        yield f"soft part × {factor}", scaled
    if course.evidence is not None:
        course.evidence.harden(*data.validation)
        yield "hardened by images as they are", network
        images, labels = data.validation
        generator = torch.Generator().manual_seed(0)
        course.evidence.harden(randomly_moved(images, elements, generator=generator), labels)
        yield "hardened by turned images", network
    if has_curve:
        for layer in relaxed_layers(network).values():
            layer.harden()
        yield "hardened", network


def written(log: Log) -> str:
    """Return the table of all points, means ± standard errors over the seeds that are there."""
    rows = []
    for name in KINDS:
        runs = [log.runs[f"{name}, {seed}"]["points"] for seed in SEEDS if f"{name}, {seed}" in log.runs]
        for change in runs[0] if runs else ():
            found = [run[change] for run in runs]
            cells = [cell([of[score] for of in found], len(SEEDS)) for score in ("accuracy", "turned", "worst")]
            rows.append([name, change, *cells])
    return table(["network", "after training", "as they are, %", "turned, mean, %", "turned, worst, %"], rows)


def main() -> None:
    """Make the runs that are missing, and print the table."""
    parser = options(__doc__)
    parser.add_argument("--task", choices=TRIED, default="digits", help="the data")
    parser.add_argument("--table", action="store_true", help="print the table of the log alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = Log(arguments.output)
    group, images, rates = TRIED[arguments.task]
    place = Place(arguments.data, log, ways=KINDS)
    for seed in () if arguments.table else SEEDS:
        for name, rate in rates.items():
            run = Cell(arguments.task, group, "upright", images, name, seed)
            log.once(f"{name}, {seed}", partial(points, run, rate, place))
    print(written(log))


if __name__ == "__main__":
    main()
