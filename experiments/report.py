"""The paper's tables from what runs and the benchmark of runtimes wrote: ours beside the published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .configuration import Configuration, read_row
from .data_files import read_json, save
from .mean_and_error import mean_and_error
from .results import Result, load_results

__all__ = ["report", "write_report"]

INTRODUCTION, MEANING, RUNTIMES = "introduction.md", "meaning.md", "runtimes.json"
GENERATED = "<!-- Written by `python -m experiments report`; do not edit. -->"


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
            ``runtimes.json`` of ``benchmarks/speed/runtimes.py``, and ``meaning.md``.

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
    """Return the place on the page of the results of one scale: by data, fewer images first."""
    first = members[0]
    return list(_TASK_TITLES).index(first.configuration.task), first.images["train"]


def _text(path: Path) -> list[str]:
    return [path.read_text(encoding="utf-8").strip()] if path.exists() else []


def _cost(path: Path) -> list[str]:
    """Parameters and runtimes, where they were measured."""
    if not path.exists():
        return []
    measured = read_json(path)
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
        f"{' as published' if scale.fields == (32, 64) else ', where the paper has 32 and 64'}; "
        f"{'bfloat16' if scale.precision == 'bf16-mixed' else 'float32'}."
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
                mean_and_error([result.test for result in same]),
                str(len(same)),
                _published(same[0].row.published.get(key)),
                f"{same[0].parameters:,}",
            ]
        )
    header = "row", "test, %", "seeds", "published, %", "parameters"
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
            accuracies = (
                mean_and_error([getattr(result, split) for result in same]) for split in ("test", "validation")
            )
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
    cnn, *_ = rows
    first = read_row(cnn).published["seconds"]
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


def _published(values: Sequence[float] | None) -> str:
    return "" if values is None else " ± ".join(f"{value:.2f}" for value in values)


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---" if column == 0 else "---:" for column in range(len(header))]
    rows = [header, rule, *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in rows)
