"""Tables in Markdown, and their cells: means of seeds and differences."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from experiments.mean_and_error import mean_and_error

__all__ = ["cell", "filled", "listed_rates", "signed", "table"]

LINE = 140


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the lines of a table, without a line break at the end."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows))


def cell(values: Sequence[float], seeds: int) -> str:
    """Return mean ± standard error; the number of values in brackets where it is another than that of the seeds."""
    if not values:
        return "–"
    return mean_and_error(values) + (f" ({len(values)})" if len(values) != seeds else "")


def signed(text: str) -> str:
    """Return a cell of differences with its sign."""
    text = text.replace("-", "−")
    return text if text[0] in "−–" else f"+{text}"


def filled(text: str) -> str:
    """Return a text in lines of one width; those that are indented are left."""
    parts = text.strip("\n").split("\n\n")
    return "\n\n".join(part if part.startswith(" ") else textwrap.fill(" ".join(part.split()), LINE) for part in parts)


def listed_rates(rates: Mapping[str, float]) -> str:
    """Return each learning rate with the layers that have it."""
    layers = {rate: [f"`{name}`" for name, other in rates.items() if other == rate] for rate in sorted(rates.values())}
    return "; ".join(f"{rate:g} for {', '.join(names)}" for rate, names in layers.items())
