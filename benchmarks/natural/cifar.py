"""CIFAR-10 with escnn's own ``R2Conv``, and with what takes its place, at equal parameters: upright, and turned.

    python -m benchmarks.natural.cifar --data DIRECTORY [--groups C4] [--ways …] [--sizes 10000] [--tasks upright]

Residual networks of 12 convolutions in three stages, with about 100,000 parameters; 10,000 training images, all 10,000
test images, 30 epochs of one cycle of Adam, crop and flip. Of a turned image, by one angle of its own, the disk is
left, so that no corners say how it is turned; an upright one is as it is. Of each way the largest learning rate is
chosen by its accuracy on 2,000 images for validation after 5 epochs on 3,000 upright images, with C4 and the first
seed. Runs go one after another in the order of ``ORDER``; each is kept as it ends, and a second call goes on.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.natural.networks import CIFAR, WAYS, build_cifar, parameters
from benchmarks.natural.runs import add_arguments, learn_softness, train_missing, wait_while
from benchmarks.shared.run_log import Log
from benchmarks.shared.tasks import SIDE, Split
from benchmarks.shared.training import BATCH, accuracy
from escnn_relaxed import harden_network
from escnn_relaxed.baselines import free_weight_penalty
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers
from experiments.cifar_files import cifar_split

__all__ = ["EPOCHS", "LOG", "MAIN", "REST", "TASKS", "Run", "best_rate"]

LOG = "cifar.jsonl"
TASKS = ("upright", "turned")
# Number of training images → epochs.
EPOCHS = {1000: 60, 3000: 30, 10_000: 30}
RATES = (3e-3, 1e-2, 3e-2)
CHOOSING_IMAGES, CHOOSING_EPOCHS, VALIDATION = 3000, 5, 2000
SHIFT = 4  # pixels
TEST_SEED = 5000
MAIN = ("R2Conv", "RelaxedR2Conv", "Conv2d")
# Conv2d knows no group: that of C4 stands for D4 too.
OF_GROUP = MAIN[:2]
REST = ("RelaxedR2Conv, evidence", "PartialR2Conv", "RelaxedR2Conv, last stage", "ResidualR2Conv")
# Blocks of runs, the most telling first: group, numbers of images, ways, seeds. In each, seed by seed and task by task.
ORDER: tuple[tuple[str, tuple[int, ...], tuple[str, ...], tuple[int, ...]], ...] = (
    ("C4", (3000, 10_000), MAIN, (0,)),
    ("C4", (3000,), MAIN, (1, 2)),
    ("C4", (3000,), REST, (0, 1, 2)),
    ("C4", (10_000,), REST, (0,)),
    ("C4", (10_000,), MAIN, (1, 2)),
    ("D4", (10_000,), OF_GROUP, (0,)),
    ("C4", (1000,), MAIN, (0, 1, 2)),
    ("C4", (10_000,), REST, (1, 2)),
    ("D4", (10_000,), OF_GROUP, (1, 2)),
    ("D4", (10_000,), REST, (0, 1, 2)),
    ("C4", (10_000,), MAIN, (3, 4)),
)


@dataclass(frozen=True)
class Run:
    """One training."""

    group: str
    task: str
    images: int
    epochs: int
    way: str
    rate: float
    seed: int

    def __str__(self) -> str:
        settings = {"widths": CIFAR[self.group][self.way], "precision": "bf16-mixed"}
        return json.dumps({**vars(self), **settings}, sort_keys=True)


@functools.lru_cache(maxsize=len(TASKS))
def load(task: str, seed: int, root: Path) -> tuple[Split, Split, Split]:
    """The largest training set, images for validation, and all test images: (n, 3, 33, 33), and classes (n,).

    Channels have mean 0 and standard deviation 1 over the training images, and what lies outside is 0.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    pixels, labels = (torch.from_numpy(array) for array in cifar_split(root, "cifar10", "train"))
    count = min(max(EPOCHS), len(pixels) - VALIDATION)
    chosen = torch.randperm(len(pixels), generator=generator)[: count + VALIDATION]
    train_pixels = pixels[chosen].float()
    deviation, mean = torch.std_mean(train_pixels[:count], dim=(0, 2, 3), keepdim=True)
    images = _posed(task, (train_pixels - mean) / deviation, generator)
    test_pixels, test_labels = (torch.from_numpy(array) for array in cifar_split(root, "cifar10", "test"))
    # All runs are tested on the same images at the same angles.
    at_test = torch.Generator().manual_seed(TEST_SEED)
    test = _posed(task, (test_pixels.float() - mean) / deviation, at_test), test_labels.long()
    known = labels[chosen].long()
    return (images[:count], known[:count]), (images[count:], known[count:]), test


def _posed(task: str, images: Tensor, generator: torch.Generator) -> Tensor:
    """Images (n, 3, 32, 32) → (n, 3, 33, 33): with a row and a column of 0, or turned about the centre."""
    if task == "upright":
        return functional.pad(images, (0, 1, 0, 1))
    angles = (torch.rand(len(images), generator=generator) * 2 - 1) * math.pi
    # Pixels keep their size: the larger grid sees more of the plane.
    cosine, sine = (value * SIDE / images.shape[-1] for value in (angles.cos(), angles.sin()))
    zero = torch.zeros_like(angles)
    turns = torch.stack([torch.stack([cosine, -sine, zero], -1), torch.stack([sine, cosine, zero], -1)], 1)
    grid = functional.affine_grid(turns, [len(images), 3, SIDE, SIDE], align_corners=False)
    row = torch.arange(SIDE) - SIDE // 2
    disk = row[:, None] ** 2 + row**2 <= (images.shape[-1] / 2) ** 2
    return functional.grid_sample(images, grid, align_corners=False) * disk


def augmented(images: Tensor) -> Tensor:
    """Each image flipped with probability ½, and shifted by up to 4 pixels; 0 comes in."""
    flips = torch.rand(len(images)) < 0.5
    images = torch.where(flips.view(-1, 1, 1, 1), images.flip(3), images)
    padded = functional.pad(images, (SHIFT,) * 4)
    rows, columns = (torch.randint(2 * SHIFT + 1, (len(images), 1)) + torch.arange(images.shape[-1]) for _ in range(2))
    members = torch.arange(len(images)).view(-1, 1, 1)
    return padded[members, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def fit(
    network: nn.Module,
    data: Split,
    rate: float,
    epochs: int,
    penalty: Callable[[], Tensor] | None,
    after_step: Callable[[], None],
) -> float:
    """Train with Adam, whose rate rises to ``rate`` and falls to 0; the mean cross-entropy of the last epoch.

    Convolutions take and give bfloat16, in half the time; weights and what is done in evaluation have float32.
    """
    images, labels = data
    optimiser = torch.optim.Adam(network.parameters(), rate)
    steps = len(images) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=epochs * steps)
    network.train()
    for _ in range(epochs):
        total = 0.0
        for batch in torch.randperm(len(images))[: steps * BATCH].view(-1, BATCH):
            with torch.autocast("cpu", torch.bfloat16):
                logits = network(augmented(images[batch]))
            loss = functional.cross_entropy(logits.float(), labels[batch])
            total += loss.item()
            if penalty is not None:
                loss = loss + penalty()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            after_step()
    return total / steps


def train(run: Run, root: Path, pause: Path | None) -> dict[str, Any]:
    """One network: its accuracies, softness by layer, and CPU time."""
    (images, labels), held_out, test = load(run.task, run.seed, root)
    torch.manual_seed(run.seed)
    network = build_cifar(run.group, run.way)
    known = images[: run.images], labels[: run.images]
    deviation, after_step = WAYS[run.way].deviation, lambda: wait_while(pause)

    def prior() -> Tensor:
        # The loss is the mean of an image, and so is the prior's part of it.
        return free_weight_penalty(network, deviation) / run.images

    penalty = None if deviation is None else prior
    if WAYS[run.way].is_learned:
        penalty, after_step = learn_softness(network, known[0], run.images // BATCH, after_step)
    start = time.process_time()
    loss = fit(network, known, run.rate, run.epochs, penalty, after_step)
    result: dict[str, Any] = {"seconds": time.process_time() - start, "loss": loss, "parameters": parameters(network)}
    if run.epochs == CHOOSING_EPOCHS:
        return {**result, "validation": accuracy(network, held_out)}
    result["test"] = accuracy(network, test)
    soft = [layer for _, layer in named_relaxed_layers(network)]
    if soft:
        result["softness"] = [layer.softness().item() for layer in soft]
        result["hardened"] = accuracy(harden_network(network), test)
    return result


def rate_runs(way: str) -> list[Run]:
    """Runs by which the learning rate of a way is chosen."""
    return [Run("C4", "upright", CHOOSING_IMAGES, CHOOSING_EPOCHS, way, rate, 0) for rate in RATES]


def best_rate(way: str, log: Log) -> float:
    """The rate of the highest accuracy on validation.

    Raises:
        KeyError: if a run is missing.
    """
    return max(rate_runs(way), key=lambda run: log.runs[str(run)]["validation"]).rate


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of CIFAR-10's folder, downloaded if missing")
    parser.add_argument("--groups", default=";".join(CIFAR), help="separated by ;")
    parser.add_argument("--ways", default=";".join((*MAIN, *REST)), help="separated by ;")
    parser.add_argument("--sizes", default=",".join(map(str, EPOCHS)), help="training images, separated by commas")
    parser.add_argument("--tasks", default=";".join(TASKS), help="separated by ;")
    add_arguments(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = Log(arguments.output / LOG)
    sizes, seeds = ({int(value) for value in text.split(",")} for text in (arguments.sizes, arguments.seeds))
    groups, ways, tasks = (text.split(";") for text in (arguments.groups, arguments.ways, arguments.tasks))

    def train_all(runs: list[Run]) -> None:
        wanted = {str(run): functools.partial(train, run, arguments.data, arguments.pause) for run in runs}
        train_missing(wanted, log, arguments.pause)

    for group, block_sizes, block_ways, block_seeds in ORDER:
        chosen = [way for way in block_ways if way in ways]
        choices = [
            (seed, size, task, way)
            for seed in block_seeds
            for size in block_sizes
            for task in TASKS
            for way in chosen
            if group in groups and seed in seeds and size in sizes and task in tasks
        ]
        train_all([run for way in chosen for run in rate_runs(way) if choices])
        train_all(
            [Run(group, task, size, EPOCHS[size], way, best_rate(way, log), seed) for seed, size, task, way in choices]
        )


if __name__ == "__main__":
    main()
