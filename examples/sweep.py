"""Choose a fixed ω′ by cross-validation: a grid over ω′ and seeds with Optuna, in several processes.

    python examples/sweep.py                                    # scikit-learn's digits, turned by up to 60°
    python examples/sweep.py --data ~/mnist --workers 8         # MNIST, downloaded there if it is missing
    python examples/sweep.py --storage /shared/sweep.journal    # the same file on every machine of a cluster

It needs optuna, scikit-learn and matplotlib (the extra ``sweep``), and the folders of the repository around it.

Each seed holds out other images for validation, and ω′ is chosen by the mean accuracy on them. The accuracy on test
images is reported beside it and never looked at by the choice. Trainings are kept in the storage as they end: after
a kill, the same command goes on. A training that was under way then is done again.
"""

from __future__ import annotations

import argparse
import math
import os
import random
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from statistics import mean, stdev
from threading import Thread

from escnn_relaxed import RelaxedR2Conv

import optuna
import torch
from escnn import gspaces, nn
from matplotlib import pyplot
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from torch.nn.functional import cross_entropy

from shared import mean_and_error
from turned_digits import Split, turned_digits

FREQUENCIES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6)
KERNEL_SIZES = (5, 5, 3)
FIELDS = 4
BATCH_SIZE = 64
LEARNING_RATE = 1e-2

Point = tuple[float, int]


@dataclass(frozen=True)
class Sweep:
    """What is trained: a network for each ω′ and seed."""

    frequencies: tuple[float, ...]
    seeds: int
    epochs: int
    images: int
    data: Path | None
    storage: Path

    def points(self) -> list[Point]:
        """All ω′ and seeds."""
        return [(frequency, seed) for seed in range(self.seeds) for frequency in self.frequencies]

    def study(self) -> optuna.Study:
        """The study of these settings in the storage, made where it is missing."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        name = f"{self.data or 'bundled digits'}, {self.images} images, {self.epochs} epochs"
        self.storage.parent.mkdir(parents=True, exist_ok=True)
        # The lock is a link to this path. One left by a killed process is given up only where the link leads to a file.
        storage = JournalStorage(JournalFileBackend(str(self.storage.resolve())))
        return optuna.create_study(study_name=name, storage=storage, direction="maximize", load_if_exists=True)


class Classifier(torch.nn.Module):
    """Three convolutions with C8 fields, group pooling, the mean over positions, a linear layer."""

    def __init__(self, frequency: float) -> None:
        super().__init__()
        gspace = gspaces.rot2dOnR2(8)
        hidden = nn.FieldType(gspace, [gspace.regular_repr] * FIELDS)
        self.in_type = fields = nn.FieldType(gspace, [gspace.trivial_repr])
        modules: list[nn.EquivariantModule] = []
        for size in KERNEL_SIZES:
            if modules:
                modules.append(nn.PointwiseAvgPoolAntialiased(fields, sigma=0.66, stride=2))
            modules += [
                RelaxedR2Conv(fields, hidden, size, padding=size // 2, bias=False, relax={"rotation": frequency}),
                nn.InnerBatchNorm(hidden),
                nn.ReLU(hidden),
            ]
            fields = hidden
        self.features = nn.SequentialModule(*modules, nn.GroupPooling(hidden))
        self.head = torch.nn.Linear(FIELDS, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, 1, 17, 17) → class scores (batch, 10)."""
        scores: torch.Tensor = self.head(self.features(self.in_type(images)).tensor.mean(dim=(2, 3)))
        return scores


def train(frequency: float, seed: int, split: Split, epochs: int) -> Classifier:
    """A trained network."""
    torch.manual_seed(seed)
    network, (images, labels) = Classifier(frequency), split
    optimiser = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    steps = epochs * math.ceil(len(images) / BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(BATCH_SIZE):
            optimiser.zero_grad()
            cross_entropy(network(images[batch]), labels[batch]).backward()
            optimiser.step()
            schedule.step()
    return network.eval()


@torch.no_grad()
def accuracy(network: Classifier, split: Split) -> float:
    """Percentage of images whose class is predicted."""
    right = [network(images).argmax(1) == labels for images, labels in zip(*(t.split(500) for t in split), strict=True)]
    return 100 * float(torch.cat(right).float().mean())


def results(study: optuna.Study) -> dict[Point, tuple[float, float]]:
    """Validation and test accuracy of each ω′ and seed that is trained; of one that was trained twice, the last."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return {_point(trial): (trial.values[0], trial.user_attrs["test accuracy"]) for trial in done}


def next_point(study: optuna.Study, points: Iterable[Point], own: Collection[Point]) -> Point | None:
    """One that is neither trained nor one's own under way, None if there is none.

    When only those are left that another call has begun, it is one of these: that call may have been killed, and which
    ones live is not known on other machines.
    """
    missing = set(points) - results(study).keys() - set(own)
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    # A call that was killed may have been about to write which point it had chosen.
    begun = {_point(trial) for trial in running if len(trial.params) == 2}
    # At random, as calls on other machines choose at the same moment.
    return random.choice(sorted(missing - begun or missing)) if missing else None


def _point(trial: optuna.trial.FrozenTrial) -> Point:
    return trial.params["frequency"], trial.params["seed"]


def train_and_test(sweep: Sweep, point: Point) -> tuple[float, float]:
    """Validation and test accuracy of a network."""
    torch.set_num_threads(1)
    frequency, seed = point
    train_split, validation, test = turned_digits(sweep.data, sweep.images, seed)
    network = train(frequency, seed, train_split, sweep.epochs)
    return accuracy(network, validation), accuracy(network, test)


def end_with_parent() -> None:
    """End this process when the one that started it does, however that ends: a worker would wait for work forever."""
    parent = parent_process()

    def wait_and_end() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=wait_and_end, daemon=True).start()


def train_missing(sweep: Sweep, study: optuna.Study, pool: Executor, workers: int) -> None:
    """Train until nothing is missing, each result on disk at once."""
    under_way: dict[Future[tuple[float, float]], tuple[Point, optuna.Trial]] = {}
    while True:
        own = [point for point, _ in under_way.values()]
        point = next_point(study, sweep.points(), own) if len(own) < workers else None
        if point is not None:
            frequency, seed = point
            only = {"frequency": FloatDistribution(frequency, frequency), "seed": IntDistribution(seed, seed)}
            under_way[pool.submit(train_and_test, sweep, point)] = point, study.ask(only)
            continue
        if not under_way:
            return
        for future in wait(under_way, return_when=FIRST_COMPLETED).done:
            (frequency, seed), trial = under_way.pop(future)
            value, test_accuracy = future.result()
            trial.set_user_attr("test accuracy", test_accuracy)
            study.tell(trial, value)
            print(f"ω′ = {frequency:g}, seed {seed}: {value:.2f} % of the validation images", flush=True)


def by_frequency(found: dict[Point, tuple[float, float]], sweep: Sweep, number: int) -> dict[float, list[float]]:
    """Accuracies of the seeds at each ω′: on validation images (0) or test images (1)."""
    return {w: [found[w, seed][number] for seed in range(sweep.seeds)] for w in sweep.frequencies}


def report(sweep: Sweep, study: optuna.Study) -> None:
    """The table, the choice, and the picture of both curves beside the storage."""
    found = results(study)
    validation, test = (by_frequency(found, sweep, number) for number in (0, 1))
    print("\nω′      validation, %    test, %")
    for frequency in sweep.frequencies:
        print(f"{frequency:<7g} {mean_and_error(validation[frequency]):<16} {mean_and_error(test[frequency])}")
    best = max(sweep.frequencies, key=lambda frequency: mean(validation[frequency]))
    print(f"\nchosen by validation: ω′ = {best:g}, {mean_and_error(test[best])} % of the test images")
    _, axes = pyplot.subplots(figsize=(3.3, 2.3), layout="constrained")
    for label, curve in (("validation", validation), ("test", test)):
        means = [mean(curve[frequency]) for frequency in sweep.frequencies]
        deviations = [stdev(curve[frequency]) if sweep.seeds > 1 else 0.0 for frequency in sweep.frequencies]
        errors = [deviation / math.sqrt(sweep.seeds) for deviation in deviations]
        axes.errorbar(sweep.frequencies, means, errors, label=label, marker="o", capsize=2.5)
    axes.set(xlabel="domain frequency ω′", ylabel="accuracy, %")
    axes.legend(frameon=False)
    axes.axvline(best, color="0.6", linewidth=0.8, linestyle="--", zorder=0)
    picture = sweep.storage.with_suffix(".png")
    axes.figure.savefig(picture, dpi=150)
    print(f"picture: {picture}")


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Choose ω′ by cross-validation.")
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files, downloaded where missing")
    parser.add_argument("--frequencies", type=float, nargs="+", default=list(FREQUENCIES), help="the grid of ω′")
    parser.add_argument("--seeds", type=int, default=5, help="networks at each ω′ (default: 5)")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--images", type=int, default=1000, help="for training and validation (default: 1000)")
    parser.add_argument("--storage", type=Path, default=Path("runs/sweep.journal"), help="file that keeps what is done")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes of one thread each")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, and report."""
    options = parse_arguments(arguments)
    sweep = Sweep(
        frequencies=tuple(dict.fromkeys(options.frequencies)),
        seeds=options.seeds,
        epochs=options.epochs,
        images=options.images,
        data=options.data,
        storage=options.storage,
    )
    study = sweep.study()
    # Forked processes would inherit the threads of torch.
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn"), initializer=end_with_parent) as pool:
        train_missing(sweep, study, pool, options.workers)
    report(sweep, study)


if __name__ == "__main__":
    main()
