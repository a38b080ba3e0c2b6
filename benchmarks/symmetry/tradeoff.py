"""How softness trades accuracy on images as they are for accuracy on turned ones, and ways that protect the latter.

    python -m benchmarks.symmetry.tradeoff --data FOLDER --output FILE.jsonl [--table]

Digits that are all upright, with the networks, the training and the scores of the benchmark (protocol.md). Rates are
those that validation chose for each way there. Points of one curve are one trained network whose soft part is
multiplied by a factor, and nothing is trained after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.shared.markdown import cell, table
from benchmarks.shared.run_log import Log, options
from benchmarks.shared.training import Split
from benchmarks.symmetry.data import Data
from benchmarks.symmetry.digits import load_digits
from benchmarks.symmetry.networks import Frame
from benchmarks.symmetry.training import Fit, Objective, Rule, fit, scores
from benchmarks.symmetry.turns import ELEMENTS, randomly_moved
from benchmarks.symmetry.ways import WAYS, Setting, Way
from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.network.relaxed_layers import copy_network, relaxed_layers

SEEDS = (501, 502, 503)
GROUP, POSE, IMAGES, FRAME, RULE = "C8", "upright", 1000, Frame(10), Rule()
# The factors by which the soft part of a trained network is multiplied.
FACTORS = (0.5, 0.25)


@dataclass(frozen=True)
class Kind:
    """A network and its training."""

    way: Way = WAYS["RelaxedR2Conv"]
    # The probability with which an image of a batch is turned by an element that is drawn.
    turned: float = 0.0
    # The soft part is scaled after training.
    has_curve: bool = False
    rate: float = 0.03


STRICT, FREE = WAYS["R2Conv"], WAYS["R2Conv, free head"]
KINDS: dict[str, Kind] = {
    "strict": Kind(STRICT),
    "strict, 10 % turned": Kind(STRICT, 0.1),
    "strict, 30 % turned": Kind(STRICT, 0.3),
    "free head": Kind(FREE, rate=0.01),
    "free head, 10 % turned": Kind(FREE, 0.1, rate=0.01),
    "free head, 30 % turned": Kind(FREE, 0.3, rate=0.01),
    "soft": Kind(has_curve=True),
    "evidence": Kind(WAYS["RelaxedR2Conv, evidence"]),
    "soft, 10 % turned": Kind(turned=0.1),
    "soft, 30 % turned": Kind(turned=0.3),
    'soft, keep="C4"': Kind(Way(RelaxedR2Conv, settings=(Setting({"keep": "C4"}),))),
}


def points(kind: Kind, data: Data, seed: int) -> dict[str, Any]:
    """Train a network, and return the scores of its points by what was done to it after training."""
    torch.manual_seed(seed)
    network = FRAME.build(GROUP, kind.way, kind.way.settings[0], FRAME.widths)
    elements = ELEMENTS[GROUP]

    def varied(batch: Split) -> Split:
        images, labels = batch
        if not kind.turned:
            return batch
        is_turned = torch.rand(len(images), 1, 1, 1) < kind.turned
        return torch.where(is_turned, randomly_moved(images, elements[1:]), images), labels

    course = fit(network, kind.way, data, kind.rate, RULE.with_copies() if kind.turned else RULE, Objective(), varied)
    found = {name: scores(changed, data, elements) for name, changed in _changed(network, kind, course, data)}
    return {"points": found, "seconds": course.seconds, "epochs": course.best_epoch}


def _changed(network: nn.Module, kind: Kind, course: Fit, data: Data) -> Iterator[tuple[str, nn.Module]]:
    """Yield a network as it was trained, and as it is after each change."""
    yield "trained", network
    for factor in FACTORS if kind.has_curve else ():
        scaled = copy_network(network)
        for layer in relaxed_layers(scaled).values():
            layer.kernel.scale_soft_part(factor)
        yield f"soft part × {factor}", scaled
    if course.evidence is not None:
        course.evidence.harden(*data.validation)
        yield "hardened by images as they are", network
        images, labels = data.validation
        generator = torch.Generator().manual_seed(0)
        course.evidence.harden(randomly_moved(images, ELEMENTS[GROUP], generator=generator), labels)
        yield "hardened by turned images", network
    if kind.has_curve:
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
    parser.add_argument("--table", action="store_true", help="print the table of the log alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = Log(arguments.output)
    for seed in () if arguments.table else SEEDS:
        data = load_digits(POSE, IMAGES, seed, arguments.data)
        for name, kind in KINDS.items():
            log.once(f"{name}, {seed}", partial(points, kind, data, seed))
    print(written(log))


if __name__ == "__main__":
    main()
