"""How often the data's broken symmetries are found, where the answer is known: two ways to decide, and a test of poses.

    python -m benchmarks.discovery --data FOLDER --output FILE.jsonl [--by training] [--table]

A network that is soft in rotation and reflection is trained with ``SoftnessEvidence`` for 12 epochs. Then
``SoftnessEvidence.harden`` decides at once, and ``which_softness_helps`` by training further for 4 epochs, in which the
rate falls to 0. Both see 500 images that were held out; with ``--by training`` 500 that the network was trained on, and
with ``--by more`` 3,000 held-out images of digits, for networks of 3,000 images. ``--by poses`` asks ``pose_test``.
Seeds were named before the first run of each: 401 to 405 to find the rule, 406 to 410 to test it, 411 to 415 for cases
that were added later, and 416 to 420 for more held-out images and for poses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from escnn import gspaces
from escnn import nn as enn
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.accuracy.data import mnist
from benchmarks.shared.markdown import table
from benchmarks.shared.run_log import Log, options
from benchmarks.shared.training import FIRST_ROUND, Split, take_steps, update
from benchmarks.shared.turns import rotated
from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence
from escnn_relaxed.checks import FIBER_SUBGROUPS
from escnn_relaxed.learning import which_softness_helps
from escnn_relaxed.measure import pose_test

SEEDS, LATER_SEEDS, LAST_SEEDS = (tuple(range(start, start + 5)) for start in (406, 411, 416))
IMAGES, FEWER = (300, 1000, 3000), (100, 300, 1000)
# How the images that decide are named in the log, and their number.
DECIDING = {"held-out": ({}, 500), "training": ({"by training images": True}, 500), "more": ({"held out": 3000}, 3000)}
DECIDING["poses"] = {"poses": True}, 0
SIDE, BATCH, EPOCHS, FURTHER, RATE = 17, 32, 12, 4, 0.01
ROTATION, REFLECTION, BOTH = ("rotation",), ("reflection",), FIBER_SUBGROUPS
GSPACES: dict[str, Callable[[], Any]] = {
    "C2": lambda: gspaces.rot2dOnR2(2),
    "C4": lambda: gspaces.rot2dOnR2(4),
    "D1": lambda: gspaces.flip2dOnR2(),
    "D4": lambda: gspaces.flipRot2dOnR2(4),
}
Draw = Callable[[int, torch.Generator, Path | None], Split]


@dataclass(frozen=True)
class Case:
    """A task of which it is known what the data break."""

    # Number of images, generator and folder of the data → images and classes.
    draw: Draw
    # The subgroups that the labels break: a strict network is worse on images like these.
    broken: tuple[str, ...]
    # The subgroups in which images and moved images differ, whatever their classes.
    unequal: tuple[str, ...] = ()
    group: str = "D4"
    seeds: tuple[int, ...] = SEEDS
    images: tuple[int, ...] = IMAGES

    @property
    def subgroups(self) -> tuple[str, ...]:
        """The subgroups of the network's group."""
        if self.group == "D1":
            return REFLECTION
        return BOTH if self.group.startswith("D") else ROTATION


def drawn(images_of: Callable[[Tensor, torch.Generator], Tensor], classes: int = 2) -> Draw:
    """Return what draws classes, and then an image of each."""

    def draw(count: int, generator: torch.Generator, root: Path | None) -> Split:
        labels = torch.randint(classes, (count,), generator=generator)
        return images_of(labels, generator), labels

    return draw


def _grid() -> tuple[Tensor, Tensor]:
    """Return the coordinates x to the right and y upwards of the pixels, in [−1, 1]."""
    line = torch.linspace(-1, 1, SIDE)
    return line.expand(SIDE, SIDE), -line[:, None].expand(SIDE, SIDE)


def _noise(count: int, generator: torch.Generator) -> Tensor:
    return torch.randn(count, 1, SIDE, SIDE, generator=generator)


def _coins(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(2, (count,), generator=generator)


def _either(choices: Tensor, ones: Tensor, zeros: Tensor) -> Tensor:
    """Return an image of the first for each choice of 1, and of the second for each of 0."""
    return torch.where(choices.view(-1, 1, 1, 1).bool(), ones, zeros)


def ramps(direction: float, on: str, classes: Tensor, generator: torch.Generator) -> Tensor:
    """Brightness that rises in a direction, in degrees from x, or falls; on noise or on patches of gravel."""
    x, y = _grid()
    ramp = math.cos(math.radians(direction)) * x + math.sin(math.radians(direction)) * y
    background = (_noise if on == "noise" else _gravel)(len(classes), generator)
    return background + _either(classes, -ramp, ramp)


def _gravel(count: int, generator: torch.Generator) -> Tensor:
    """Return patches of scikit-image's picture of gravel, of mean 0 and variance 1."""
    from skimage.data import gravel

    picture = torch.from_numpy(gravel()).float()
    corners = torch.randint(len(picture) - SIDE, (count, 2), generator=generator).tolist()
    patches = torch.stack([picture[None, row : row + SIDE, column : column + SIDE] for row, column in corners])
    patches = _either(_coins(count, generator), patches.flip(3), patches)
    return (patches - picture.mean()) / picture.std()


def _spirals(arms: Tensor, hands: Tensor, generator: torch.Generator) -> Tensor:
    """Return spirals with a number of arms and a hand of 1 or −1 each, turned by any angle, with noise."""
    x, y = _grid()
    radius, angle = (x.square() + y.square()).sqrt(), torch.atan2(y, x)
    phases = 2 * math.pi * torch.rand(len(arms), 1, 1, 1, generator=generator)
    waves = (arms.view(-1, 1, 1, 1) * angle + hands.view(-1, 1, 1, 1) * 5 * radius + phases).cos()
    return waves * (radius <= 1) + _noise(len(arms), generator)


def handed_spirals(classes: Tensor, generator: torch.Generator) -> Tensor:
    """Left and right spirals of two arms."""
    return _spirals(torch.full_like(classes, 2), 1 - 2 * classes, generator)


def counted_spirals(classes: Tensor, generator: torch.Generator) -> Tensor:
    """Spirals of two and of three arms, of either hand."""
    return _spirals(2 + classes, 1 - 2 * _coins(len(classes), generator), generator)


def letters(classes: Tensor, generator: torch.Generator) -> Tensor:
    """L and its mirror image J, of random size and place, turned by quarter turns, with noise."""
    count, images = len(classes), torch.zeros(len(classes), 1, SIDE, SIDE)
    shapes = torch.randint(5, 9, (count, 2), generator=generator).tolist()
    corners = torch.randint(1, 8, (count, 2), generator=generator).tolist()
    for image, (height, width), (row, column) in zip(images, shapes, corners, strict=True):
        image[0, row : row + height, column] = 1
        image[0, row + height - 1, column : column + width - 2] = 1
    images = _either(classes, images.flip(3), images)
    turns = torch.randint(4, (count,), generator=generator).tolist()
    images = torch.stack([image.rot90(turn, (1, 2)) for image, turn in zip(images, turns, strict=True)])
    return images + 0.3 * _noise(count, generator)


def stripes(classes: Tensor, generator: torch.Generator) -> Tensor:
    """Stripes along x or along y with noise: quarter turns exchange the classes, half turns and mirrors keep them."""
    phases = 2 * math.pi * torch.rand(len(classes), 1, 1, 1, generator=generator)
    return (8 * _either(classes, *_grid()) + phases).cos() + 2 * _noise(len(classes), generator)


def wind(classes: Tensor, generator: torch.Generator) -> Tensor:
    """Drops that a wind draws out to the right or upwards, with noise: a quarter turn makes one class of the other."""
    drops = (torch.rand(len(classes), 1, SIDE, SIDE, generator=generator) < 0.05).float()
    streaks = torch.stack([0.7**far * drops.roll(far, 3) for far in range(6)]).sum(0)
    return _either(classes, streaks.rot90(1, (2, 3)), streaks) + 0.3 * _noise(len(classes), generator)


def four_letters(classes: Tensor, generator: torch.Generator) -> Tensor:
    """b, d, p and q of random size and place, with noise: mirrors and half turns make each of each other."""
    count, images = len(classes), torch.zeros(len(classes), 1, SIDE, SIDE)
    sizes = torch.randint(3, 6, (count, 2), generator=generator).tolist()
    corners = torch.randint(1, 6, (count, 2), generator=generator).tolist()
    for image, (stem, bowl), (row, column) in zip(images, sizes, corners, strict=True):
        image[0, row : row + stem + bowl, column] = 1
        image[0, row + stem : row + stem + bowl, column : column + bowl] = 1
        image[0, row + stem + 1 : row + stem + bowl - 1, column + 1 : column + bowl - 1] = 0
    images = _either(classes % 2, images.flip(3), images)
    return _either(classes // 2, images.flip(2), images) + 0.3 * _noise(count, generator)


def digits(largest: float, is_mirrored: bool, count: int, generator: torch.Generator, root: Path | None) -> Split:
    """MNIST's digits turned by up to some degrees, half of them mirrored where asked."""
    pixels, labels = mnist(root, "train")
    chosen = torch.randperm(len(pixels), generator=generator)[:count]
    images = functional.pad(pixels[chosen].float() / 255, (3, 3, 3, 3))
    if is_mirrored:
        images = _either(_coins(count, generator), images.flip(3), images)
    angles = (2 * torch.rand(count, generator=generator) - 1) * math.radians(largest)
    return functional.avg_pool2d(rotated(images, angles), 2), labels[chosen]


def faces(count: int, generator: torch.Generator, root: Path | None) -> Split:
    """Faces and other things, of scikit-image, half of them mirrored: all 200 images in an order that is drawn."""
    from skimage.data import lfw_subset

    pixels = torch.from_numpy(lfw_subset()).float().unsqueeze(1)
    order = torch.randperm(len(pixels), generator=generator)
    images = (pixels - pixels.mean())[order]
    images = _either(_coins(len(pixels), generator), images.flip(3), images)
    return images, (order < len(pixels) // 2).long()


CASES: dict[str, Case] = {
    "ramp up or down, gravel": Case(drawn(partial(ramps, 90, "gravel")), ROTATION, ROTATION),
    "ramp up or down, noise": Case(drawn(partial(ramps, 90, "noise")), ROTATION, ROTATION),
    "ramp left or right, gravel": Case(drawn(partial(ramps, 0, "gravel")), BOTH, ROTATION),
    # Its mirror image is in no image, but a network that is strict in the mirror tells the classes apart.
    "ramp along the diagonal, noise": Case(drawn(partial(ramps, 45, "noise")), ROTATION, BOTH),
    "stripes along x or y": Case(drawn(stripes), ROTATION),
    "letters L and J, turned": Case(drawn(letters), REFLECTION),
    "handed spirals": Case(drawn(handed_spirals), REFLECTION),
    "spirals of two or three arms": Case(drawn(counted_spirals), ()),
    "digits, upright": Case(partial(digits, 0, False), BOTH, BOTH),
    "digits, turned": Case(partial(digits, 180, False), REFLECTION, REFLECTION),
    "digits, turned and mirrored": Case(partial(digits, 180, True), ()),
    "faces, mirrored or not": Case(faces, (), (), "D1", LATER_SEEDS, images=(100,)),
    "wind to the right or upwards": Case(drawn(wind), ROTATION, BOTH, seeds=LATER_SEEDS),
    "gratings, quarter turns": Case(drawn(stripes), ROTATION, (), "C4", LATER_SEEDS),
    "gratings, half turns": Case(drawn(stripes), (), (), "C2", LATER_SEEDS),
    "letters b, d, p and q": Case(drawn(four_letters, classes=4), BOTH, ROTATION, seeds=LATER_SEEDS),
}


class Network(nn.Module):
    """Three soft layers of a group with batch norm, the largest channel of each field, a linear layer.

    Sides of 17, 9 and 5 pixels, or 25, 13 and 7: pooling maps the grid to itself, so that strict layers are exact.
    """

    def __init__(self, group: str, classes: int) -> None:
        super().__init__()
        gspace = GSPACES[group]()
        self.image = gspace.type(gspace.trivial_repr)
        fields = [gspace.type(*[gspace.regular_repr] * width) for width in (4, 4, 8)]
        body: list[nn.Module] = []
        for before, after in pairwise([self.image, *fields]):
            body += [enn.PointwiseMaxPool2D(before, 3, 2, padding=1)] if body else []
            body += [RelaxedR2Conv(before, after, 5, padding=2, bias=False), enn.InnerBatchNorm(after), enn.ReLU(after)]
        self.body, self.pool = enn.SequentialModule(*body), enn.GroupPooling(fields[-1])
        self.head = nn.Linear(len(fields[-1]), classes)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, H, W) → (batch, classes)."""
        features: Tensor = self.pool(self.body(self.image(images))).tensor
        return self.head(features.amax((2, 3)))  # type: ignore[no-any-return]


def train(network: nn.Module, split: Split, epochs: int, evidence: SoftnessEvidence | None = None) -> None:
    """Train with Adam and the evidence's penalty; without an evidence the rate falls to 0, so that losses settle."""
    images, classes = split
    optimiser = torch.optim.Adam(network.parameters(), RATE)
    penalties = [] if evidence is None else [evidence.penalty]
    for epoch in range(epochs):
        if evidence is None:
            optimiser.param_groups[0]["lr"] = RATE * (1 - epoch / epochs)
        batches = ((images[batch], classes[batch]) for batch in torch.randperm(len(images)).split(BATCH))
        take_steps(network, batches, functional.cross_entropy, optimiser, penalties=penalties)
        if evidence is not None and epoch >= FIRST_ROUND:
            update(evidence, split)


def discover(case: Case, images: int, seed: int, root: Path | None, by: str) -> dict[str, Any]:
    """Return what both ways find in one case, or what the test of poses finds."""
    pixels, classes = case.draw(images + DECIDING[by][1], torch.Generator().manual_seed(1000 + seed), root)
    if by == "poses":
        rows = pose_test(pixels[:images], GSPACES[case.group](), seed=seed).rows
        return {
            "poses": {row.subgroup: not row.equal for row in rows},
            "told": [round(row.told_apart, 3) for row in rows],
        }
    few = len(pixels) - images
    trained, held_out = (pixels[few:], classes[few:]), (pixels[:few], classes[:few])
    torch.manual_seed(seed)
    network = Network(case.group, int(classes.max()) + 1)
    evidence = SoftnessEvidence(network, images)
    deciding = (trained[0][:few], trained[1][:few]) if by == "training" else held_out
    train(network, trained, EPOCHS, evidence)

    def losses(copy: nn.Module) -> Tensor:
        return functional.cross_entropy(copy(deciding[0]), deciding[1], reduction="none")

    trials = which_softness_helps(network, lambda copy: train(copy, trained, FURTHER), losses, seed=seed)
    network.eval()
    accuracy = 100 * (network(held_out[0]).argmax(1) == held_out[1]).double().mean().item()
    report = [trial for trial in evidence.harden(*deciding) if len(trial.layers) > 1]
    return {
        "training on": trials.helps,
        "at once": {trial.subgroup: not trial.is_hardened for trial in report},
        # Rises of the loss, with their errors.
        "trials": [[row.subgroup, list(row.hardened), round(row.rise, 4), round(row.error, 4)] for row in trials.rows],
        "accuracy": accuracy,
    }


def name_of(case: str, images: int, seed: int, by: str) -> str:
    """Return the name of a run in the log."""
    return json.dumps({"case": case, "images": images, "seed": seed, **DECIDING[by][0]})


def cases_of(by: str) -> dict[str, Case]:
    """Return the cases that are decided so: all, with their numbers of images; or those of digits with the largest."""
    if by == "poses":
        return {name: replace(one, seeds=LAST_SEEDS, images=FEWER[: len(one.images)]) for name, one in CASES.items()}
    digits = [name for name in CASES if name.startswith("digits")] if by == "more" else []
    return {name: replace(CASES[name], seeds=LAST_SEEDS, images=IMAGES[-1:]) for name in digits} or CASES


def summary(log: Log, by: str) -> str:
    """Return the Markdown table of a log: right answers of all, for each case, way and number of images."""
    rows, ways = [], {"poses": "told"} if by == "poses" else {"at once": "at once", "training on": "trained further"}
    for name, case in cases_of(by).items():
        truth = case.unequal if by == "poses" else case.broken
        for images in case.images:
            names = (name_of(name, images, seed, by) for seed in case.seeds)
            if results := [log.runs[run] for run in names if run in log.runs]:
                cells = (_right(results, way, part, truth, case) for way, part in product(ways, FIBER_SUBGROUPS))
                rows.append([name, ", ".join(truth) or "none", f"{images:,}", *cells])
    heads = [f"{way}: {part}" for way in ways.values() for part in FIBER_SUBGROUPS]
    return table(["case", "unequal" if by == "poses" else "broken", "images", *heads], rows)


def _right(results: Sequence[dict[str, Any]], way: str, subgroup: str, truth: Sequence[str], case: Case) -> str:
    """Return how often a way is right on a subgroup; one that is not named was found not needed."""
    right = sum(result[way].get(subgroup, False) == (subgroup in truth) for result in results)
    return f"{right} of {len(results)}" if subgroup in case.subgroups else "–"


def main() -> None:
    """Make the runs that the log does not hold, or print its table."""
    parser = options(__doc__)
    parser.add_argument("--by", choices=DECIDING, default="held-out", help="the images that decide")
    parser.add_argument("--table", action="store_true", help="print the table of the log")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log, by = Log(arguments.output), arguments.by
    if arguments.table:
        print(summary(log, by))
        return
    runs = [(*of, name, case) for name, case in cases_of(by).items() for of in product(case.seeds, case.images)]
    for seed, images, name, case in sorted(runs, key=lambda run: run[:2]):
        make = partial(discover, case, images, seed, arguments.data, by)
        try:
            log.once(name_of(name, images, seed, by), make)
        except ModuleNotFoundError as error:
            print(f"{name} is left out, because {error.name} is not installed", flush=True)


if __name__ == "__main__":
    main()
