"""The paper's tables from what runs and the benchmark of runtimes wrote: ours beside the published numbers."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .configuration import Configuration, Row, read_row, row_names
from .data_files import DataError, save

__all__ = ["Result", "load_results", "mean_and_error", "report", "write_report"]

# What a row is; all else of a configuration is the scale it was run at.
OF_THE_ROW = (
    "rotations",
    "layer",
    "relax",
    "learn_relaxation",
    "penalty_weight",
    "penalty",
    "lifting_kernel_size",
    # Only so that a row that cannot be run in mixed precision has its place beside the others.
    "precision",
)
INTRODUCTION, MEANING, RUNTIMES = "introduction.md", "meaning.md", "runtimes.json"
GENERATED = "<!-- Written by `python -m escnn_relaxed.experiments report`; do not edit. -->"


@dataclass(frozen=True)
class Result:
    """What a run gave.

    Attributes:
        row: of the paper's tables.
        configuration: what was run, overrides included.
        seed: of the run.
        parameters: number of parameters.
        images: split → number of images.
        validation: accuracy on held-out images in %.
        test: accuracy on test images in %.
        epochs: what each epoch gave.
    """

    row: Row
    configuration: Configuration
    seed: int
    parameters: int
    images: Mapping[str, int]
    validation: float
    test: float
    epochs: Sequence[Mapping[str, float]]

    @property
    def seconds(self) -> float:
        """CPU seconds of training."""
        return sum(epoch["seconds"] for epoch in self.epochs)

    @property
    def is_overridden(self) -> bool:
        """Whether ω′ is another than that of the row."""
        return self.configuration.relax != self.row.configuration.relax

    @property
    def scale(self) -> Configuration:
        """The configuration without what is the row's."""
        names = [entry.name for entry in fields(Configuration) if entry.name not in OF_THE_ROW]
        return Configuration(rotations=1, **{name: getattr(self.configuration, name) for name in names})


def load_results(folder: Path) -> list[Result]:
    """All ``result.json`` under a folder, in the order of the rows and seeds.

    Raises:
        DataError: for a file that is not one, or a folder without any.
    """
    results = []
    for path in sorted(folder.rglob("result.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            results.append(
                Result(
                    read_row(content["row"]),
                    Configuration(**content["configuration"]),
                    content["seed"],
                    content["parameters"],
                    content["images"],
                    content["validation_accuracy"],
                    content["test_accuracy"],
                    content["epochs"],
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} is not the result of a run: {error!r}") from error
    if not results:
        raise DataError(f"{folder} holds no result.json: train rows with --output {folder} first")
    order = {name: number for number, name in enumerate(row_names())}
    return sorted(results, key=lambda result: (order[result.row.name], result.seed))


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard error; None for the error of one value.

    Example:
        >>> mean_and_error([1.0, 2.0, 3.0])
        (2.0, 0.5773502691896258)
    """
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error


def write_report(folder: Path, output: Path) -> None:
    """Write :func:`report` to a file.

    Args:
        folder: of results.
        output: the file.

    Raises:
        DataError: for results that cannot be read.
    """
    save(report(folder).encode(), output)


def report(folder: Path) -> str:
    """All tables, as Markdown.

    Args:
        folder: with ``result.json`` of runs anywhere under it, and if there are such ``introduction.md``,
            ``runtimes.json`` of ``benchmarks/runtimes.py``, and ``meaning.md``.

    Raises:
        DataError: for results that cannot be read.
    """
    results = load_results(folder)
    parts = [
        "# The paper's tables, run again",
        GENERATED,
        *_text(folder / INTRODUCTION),
        *_cost(folder / RUNTIMES),
        "## Accuracy",
    ]
    scales: dict[str, list[Result]] = {}
    for result in results:
        scales.setdefault(repr(result.scale), []).append(result)
    for members in sorted(scales.values(), key=_place):
        images, task = members[0].images["train"], members[0].configuration.task
        parts += [f"### {_TASK_TITLES[task]}, {images:,} images", _scale_text(members[0])]
        parts.append(_accuracy_table([result for result in members if not result.is_overridden]))
        curve = _curve_table(members)
        if curve:
            parts += ["Accuracy against ω′ of all layers, which is fixed:", curve]
    return "\n\n".join([*parts, *_text(folder / MEANING)]) + "\n"


_ON_CIFAR100 = "On CIFAR-100 each has 5,850 more: the linear layer has 100 classes in place of 10."
_TASK_TITLES = {
    "mnist6-180": "MNIST6-180",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "digits": "scikit-learn's digits",
}


def _place(members: Sequence[Result]) -> tuple[int, int]:
    """Of the results of one scale on the page: by data, fewer images first."""
    first = members[0]
    return list(_TASK_TITLES).index(first.configuration.task), first.images["train"]


def _text(path: Path) -> list[str]:
    return [path.read_text(encoding="utf-8").strip()] if path.exists() else []


def _cost(path: Path) -> list[str]:
    """Parameters and runtimes, where they were measured."""
    if not path.exists():
        return []
    measured = json.loads(path.read_text(encoding="utf-8"))
    rows = measured["rows"]
    parameters = ["## Parameters", _parameter_table(rows), _ON_CIFAR100]
    return [*parameters, "## Runtimes", measured["settings"], _runtime_table(rows)]


def _scale_text(result: Result) -> str:
    scale, images = result.configuration, result.images
    return (
        f"{images['train']:,} training, {images['validation']:,} validation and {images['test']:,} test images; "
        f"{scale.epochs} epochs, {scale.warmup_epochs} of them warm-up, in batches of {scale.batch_size}; Adam at "
        f"{scale.learning_rate:g}, weight decay {scale.weight_decay:g}; {'with' if scale.augment else 'no'} "
        f"augmentation; {scale.fields[0]} and {scale.fields[1]} fields in the blocks"
        f"{' as published' if scale.fields == (32, 64) else ', where the paper has 32 and 64'}."
    )


def _accuracy_table(results: Sequence[Result]) -> str:
    lines = []
    for name in dict.fromkeys(result.row.name for result in results):
        same = [result for result in results if result.row.name == name]
        configuration = same[0].configuration
        key = configuration.task + ("-augmented" if configuration.augment else "")
        lines.append(
            [
                same[0].row.title,
                _accuracy([result.test for result in same]),
                _accuracy([result.validation for result in same]),
                str(len(same)),
                _published(same[0].row.published.get(key)),
                f"{same[0].parameters:,}",
                f"{statistics.fmean(result.seconds for result in same):.0f}",
                "bf16" if configuration.precision == "bf16-mixed" else "float32",
            ]
        )
    header = "row", "test, %", "validation, %", "seeds", "published, %", "parameters", "CPU s", "precision"
    return _markdown(header, lines)


def _curve_table(results: Sequence[Result]) -> str:
    """A line for each ω′ of the rows that were run at several, with the corrected strict row as ω′ = 0; else empty."""
    lines = []
    for name in dict.fromkeys(result.row.name for result in results if result.is_overridden):
        own = [
            result for result in results if result.row.name in (name, f"{name.removesuffix('soft')}strict-corrected")
        ]
        by_frequency: dict[float, list[Result]] = {}
        for result in own:
            by_frequency.setdefault(_frequency(result.configuration), []).append(result)
        for frequency, same in sorted(by_frequency.items()):
            accuracies = (_accuracy([getattr(result, split) for result in same]) for split in ("test", "validation"))
            lines.append([read_row(name).title, f"{frequency:g}", *accuracies, str(len(same))])
    return _markdown(("row", "ω′", "test, %", "validation, %", "seeds"), lines) if lines else ""


def _frequency(configuration: Configuration) -> float:
    relax = configuration.relax
    return max(relax.values()) if isinstance(relax, Mapping) else 0.0


def _parameter_table(rows: Mapping[str, Any]) -> str:
    lines = []
    for name, row in rows.items():
        published = read_row(name).published["parameters"]
        lines.append([read_row(name).title, f"{row['parameters']:,}", f"{published:,}"])
    return _markdown(("row", "ours, CIFAR-10", "published"), lines)


def _runtime_table(rows: Mapping[str, Any]) -> str:
    first = read_row(next(iter(rows))).published["seconds"]
    lines = []
    for name, row in rows.items():
        row_of_paper = read_row(name)
        published = [
            f"{own / of_cnn:.1f}" for own, of_cnn in zip(row_of_paper.published["seconds"], first, strict=True)
        ]
        ours = [f"{row[kind]['median']:.1f} ({row[kind]['low']:.1f} to {row[kind]['high']:.1f})" for kind in _KINDS]
        lines.append([row_of_paper.title, ours[0], published[0], ours[1], published[1]])
    return _markdown(("row", "train", "train, published", "inference", "inference, published"), lines)


_KINDS = ("train", "inference")


def _accuracy(values: Sequence[float]) -> str:
    mean, error = mean_and_error(values)
    return f"{mean:.2f}" if error is None else f"{mean:.2f} ± {error:.2f}"


def _published(values: Sequence[float] | None) -> str:
    return "" if values is None else " ± ".join(f"{value:.2f}" for value in values)


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---" if column == 0 else "---:" for column in range(len(header))]
    rows = [header, rule, *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in rows)
