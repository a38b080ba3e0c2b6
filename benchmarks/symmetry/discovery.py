"""How often the data's broken symmetries are found, where the answer is known: two ways to decide.

    python -m benchmarks.symmetry.discovery --data FOLDER --output FILE.jsonl [--cases ramp] [--images 1000]
    python -m benchmarks.symmetry.discovery --output FILE.jsonl --table [--training-images]

A network that is soft in rotation and reflection is trained with ``SoftnessEvidence`` for 12 epochs. Then
``SoftnessEvidence.harden`` decides at once, and ``which_softness_helps`` by training further for 4 epochs. Both see 500
images that were held out. Seeds, named before the first run: 401 to 405. What was tried out while this was written had
seeds below 100. Some of these runs called a rise of the loss by 1e-5 certain, of networks that were right in every
image, so ``which_softness_helps`` asks for odds of 20 to 1 since, too. On digits chance in the training hid what
softness gains, so the rate falls to 0 in the further epochs. Seeds of that, named before: 406 to 410. Cases that were
added later have seeds 411 to 415, also named before any run of theirs. With ``--training-images`` both ways decide by
images that the network was trained on, in place of those that were held out.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from escnn import nn as enn
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.shared.markdown import table
from benchmarks.shared.run_log import Log
from benchmarks.shared.training import FIRST_ROUND, UPDATE, Split, take_steps
from benchmarks.symmetry.bodies import GSPACES
from benchmarks.symmetry.digits import mnist
from benchmarks.symmetry.runs import commit
from benchmarks.symmetry.turns import rotated
from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence
from escnn_relaxed.checks import FIBER_SUBGROUPS
from escnn_relaxed.learning import which_softness_helps

SEEDS, LATER_SEEDS = (406, 407, 408, 409, 410), (411, 412, 413, 414, 415)
IMAGES, HELD_OUT = (300, 1000, 3000), 500
SIDE, BATCH, EPOCHS, FURTHER, RATE = 17, 32, 12, 4, 0.01
ROTATION, REFLECTION, BOTH = ("rotation",), ("reflection",), ("rotation", "reflection")
Draw = Callable[[int, torch.Generator, Path | None], Split]


@dataclass(frozen=True)
class Case:
    """A task of which it is known what the data break."""

    # Number of images, generator and folder of the data → images and classes.
    draw: Draw
    # The subgroups that the labels break: a strict network is worse on images like these.
    broken: tuple[str, ...]
    # The subgroups that the poses break: some moved images are unlike all of the data.
    poses: tuple[str, ...] = ()
    group: str = "D4"
    seeds: tuple[int, ...] = SEEDS
    images: tuple[int, ...] = IMAGES

    @property
    def subgroups(self) -> tuple[str, ...]:
        """The subgroups of the network's group."""
        if self.group == "D1":
            return REFLECTION
        return BOTH if self.group.startswith("D") else ROTATION


def _grid() -> tuple[Tensor, Tensor]:
    """Return the coordinates x to the right and y upwards of the pixels, in [−1, 1]."""
    line = torch.linspace(-1, 1, SIDE)
    return line.expand(SIDE, SIDE), -line[:, None].expand(SIDE, SIDE)


def _classes(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(2, (count,), generator=generator)


def _turned(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return each image turned by quarter turns of its own."""
    turns = torch.randint(4, (len(images),), generator=generator)
    return torch.stack([image.rot90(int(turn), (1, 2)) for image, turn in zip(images, turns, strict=True)])


def ramps(direction: float, on: str) -> Draw:
    """Brightness that rises in a direction, in degrees from x, or falls; on noise or on patches of gravel."""
    x, y = _grid()
    ramp = math.cos(math.radians(direction)) * x + math.sin(math.radians(direction)) * y

    def drawn(count: int, generator: torch.Generator, root: Path | None) -> Split:
        classes = _classes(count, generator)
        signs = 1.0 - 2.0 * classes.view(-1, 1, 1, 1)
        return _background(on, count, generator) + signs * ramp, classes

    return drawn


def _background(name: str, count: int, generator: torch.Generator) -> Tensor:
    """Return noise, or patches of scikit-image's picture of gravel, of mean 0 and variance 1."""
    if name == "noise":
        return torch.randn(count, 1, SIDE, SIDE, generator=generator)
    from skimage.data import gravel

    picture = torch.from_numpy(gravel()).float()
    corners = torch.randint(len(picture) - SIDE, (count, 2), generator=generator).tolist()
    patches = torch.stack([picture[row : row + SIDE, column : column + SIDE] for row, column in corners])
    patches = torch.where(_classes(count, generator).view(-1, 1, 1).bool(), patches.flip(2), patches)
    return ((patches - picture.mean()) / picture.std()).unsqueeze(1)


def _spirals(arms: Tensor, hands: Tensor, generator: torch.Generator) -> Tensor:
    """Return spirals with a number of arms and a hand of 1 or −1 each, turned by any angle, with noise."""
    x, y = _grid()
    radius, angle = (x.square() + y.square()).sqrt(), torch.atan2(y, x)
    phases = 2 * math.pi * torch.rand(len(arms), 1, 1, 1, generator=generator)
    waves = (arms.view(-1, 1, 1, 1) * angle + hands.view(-1, 1, 1, 1) * 5 * radius + phases).cos()
    return waves * (radius <= 1) + torch.randn(len(arms), 1, SIDE, SIDE, generator=generator)


def handed_spirals(count: int, generator: torch.Generator, root: Path | None) -> Split:
    """Left and right spirals of two arms."""
    classes = _classes(count, generator)
    return _spirals(torch.full((count,), 2), 1 - 2 * classes, generator), classes


def counted_spirals(count: int, generator: torch.Generator, root: Path | None) -> Split:
    """Spirals of two and of three arms, of either hand."""
    classes = _classes(count, generator)
    return _spirals(2 + classes, 1 - 2 * _classes(count, generator), generator), classes


def letters(count: int, generator: torch.Generator, root: Path | None) -> Split:
    """L and its mirror image J, of random size and place, turned by quarter turns, with noise."""
    classes, images = _classes(count, generator), torch.zeros(count, 1, SIDE, SIDE)
    shapes = torch.randint(5, 9, (count, 2), generator=generator).tolist()
    corners = torch.randint(1, 8, (count, 2), generator=generator).tolist()
    for image, (height, width), (row, column) in zip(images, shapes, corners, strict=True):
        image[0, row : row + height, column] = 1
        image[0, row + height - 1, column : column + width - 2] = 1
    images = torch.where(classes.view(-1, 1, 1, 1).bool(), images.flip(3), images)
    return _turned(images, generator) + 0.3 * torch.randn(images.shape, generator=generator), classes


def stripes(count: int, generator: torch.Generator, root: Path | None) -> Split:
    """Stripes along x or along y with noise: quarter turns exchange the classes, half turns and mirrors keep them."""
    classes = _classes(count, generator)
    x, y = _grid()
    along = torch.where(classes.view(-1, 1, 1, 1).bool(), x, y)
    phases = 2 * math.pi * torch.rand(count, 1, 1, 1, generator=generator)
    return (8 * along + phases).cos() + 2 * torch.randn(count, 1, SIDE, SIDE, generator=generator), classes


def digits(largest: float, is_mirrored: bool = False) -> Draw:
    """MNIST's digits turned by up to some degrees, half of them mirrored where asked."""

    def drawn(count: int, generator: torch.Generator, root: Path | None) -> Split:
        pixels, labels = mnist(root, "train")
        chosen = torch.randperm(len(pixels), generator=generator)[:count]
        images = functional.pad(pixels[chosen].float() / 255, (3, 3, 3, 3))
        if is_mirrored:
            images = torch.where(_classes(count, generator).view(-1, 1, 1, 1).bool(), images.flip(3), images)
        angles = (2 * torch.rand(count, generator=generator) - 1) * math.radians(largest)
        return functional.avg_pool2d(rotated(images, angles), 2), labels[chosen]

    return drawn


def wind(count: int, generator: torch.Generator, root: Path | None) -> Split:
    """Drops that a wind draws out to the right or upwards, with noise: a quarter turn makes one class of the other."""
    classes = _classes(count, generator)
    drops = (torch.rand(count, 1, SIDE, SIDE, generator=generator) < 0.05).float()
    streaks = torch.stack([0.7**far * drops.roll(far, 3) for far in range(6)]).sum(0)
    streaks = torch.where(classes.view(-1, 1, 1, 1).bool(), streaks.rot90(1, (2, 3)), streaks)
    return streaks + 0.3 * torch.randn(streaks.shape, generator=generator), classes


def four_letters(count: int, generator: torch.Generator, root: Path | None) -> Split:
    """b, d, p and q of random size and place, with noise: mirrors and half turns make each of each other."""
    classes, images = torch.randint(4, (count,), generator=generator), torch.zeros(count, 1, SIDE, SIDE)
    sizes = torch.randint(3, 6, (count, 2), generator=generator).tolist()
    corners = torch.randint(1, 6, (count, 2), generator=generator).tolist()
    for image, (stem, bowl), (row, column) in zip(images, sizes, corners, strict=True):
        image[0, row : row + stem + bowl, column] = 1
        image[0, row + stem : row + stem + bowl, column : column + bowl] = 1
        image[0, row + stem + 1 : row + stem + bowl - 1, column + 1 : column + bowl - 1] = 0
    is_mirrored, is_upside_down = (values.view(-1, 1, 1, 1).bool() for values in (classes % 2, classes // 2))
    images = torch.where(is_mirrored, images.flip(3), images)
    images = torch.where(is_upside_down, images.flip(2), images)
    return images + 0.3 * torch.randn(images.shape, generator=generator), classes


def faces(count: int, generator: torch.Generator, root: Path | None) -> Split:
    """Faces and other things, of scikit-image, half of them mirrored: all 200 images in an order that is drawn."""
    from skimage.data import lfw_subset

    pixels = torch.from_numpy(lfw_subset()).float().unsqueeze(1)
    order = torch.randperm(len(pixels), generator=generator)
    images = (pixels - pixels.mean())[order]
    is_mirrored = _classes(len(pixels), generator).view(-1, 1, 1, 1).bool()
    return torch.where(is_mirrored, images.flip(3), images), (order < len(pixels) // 2).long()


CASES: dict[str, Case] = {
    "ramp up or down, gravel": Case(ramps(90, "gravel"), ROTATION, poses=ROTATION),
    "ramp up or down, noise": Case(ramps(90, "noise"), ROTATION, poses=ROTATION),
    "ramp left or right, gravel": Case(ramps(0, "gravel"), BOTH, poses=ROTATION),
    # Its mirror image is in no image, but a network that is strict in the mirror tells the classes apart.
    "ramp along the diagonal, noise": Case(ramps(45, "noise"), ROTATION, poses=BOTH),
    "stripes along x or y": Case(stripes, ROTATION),
    "letters L and J, turned": Case(letters, REFLECTION),
    "handed spirals": Case(handed_spirals, REFLECTION),
    "spirals of two or three arms": Case(counted_spirals, ()),
    "digits, upright": Case(digits(0), BOTH, poses=BOTH),
    "digits, turned": Case(digits(180), REFLECTION, poses=REFLECTION),
    "digits, turned and mirrored": Case(digits(180, is_mirrored=True), ()),
    "faces, mirrored or not": Case(faces, (), group="D1", seeds=LATER_SEEDS, images=(100,)),
    "wind to the right or upwards": Case(wind, ROTATION, poses=BOTH, seeds=LATER_SEEDS),
    "gratings, quarter turns": Case(stripes, ROTATION, group="C4", seeds=LATER_SEEDS),
    "gratings, half turns": Case(stripes, (), group="C2", seeds=LATER_SEEDS),
    "letters b, d, p and q": Case(four_letters, BOTH, poses=ROTATION, seeds=LATER_SEEDS),
}


class Network(nn.Module):
    """Three soft layers of a group with batch norm, the largest channel of each field, a linear layer.

    Sides of 17, 9 and 5 pixels, or 25, 13 and 7: pooling maps the grid to itself, so that strict layers are exact.
    """

    def __init__(self, group: str, classes: int) -> None:
        super().__init__()
        gspace = GSPACES[group]()
        image = gspace.type(gspace.trivial_repr)
        fields = [gspace.type(*[gspace.regular_repr] * number) for number in (4, 4, 8)]
        body, before = [], image
        for after in fields:
            body += [RelaxedR2Conv(before, after, 5, padding=2, bias=False), enn.InnerBatchNorm(after), enn.ReLU(after)]
            body += [enn.PointwiseMaxPool2D(after, 3, 2, padding=1)] if after is not fields[-1] else []
            before = after
        self.image, self.body, self.pool = image, enn.SequentialModule(*body), enn.GroupPooling(before)
        self.head = nn.Linear(len(before), classes)

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
            evidence.update(images[torch.randperm(len(images))[:UPDATE]])


def discover(name: str, images: int, seed: int, root: Path | None, by_training: bool = False) -> dict[str, Any]:
    """Return what both ways find in one case by held-out or by training images, and the seconds that each took."""
    case, generator = CASES[name], torch.Generator().manual_seed(1000 + seed)
    drawn, classes = case.draw(images + HELD_OUT, generator, root)
    few = len(drawn) - images
    trained, held_out = (drawn[few:], classes[few:]), (drawn[:few], classes[:few])
    torch.manual_seed(seed)
    network = Network(case.group, int(classes.max()) + 1)
    evidence = SoftnessEvidence(network, images)
    deciding = (trained[0][:HELD_OUT], trained[1][:HELD_OUT]) if by_training else held_out
    start = time.process_time()
    train(network, trained, EPOCHS, evidence)
    end = time.process_time()

    def losses(copy: nn.Module) -> Tensor:
        return functional.cross_entropy(copy(deciding[0]), deciding[1], reduction="none")

    trials = which_softness_helps(network, lambda copy: train(copy, trained, FURTHER), losses, seed=seed)
    last = time.process_time()
    network.eval()
    accuracy = 100 * (network(held_out[0]).argmax(1) == held_out[1]).double().mean().item()
    report = [trial for trial in evidence.harden(*deciding) if len(trial.layers) > 1]
    return {
        "training on": trials.helps,
        "at once": {trial.subgroup: not trial.is_hardened for trial in report},
        # Rises of the loss, with their errors; of a way that decides at once beside what is needed.
        "trials": [[row.subgroup, list(row.hardened), round(row.rise, 5), round(row.error, 5)] for row in trials.rows],
        "report": [[row.subgroup, *(round(v, 2) for v in (row.needed, row.rise, row.error))] for row in report],
        "accuracy": accuracy,
        "seconds": {"training": round(end - start, 2), "training on": round(last - end, 2)},
        "commit": commit(),
    }


def is_right(case: Case, found: Mapping[str, bool]) -> dict[str, bool]:
    """Return for each subgroup whether the answer is right; a subgroup that is not named was found not needed."""
    return {name: found.get(name, False) == (name in case.broken) for name in case.subgroups}


def summary(log: Log, by_training: bool) -> str:
    """Return the Markdown table of a log: right answers of all, for each case, way and number of images."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run, result in log.runs.items():
        values = json.loads(run)
        if values.get("by training images", False) == by_training:
            found.setdefault((values["case"], values["images"]), []).append(result)
    rows = []
    for (name, images), results in sorted(found.items(), key=lambda item: (list(CASES).index(item[0][0]), item[0][1])):
        cells = []
        for way in ("at once", "training on"):
            answers = [is_right(CASES[name], result[way]) for result in results]
            right = {part: f"{sum(answer[part] for answer in answers)} of {len(answers)}" for part in answers[0]}
            cells += [right.get(part, "–") for part in FIBER_SUBGROUPS]
        rows.append([name, ", ".join(CASES[name].broken) or "none", f"{images:,}", *cells])
    heads = [f"{way}: {part}" for way in ("at once", "trained further") for part in FIBER_SUBGROUPS]
    return table(["case", "broken", "images", *heads], rows)


def main() -> None:
    """Make the runs that the log does not hold, or print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files; without, scikit-learn's digits")
    parser.add_argument("--output", type=Path, required=True, help="the log, a file of JSON lines")
    parser.add_argument("--cases", default="", help="only cases whose name holds one of these, separated by ;")
    parser.add_argument("--images", help="separated by commas; by default those of the case, as the seeds")
    parser.add_argument("--seeds", help="separated by commas")
    parser.add_argument("--training-images", action="store_true", help="decide by images that were trained on")
    parser.add_argument("--table", action="store_true", help="print the table of the log")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = Log(arguments.output)
    if arguments.table:
        print(summary(log, arguments.training_images))
        return
    for seed, images, name in sorted(_asked_for(arguments), key=lambda run: run[:2]):
        by_training = {"by training images": True} if arguments.training_images else {}
        run = json.dumps({"case": name, "images": images, "seed": seed, **by_training})
        if run not in log.runs:
            try:
                result = discover(name, images, seed, arguments.data, arguments.training_images)
            except ModuleNotFoundError as error:
                print(f"{name} is left out, because {error.name} is not installed", flush=True)
                continue
            log.add(run, result)
            print(run, result["at once"], result["training on"], result["seconds"], flush=True)


def _asked_for(arguments: argparse.Namespace) -> Iterator[tuple[int, int, str]]:
    """Yield seed, number of images and case of each run."""
    for name, case in CASES.items():
        if any(part in name for part in arguments.cases.split(";")):
            numbers = (arguments.seeds, case.seeds), (arguments.images, case.images)
            seeds, images = (given.split(",") if given else known for given, known in numbers)
            yield from product(map(int, seeds), map(int, images), [name])


if __name__ == "__main__":
    main()
