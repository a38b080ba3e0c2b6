"""Tables of the study of the soft part: accuracies and errors by cell, who wins, growth of layers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from escnn import gspaces
from escnn.nn import FieldType, R2Conv
from torch import nn

from benchmarks.shared.run_log import Log
from benchmarks.soft_part.forms import CELLS, FORMS, GROWN, SMOKE, Run, can, rate_of, widths_of
from experiments.mean_and_error import mean_and_error

__all__ = ["report"]

LAST_SEED = 30
# Of numbers of parameters that count as equal.
TOLERANCE = 0.035


@dataclass(frozen=True)
class Measure:
    """What is compared of a cell: the key of a result, its factor, and whether more of it is better."""

    key: str
    factor: float
    sign: int


def measures(cell: str) -> tuple[Measure, ...]:
    """Accuracy of digits; errors of smoke at the next frame and ten frames ahead, in per cent."""
    if cell in SMOKE:
        return Measure("test", 100.0, -1), Measure("rollout", 100.0, -1)
    return (Measure("test", 1.0, 1),)


def results(cell: str, form: str, side: str, log: Log) -> dict[int, dict[str, Any]]:
    """What the log holds, by seed."""
    widths = widths_of(cell, form, side)
    runs = {seed: str(Run(cell, form, widths, rate_of(cell), seed)) for seed in range(LAST_SEED + 1)}
    found = {seed: log.runs[run] for seed, run in runs.items() if run in log.runs}
    if side == "same" or form.startswith("strict"):
        return found
    strict = results(cell, "strict", "same", log)
    sizes = {result["parameters"] for result in strict.values()}
    return {
        seed: result
        for seed, result in found.items()
        if any(abs(result["parameters"] / size - 1) < TOLERANCE for size in sizes)
    }


def values_of(cell: str, form: str, side: str, measure: Measure, log: Log) -> list[float]:
    """A measure of every seed."""
    return [measure.factor * result[measure.key] for result in results(cell, form, side, log).values()]


def table(side: str, log: Log) -> str:
    """Markdown: mean ± standard error and the number of seeds, a row a cell and measure, a column a form."""
    rows = [(cell, measure) for cell in CELLS for measure in measures(cell)]
    rows = [(cell, measure) for cell, measure in rows if values_of(cell, "strict", "same", measure, log)]
    forms = [form for form in FORMS if any(values_of(cell, form, side, measure, log) for cell, measure in rows)]
    lines = [f"| task | parameters | {' | '.join(forms)} |", "|---" * (len(forms) + 2) + "|"]
    for cell, measure in rows:
        found = [next(iter(results(cell, form, side, log).values()), None) for form in forms]
        parameters = " / ".join(f"{result['parameters']:,}" if result else "–" for result in found)
        values = [_cell(values_of(cell, form, side, measure, log)) for form in forms]
        lines.append(f"| {_label(cell, measure)} | {parameters} | {' | '.join(values)} |")
    return "\n".join(lines)


def _label(cell: str, measure: Measure) -> str:
    if cell not in SMOKE:
        return f"{cell}, %"
    return f"{cell}, {'ten frames, ' if measure.key == 'rollout' else ''}error in %"


def _cell(values: list[float]) -> str:
    return f"{mean_and_error(values)} ({len(values)})" if values else "–"


def verdict(side: str, log: Log, least: int) -> str:
    """Markdown: of each form, in how many rows it is the best, and how far it is from strict at worst.

    Args:
        side: ``same`` or ``equal``.
        log: the runs.
        least: a row counts for a form with as many seeds.
    """
    best: dict[str, int] = {}
    gaps: dict[str, list[tuple[float, str]]] = {}
    for cell in CELLS:
        for measure in measures(cell):
            found = {form: values_of(cell, form, side, measure, log) for form in FORMS}
            found = {form: values for form, values in found.items() if len(values) >= least}
            if "strict" not in found:
                continue
            means = {form: measure.sign * statistics.fmean(values) for form, values in found.items()}
            winner = max(means, key=lambda form: means[form])
            best[winner] = best.get(winner, 0) + 1
            for form, values in found.items():
                error = math.sqrt(_square_error(values) + _square_error(found["strict"]))
                distance = (means[form] - means["strict"]) / max(error, 1e-9)
                gaps.setdefault(form, []).append((distance, _label(cell, measure)))
    lines = ["| form | rows | best in | ahead of strict in | least distance from strict, in standard errors |"]
    lines.append("|---|---|---|---|---|")
    for form, distances in gaps.items():
        if form != "strict":
            worst, where = min(distances)
            ahead = sum(distance > 0 for distance, _ in distances)
            lines.append(f"| {form} | {len(distances)} | {best.get(form, 0)} | {ahead} | {worst:+.1f} ({where}) |")
    return "\n".join(lines)


def _square_error(values: Sequence[float]) -> float:
    """The square of the standard error of the mean."""
    return statistics.variance(values) / len(values)


# Layers whose growth is looked at: gspace, fields in and out, kernel size, and the most that is wanted.
GROWTHS: tuple[tuple[str, str, int, int, int, float], ...] = (
    ("C8, lifting 1 → 4, 1×1", "C8", 0, 4, 1, 2.0),
    ("C8, lifting 1 → 8, 7×7", "C8", 0, 8, 7, 1.3),
    ("C8, 4 → 4, 3×3", "C8", 4, 4, 3, 1.12),
    ("C8, 8 → 8, 5×5", "C8", 8, 8, 5, 1.05),
    ("C8, 8 → 8, 1×1", "C8", 8, 8, 1, 1.35),
    ("C8, 32 → 32, 5×5", "C8", 32, 32, 5, 1.05),
    ("C4, 8 → 8, 5×5", "C4", 8, 8, 5, 1.1),
    ("D4, 8 → 8, 3×3", "D4", 8, 8, 3, 1.1),
    ("SO(2), 4 (16) × irreps 0–2, 5×5", "SO(2)", 4, 4, 5, 1.35),
    ("plane, 32 → 32, 3×3", "plane", 32, 32, 3, 1.5),
)


def growth_table(forms: Sequence[str]) -> str:
    """Markdown: parameters of layers in proportion to ``R2Conv``'s."""
    lines = [f"| layer | R2Conv | at most | {' | '.join(forms)} |", "|---" * (len(forms) + 3) + "|"]
    for name, group, ins, outs, size, most in GROWTHS:
        in_type, out_type = _fields(group, ins), _fields(group, outs)
        strict = _count(R2Conv(in_type, out_type, size))
        cells = []
        for form in forms:
            if group in ("SO(2)", "plane") and not can(form, group):
                cells.append("–")
                continue
            options = FORMS[form].options_in({"plane": "plain CNN"}.get(group, group)) or {}
            cells.append(f"{_count(FORMS[form].layer(in_type, out_type, size, **options)) / strict:.2f}")
        lines.append(f"| {name} | {strict:,} | {most:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _fields(group: str, count: int) -> FieldType:
    """Regular fields, of no group trivial ones, of SO(2) irreps 0 to 2; without a number one trivial field."""
    gspace = {
        "C8": lambda: gspaces.rot2dOnR2(8),
        "C4": lambda: gspaces.rot2dOnR2(4),
        "D4": lambda: gspaces.flipRot2dOnR2(4),
        "SO(2)": lambda: gspaces.rot2dOnR2(-1, maximum_frequency=3),
        "plane": gspaces.trivialOnR2,
    }[group]()
    if group == "SO(2)":
        return FieldType(gspace, [gspace.irrep(frequency) for frequency in (0, 1, 2)] * count)
    field = gspace.trivial_repr if count == 0 or group == "plane" else gspace.regular_repr
    return FieldType(gspace, [field] * max(count, 1))


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def report(log: Log) -> str:
    """All tables."""
    return "\n\n".join(
        [
            "At equal parameters, within 3.5 %, mean ± standard error (seeds).",
            table("equal", log),
            "Rows in which a form and strict have two seeds or more.",
            verdict("equal", log, 2),
            "Parameters of a layer in proportion to `R2Conv`.",
            growth_table(GROWN),
        ]
    )
