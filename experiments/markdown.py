"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["markdown_table"]


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table, its first column to the left and the others to the right.

    Example:
        >>> print(markdown_table(["row", "test, %"], [["soft", "42.45"]]))
        | row | test, % |
        | --- | ---: |
        | soft | 42.45 |
    """
    rule = ["---" if column == 0 else "---:" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *lines])
