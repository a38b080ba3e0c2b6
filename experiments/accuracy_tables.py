"""Tables of accuracies: of each row, against ω′, at the ω′ chosen on validation images, learned ω′, published ones."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence

from benchmarks.shared.markdown import table, values_or_mean

from .configuration import Configuration
from .results import Result
from .rows import ROWS, find_row

__all__ = ["accuracy_table", "chosen_table", "curve_table", "learned_table", "published_table"]

# ω′ of each subgroup, of translation the larger one.
_Frequencies = tuple[tuple[str, float], ...]


def accuracy_table(results: Sequence[Result]) -> str:
    """A line for each row: test accuracy, number of seeds, number of parameters."""
    lines = []
    for title in dict.fromkeys(result.title for result in results):
        same = [result for result in results if result.title == title]
        accuracy = values_or_mean([result.test for result in same])
        lines.append([title, accuracy, str(len(same)), f"{same[0].parameters:,}"])
    return table(("row", "test, %", "seeds", "parameters"), lines, align_right=True)


def curve_table(results: Sequence[Result]) -> str:
    """A line for each ω′ of the rows that were run at several, with the strict row as ω′ = 0; else empty."""
    lines = []
    for title, curve in _curves(results).items():
        for frequencies, same in curve.items():
            accuracies = (values_or_mean([getattr(of, split) for of in same]) for split in ("test", "validation"))
            lines.append([title, _in_words(frequencies), *accuracies, str(len(same))])
    return table(("row", "ω′", "test, %", "validation, %", "seeds"), lines, align_right=True) if lines else ""


def chosen_table(results: Sequence[Result]) -> str:
    """A line for each row that was run at several ω′: the one that is best on validation images; else empty."""
    lines = []
    for title, curve in _curves(results).items():
        best = max(curve, key=lambda of: statistics.fmean(result.validation for result in curve[of]))
        lines.append([title, _in_words(best), values_or_mean([result.test for result in curve[best]])])
    return table(("row", "ω′", "test, %"), lines, align_right=True) if lines else ""


def learned_table(results: Sequence[Result]) -> str:
    """A line for each row that learns ω′: its size at the end in each layer, a mean over seeds and axes; else empty."""
    lines = []
    for title in dict.fromkeys(result.title for result in results if result.configuration.learn_relaxation):
        of_runs = [_learned(result.epochs[-1]) for result in results if result.title == title]
        layers = [statistics.fmean(sizes) for sizes in zip(*of_runs, strict=True)]
        lines.append([title, *(f"{size:.2f}" for size in layers)])
    layers_of_network = max((len(line) for line in lines), default=1) - 1
    header = ["row", *(f"layer {number}" for number in range(1, layers_of_network + 1))]
    return table(header, lines, align_right=True) if lines else ""


def _learned(epoch: Mapping[str, float]) -> list[float]:
    """Return the size of ω′ of each layer, from what an epoch logged, in the order of the network."""
    sizes: dict[str, list[float]] = {}
    for name, value in epoch.items():
        kind, _, rest = name.partition("/")
        if kind == "domain_frequency":
            sizes.setdefault(rest.rpartition("/")[0], []).append(abs(value))
    return [statistics.fmean(of_layer) for of_layer in sizes.values()]


def published_table(names: Collection[str]) -> str:
    """The paper's accuracies: mean and standard error of three seeds.

    Args:
        names: of rows that are in the table beside those of the paper's first one.
    """
    lines = []
    for row in ROWS.values():
        cells = [_published(row.published.get(task)) for task in _PUBLISHED]
        is_of_first = "seconds" in row.published
        if any(cells) and (is_of_first or row.name in names):
            lines.append([row.title, *cells])
    return table(("row", *_PUBLISHED.values()), lines, align_right=True)


_PUBLISHED = {
    "mnist6-180": "MNIST6-180",
    "cifar10": "CIFAR-10",
    "cifar10-augmented": "CIFAR-10, augmented",
    "cifar100": "CIFAR-100",
    "cifar100-augmented": "CIFAR-100, augmented",
}


def _published(values: Sequence[float] | None) -> str:
    return "" if values is None else " ± ".join(f"{value:.2f}" for value in values)


def _curves(results: Sequence[Result]) -> dict[str, dict[_Frequencies, list[Result]]]:
    """Return title → ω′ → results, of the rows that were run at another ω′ than their own and else unchanged."""
    unchanged = [result for result in results if result.title == result.row.title]
    curves = {}
    for name in dict.fromkeys(result.row.name for result in unchanged if result.is_overridden):
        # T(2) has no shortcut that a strict network lacks.
        strict = "t2-strict" if name == "t2-soft" else f"{name.removesuffix('soft')}strict-corrected"
        curve: dict[_Frequencies, list[Result]] = {}
        for result in unchanged:
            if result.row.name in (name, strict):
                curve.setdefault(_frequencies(result.configuration), []).append(result)
        curves[find_row(name).title] = dict(sorted(curve.items(), key=lambda entry: [of for _, of in entry[0]]))
    return curves


def _frequencies(configuration: Configuration) -> _Frequencies:
    """Return ω′ of the subgroups in which the network is soft."""
    relax = configuration.relax
    if not isinstance(relax, Mapping):
        return ()
    sizes = {name: max(value) if isinstance(value, Sequence) else value for name, value in relax.items()}
    return tuple((name, size) for name, size in sizes.items() if size)


def _in_words(frequencies: _Frequencies) -> str:
    if len(frequencies) > 1:
        return ", ".join(f"{name} {value:g}" for name, value in frequencies)
    return f"{frequencies[0][1]:g}" if frequencies else "0"
