"""The paper's tables from what runs and the benchmark of runtimes wrote: ours beside the published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .accuracy_tables import accuracy_table, chosen_table, curve_table, learned_table, published_table
from .cost_tables import cost_sections
from .data_files import save
from .results import Result, load_results

__all__ = ["report", "write_report"]

INTRODUCTION, MEANING, RUNTIMES = "introduction.md", "meaning.md", "runtimes.jsonl"
# What is said of tables, beside them: of all rows, of the ω′ that is chosen, of learned ones, of times.
ROWS, CHOSEN, LEARNED, TIMES = "rows.md", "chosen.md", "learned.md", "times.md"
PUBLISHED = (
    "The paper's test accuracies in %, of networks with 32 and 64 fields, all training images and 300 epochs: its "
    "rows with a fixed ω′, and with a learned ω′ two of six λ for 4 and 8 rotations. Compare signs with the "
    "tables above, and not sizes, because networks and training are smaller there."
)
GENERATED = "<!-- Written by `python -m experiments report`; do not edit. -->"


def write_report(folder: Path, output: Path) -> None:
    """Write :func:`report` to a file.

    Args:
        folder: of results.
        output: the file.

    Raises:
        DataError: for runs that are none of a row, or none at all.
        ValueError: for a file that is no log.
    """
    save(report(folder).encode(), output)


def report(folder: Path) -> str:
    """All tables, as Markdown.

    Args:
        folder: with logs of runs, ``paper.jsonl``, anywhere under it, and if there are such ``introduction.md``,
            ``runtimes.jsonl`` of ``benchmarks/speed/runtimes.py``, ``meaning.md``, and what is said beside tables.

    Raises:
        DataError: for runs that are none of a row, or none at all.
        ValueError: for a file that is no log.
    """
    results = load_results(folder)
    parts = [
        "# The paper's tables, on a small scale",
        GENERATED,
        *_text(folder / INTRODUCTION),
        "## Accuracy",
        *_text(folder / ROWS),
    ]
    scales: dict[str, list[Result]] = {}
    for result in results:
        scales.setdefault(repr(result.scale), []).append(result)
    for members in sorted(scales.values(), key=_place):
        parts += [f"### {_heading(members[0])}", _scale_text(members)]
        parts.append(accuracy_table([result for result in members if not result.is_overridden]))
        curve = curve_table(members)
        if curve:
            parts += ["Accuracy against ω′ of all layers, which is fixed:", curve]
            parts += [
                "The ω′ that is best on validation images, which the paper calls cross-validation:",
                chosen_table(members),
            ]
            parts += _text(folder / CHOSEN)
        learned = learned_table([result for result in members if not result.is_overridden])
        if learned:
            parts += ["Learned ω′ at the end of training, its mean over seeds:", learned, *_text(folder / LEARNED)]
    names = {result.row.name for result in results}
    parts += [*_text(folder / MEANING), "## Published", PUBLISHED, published_table(names)]
    return "\n\n".join([*parts, *cost_sections(folder / RUNTIMES), *_text(folder / TIMES)]) + "\n"


_TASK_TITLES = {
    "mnist6-180": "MNIST6-180",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "digits": "scikit-learn's digits",
}


def _heading(result: Result) -> str:
    augmented = ", augmented" if result.configuration.augment else ""
    return f"{_TASK_TITLES[result.configuration.task]}, {result.images['train']:,} images{augmented}"


def _place(members: Sequence[Result]) -> tuple[int, int, bool, int]:
    """Return the place on the page of the results of one scale: by data, fewer images first, augmented ones last."""
    scale, images = members[0].configuration, members[0].images["train"]
    return list(_TASK_TITLES).index(scale.task), images, scale.augment, scale.epochs


def _text(path: Path) -> list[str]:
    return [path.read_text(encoding="utf-8").strip()] if path.exists() else []


def _scale_text(members: Sequence[Result]) -> str:
    scale, images = members[0].configuration, members[0].images
    names = {"bf16-mixed": "bfloat16 mixed precision", "16-mixed": "float16 mixed precision", "32-true": "float32"}
    rows: dict[str, list[str]] = {}
    for member in members:
        rows.setdefault(names[member.configuration.precision], []).append(member.row.name.partition("-")[0].upper())
    precisions = [name if len(rows) == 1 else f"{name} ({', '.join(dict.fromkeys(of))})" for name, of in rows.items()]
    return (
        f"{images['train']:,} training, {images['validation']:,} validation and {images['test']:,} test images; "
        f"{scale.epochs} epochs, {scale.warmup_epochs} of them warm-up, in batches of {scale.batch_size}; Adam at "
        f"{scale.learning_rate:g}, weight decay {scale.weight_decay:g}; {'with' if scale.augment else 'no'} "
        f"augmentation; {scale.fields[0]} and {scale.fields[1]} fields in the blocks"
        f"{' as published' if scale.fields == (32, 64) else ', where the paper has 32 and 64'}; "
        f"{' and '.join(precisions)}."
    )
