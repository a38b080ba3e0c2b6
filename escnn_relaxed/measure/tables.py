"""Tables as text, and for ``rich`` where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["plain_table", "rich_table"]


def plain_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return columns of equal width as text, a row for each of ``lines``; cells may be of several lines."""
    rows = [[cell.split("\n") for cell in line] for line in (header, *lines)]
    cells = [line for row in rows for line in zip_longest(*row, fillvalue="")]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(line.rstrip() for line in padded)


def rich_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    """Return the same table for ``rich.print``.

    Raises:
        ModuleNotFoundError: where ``rich`` is not installed.
    """
    from rich.table import Table

    table = Table(*header)
    for line in lines:
        table.add_row(*line)
    return table
