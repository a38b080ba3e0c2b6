"""MNIST6-180: a task that no strictly rotation-invariant network can solve, and a soft one does.

The sixes of a digit data set, half of them turned by 180°, are to be told apart. A strict and a soft network
of the same architecture and number of parameters are trained; they differ in the domain frequency ω′ of
rotation alone. Or in the soft network's place one that is relaxed in another way.

It needs scikit-learn, matplotlib and rich (the extra ``examples``), and the folders of the repository around it.

    python examples/mnist6_180.py                    # scikit-learn's bundled digits
    python examples/mnist6_180.py --data ~/mnist     # MNIST, downloaded there if it is missing
    python examples/mnist6_180.py --layer partial    # or residual, weighted: docs/concepts/ways-to-relax.md
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.baselines import LAYERS, PartialR2Conv

import torch
from escnn import gspaces, nn
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table
from torch import Tensor

from pictures import save_picture
from shared import DataError, both_ways_up, half_turned
from sixes import Sixes, bundled_sixes, mnist_sixes, shift_randomly

ROTATIONS = 8
FIELDS = 4
KERNEL_SIZES = (7, 5, 5)
BATCH_SIZE = 32
LEARNING_RATE = 1e-2

Layer = Callable[..., nn.EquivariantModule]


def kinds_of_layer(word: str) -> dict[str, Layer]:
    """The layers of the two networks: strict, and relaxed in the way of the word.

    The strict layers have the soft layers' parameters too, but those of the soft part are idle while ω′ is 0.
    """
    return {"strict": partial(RelaxedR2Conv, relax={"rotation": 0.0}), "soft": LAYERS[word]}


class SixOrNine(torch.nn.Module):
    """Three convolutions with regular fields, group pooling, the mean over positions, a linear layer."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        gspace = gspaces.rot2dOnR2(ROTATIONS)
        self.in_type = nn.FieldType(gspace, [gspace.trivial_repr])
        hidden_type = nn.FieldType(gspace, [gspace.regular_repr] * FIELDS)
        modules: list[nn.EquivariantModule] = []
        for kernel_size in KERNEL_SIZES:
            if modules:
                # 29 → 15 → 8: all three grids are mapped to themselves by quarter turns.
                modules.append(nn.PointwiseAvgPoolAntialiased(hidden_type, sigma=0.66, stride=2))
            layer_in = modules[-1].out_type if modules else self.in_type
            modules += [
                layer(layer_in, hidden_type, kernel_size, padding=kernel_size // 2, bias=False),
                nn.InnerBatchNorm(hidden_type),
                nn.ReLU(hidden_type),
            ]
        self.features = nn.SequentialModule(*modules)
        self.group_pooling = nn.GroupPooling(hidden_type)
        self.classifier = torch.nn.Linear(FIELDS, 2)

    def feature_maps(self, images: Tensor) -> nn.GeometricTensor:
        """The last feature maps before the group pooling."""
        return self.features(self.in_type(images))

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 29, 29) → class scores (batch, 2)."""
        invariant: Tensor = self.group_pooling(self.feature_maps(images)).tensor
        scores: Tensor = self.classifier(invariant.mean(dim=(2, 3)))
        return scores

    @property
    def first_layer(self) -> nn.EquivariantModule:
        """The lifting convolution."""
        return self.features[0]


@dataclass
class Run:
    """A network and what was measured on it."""

    network: SixOrNine
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    seconds: float = 0.0
    error: float = 0.0


@torch.no_grad()
def accuracy(network: SixOrNine, images: Tensor, labels: Tensor) -> float:
    """Percentage of images whose label is predicted."""
    network.eval()
    correct = sum(
        int((network(part).argmax(1) == truth).sum())
        for part, truth in zip(images.split(256), labels.split(256), strict=True)
    )
    return 100 * correct / len(labels)


@torch.no_grad()
def equivariance_error(network: SixOrNine, images: Tensor) -> float:
    """‖f(g·x) − g·f(x)‖ / ‖f(x)‖ of the last feature maps, the mean over the quarter turns g.

    Quarter turns are exact on the pixel grid: what is measured is the network's own error, not resampling.
    """
    network.eval()
    maps = network.feature_maps(images)
    errors = []
    for quarter_turns in (1, 2, 3):
        element = maps.type.fibergroup.element(quarter_turns * ROTATIONS // 4)
        turned_maps = torch.rot90(maps.transform_fibers(element).tensor, quarter_turns, (2, 3))
        maps_of_turned = network.feature_maps(torch.rot90(images, quarter_turns, (2, 3))).tensor
        errors.append(float((maps_of_turned - turned_maps).norm() / maps.tensor.norm()))
    return mean(errors)


def train_epoch(
    network: SixOrNine,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    images: Tensor,
    labels: Tensor,
) -> float:
    """One pass over the images, each shifted at random; the mean loss."""
    network.train()
    losses = []
    for batch in torch.randperm(len(images)).split(BATCH_SIZE):
        loss = torch.nn.functional.cross_entropy(network(shift_randomly(images[batch])), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return mean(losses)


def train_and_test(
    kind: str, layer: Layer, seed: int, epochs: int, sixes: Sixes, progress: Progress, task: TaskID
) -> Run:
    """Train a network of one kind of layer and measure it.

    Each test image is tested both ways up. An invariant network gives the same answer to both, so that one of
    them is right and it scores exactly 50 %; with one way up for each image, it would score 50 % give or take
    the luck of the draw.
    """
    torch.manual_seed(seed)
    train_images, train_labels = half_turned(sixes.train)
    test_images, test_labels = both_ways_up(sixes.test)
    run = Run(SixOrNine(layer))
    optimizer = torch.optim.Adam(run.network.parameters(), lr=LEARNING_RATE)
    steps = epochs * -(-len(train_images) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LEARNING_RATE, total_steps=steps, pct_start=0.1)
    for _ in range(epochs):
        start = time.process_time()
        loss = train_epoch(run.network, optimizer, schedule, train_images, train_labels)
        run.seconds += time.process_time() - start
        run.losses.append(loss)
        run.accuracies.append(accuracy(run.network, test_images, test_labels))
        progress.update(task, advance=1, description=f"{kind}, seed {seed}: {run.accuracies[-1]:.1f} %")
    run.error = equivariance_error(run.network, sixes.test[:256])
    return run


def train_all(word: str, sixes: Sixes, seeds: int, epochs: int, console: Console) -> dict[str, list[Run]]:
    """A run for each kind of network and each seed."""
    layers = kinds_of_layer(word)
    runs: dict[str, list[Run]] = {kind: [] for kind in layers}
    with Progress(console=console) as progress:
        task = progress.add_task("", total=len(layers) * seeds * epochs)
        for seed in range(seeds):
            for kind, layer in layers.items():
                runs[kind].append(train_and_test(kind, layer, seed, epochs, sixes, progress, task))
    return runs


def parameter_counts(network: SixOrNine) -> str:
    """All parameters of a trained network, and those with a gradient: with ω′ = 0, soft weights have none."""
    parameters = list(network.parameters())
    in_use = sum(p.numel() for p in parameters if p.grad is not None and p.grad.any())
    return f"{sum(p.numel() for p in parameters):,} ({in_use:,})"


def relaxed_by(layer: nn.EquivariantModule) -> str:
    """What says how far a layer is relaxed, where there is one number for it."""
    if isinstance(layer, RelaxedR2Conv):
        return f"ω′ = {float(layer.domain_frequency['rotation']):g}"
    if isinstance(layer, PartialR2Conv):
        return f"ν = {float(layer.narrowing['rotation']):.2f}"
    return type(layer).__name__.removesuffix("R2Conv").lower()


def results_table(runs: dict[str, list[Run]], sixes: Sixes) -> Table:
    """A row for each kind of network: means over the seeds, and the range of the accuracy."""
    title = f"{sixes.name}: {len(sixes.train)} training images, 2 × {len(sixes.test)} test images"
    caption = (
        "Accuracy: mean over the seeds (lowest–highest). Error: ‖f(g·x) − g·f(x)‖ / ‖f(x)‖ of the last "
        "feature maps, mean over the quarter turns g. Parameters: all (those with a gradient). Time: CPU "
        "seconds to train one network."
    )
    table = Table(title=title, caption=caption)
    table.add_column("network")
    for heading in ("first layer", "accuracy, %", "error", "parameters", "time, s"):
        table.add_column(heading, justify="right")
    for kind, kind_runs in runs.items():
        network = kind_runs[0].network
        accuracies = [run.accuracies[-1] for run in kind_runs]
        table.add_row(
            kind,
            relaxed_by(network.first_layer),
            f"{mean(accuracies):.1f} ({min(accuracies):.1f}–{max(accuracies):.1f})",
            f"{mean(run.error for run in kind_runs):.2g}",
            parameter_counts(network),
            f"{mean(run.seconds for run in kind_runs):.0f}",
        )
    return table


def draw_results(runs: dict[str, list[Run]], sixes: Sixes, path: Path) -> None:
    """The picture of all runs; the filters are those of the first seed."""
    save_picture(
        path,
        test_images=both_ways_up(sixes.test[:5]),
        filter_banks={kind: first.network.first_layer.filter_bank() for kind, (first, *_) in runs.items()},
        curves={
            "Training loss": {kind: [run.losses for run in same] for kind, same in runs.items()},
            "Test accuracy, %": {kind: [run.accuracies for run in same] for kind, same in runs.items()},
        },
        rotations=ROTATIONS,
    )


def positive_integer(text: str) -> int:
    """An integer of at least 1."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Tell 6s from turned 6s, with a strict and a soft network.")
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files, downloaded where missing")
    parser.add_argument("--layer", choices=list(LAYERS), default="relaxed", help="how the soft network is relaxed")
    parser.add_argument("--seeds", type=positive_integer, default=3, help="networks of each kind (default: 3)")
    parser.add_argument("--epochs", type=positive_integer, help="default: 20 on the bundled digits, 4 on MNIST")
    parser.add_argument("--output", type=Path, default=Path("runs/mnist6_180.png"), help="where the picture goes")
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that everything runs")
    return parser.parse_args(arguments)


def load_data(root: Path | None) -> tuple[Sixes, int]:
    """The sixes and for how many epochs to train on them."""
    if root is None:
        return bundled_sixes(), 20
    try:
        return mnist_sixes(root), 4
    except DataError as error:
        raise SystemExit(f"error: {error}") from error


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print the table, save the picture."""
    options = parse_arguments(arguments)
    torch.set_num_threads(1)  # enough for these networks; on a busy machine, two threads were ten times slower
    console = Console()
    sixes, epochs = load_data(options.data)
    epochs = options.epochs or epochs
    if options.smoke:
        sixes, epochs = Sixes(sixes.name, sixes.train[:BATCH_SIZE], sixes.test[:BATCH_SIZE]), 2
    runs = train_all(options.layer, sixes, options.seeds, epochs, console)
    console.print(results_table(runs, sixes))
    draw_results(runs, sixes, options.output)
    console.print(f"picture: {options.output}")


if __name__ == "__main__":
    main()
