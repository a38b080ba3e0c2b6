"""Tables of the study of the soft part: accuracies and errors by cell, growth of layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from escnn import gspaces
from escnn.nn import FieldType, R2Conv
from torch import nn

from benchmarks.shared.run_log import Log
from benchmarks.soft_part.forms import CELLS, FORMS, SMOKE, Run, rate_of, widths_of
from escnn_relaxed import RelaxedR2Conv
from experiments.mean_and_error import mean_and_error

__all__ = ["report"]

LAST_SEED = 30
# Of numbers of parameters that count as equal.
TOLERANCE = 0.035


@dataclass(frozen=True)
class Measure:
    """What is compared of a cell: the key of a result, and its factor."""

    key: str
    factor: float


def measures(cell: str) -> tuple[Measure, ...]:
    """Accuracy of digits; errors of smoke at the next frame and ten frames ahead, in per cent."""
    if cell in SMOKE:
        return Measure("test", 100.0), Measure("rollout", 100.0)
    return (Measure("test", 1.0),)


def results(cell: str, form: str, log: Log) -> dict[int, dict[str, Any]]:
    """Return what the log holds of networks with as many parameters as the strict one, by seed."""
    widths = widths_of(cell, form)
    runs = {seed: str(Run(cell, form, widths, rate_of(cell), seed)) for seed in range(LAST_SEED + 1)}
    found = {seed: log.runs[run] for seed, run in runs.items() if run in log.runs}
    if form == "strict":
        return found
    strict = results(cell, "strict", log)
    sizes = {result["parameters"] for result in strict.values()}
    return {
        seed: result
        for seed, result in found.items()
        if any(abs(result["parameters"] / size - 1) < TOLERANCE for size in sizes)
    }


def values_of(cell: str, form: str, measure: Measure, log: Log) -> list[float]:
    """A measure of every seed."""
    return [measure.factor * result[measure.key] for result in results(cell, form, log).values()]


def table(log: Log) -> str:
    """Markdown: mean ± standard error and the number of seeds, a row a cell and measure, a column a form."""
    rows = [(cell, measure) for cell in CELLS for measure in measures(cell)]
    rows = [(cell, measure) for cell, measure in rows if values_of(cell, "strict", measure, log)]
    forms = [form for form in FORMS if any(values_of(cell, form, measure, log) for cell, measure in rows)]
    lines = [f"| task | parameters | {' | '.join(forms)} |", "|---" * (len(forms) + 2) + "|"]
    for cell, measure in rows:
        found = [next(iter(results(cell, form, log).values()), None) for form in forms]
        parameters = " / ".join(f"{result['parameters']:,}" if result else "–" for result in found)
        values = [_cell(values_of(cell, form, measure, log)) for form in forms]
        lines.append(f"| {_label(cell, measure)} | {parameters} | {' | '.join(values)} |")
    return "\n".join(lines)


def _label(cell: str, measure: Measure) -> str:
    if cell not in SMOKE:
        return f"{cell}, %"
    return f"{cell}, {'ten frames, ' if measure.key == 'rollout' else ''}error in %"


def _cell(values: list[float]) -> str:
    return f"{mean_and_error(values)} ({len(values)})" if values else "–"


# Layers whose growth is told: gspace, fields in and out, and kernel size.
GROWTHS: tuple[tuple[str, str, int, int, int], ...] = (
    ("C8, lifting 1 → 4, 1×1", "C8", 0, 4, 1),
    ("C8, lifting 1 → 8, 7×7", "C8", 0, 8, 7),
    ("C8, 4 → 4, 3×3", "C8", 4, 4, 3),
    ("C8, 8 → 8, 5×5", "C8", 8, 8, 5),
    ("C8, 8 → 8, 1×1", "C8", 8, 8, 1),
    ("C8, 32 → 32, 5×5", "C8", 32, 32, 5),
    ("C4, 8 → 8, 5×5", "C4", 8, 8, 5),
    ("D4, 8 → 8, 3×3", "D4", 8, 8, 3),
    ("SO(2), 4 (16) × irreps 0–2, 5×5", "SO(2)", 4, 4, 5),
    ("plane, 32 → 32, 3×3", "plane", 32, 32, 3),
)


def growth_table() -> str:
    """Markdown: parameters of soft layers in proportion to ``R2Conv``'s."""
    lines = ["| layer | R2Conv | tied |", "|---|---|---|"]
    for name, group, ins, outs, size in GROWTHS:
        types = _fields(group, ins), _fields(group, outs)
        strict = _count(R2Conv(*types, size))
        soft = _count(RelaxedR2Conv(*types, size, relax={"translation" if group == "plane" else "rotation": 0.25}))
        lines.append(f"| {name} | {strict:,} | {soft / strict:.2f} |")
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
            table(log),
            "Parameters of a layer in proportion to `R2Conv`.",
            growth_table(),
        ]
    )
