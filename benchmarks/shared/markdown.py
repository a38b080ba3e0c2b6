"""Tables in Markdown, and their cells: means of seeds and differences."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.mean_and_error import mean_and_error


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the lines of a table, without a line break at the end, and words where it has no rows."""
    if not rows:
        return "Nothing has been run."
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
