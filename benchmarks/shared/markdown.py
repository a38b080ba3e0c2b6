"""Tables in Markdown, and their cells: means of seeds and differences."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, align_right: bool = False) -> str:
    """Return the lines of a table, without a line break at the end, and words where it has no rows.

    Args:
        header: names of the columns.
        rows: cells.
        align_right: aligns all columns but the first to the right.

    Example:
        >>> print(table(["row", "test, %"], [["soft", "42.45"]], align_right=True))
        | row | test, % |
        | --- | ---: |
        | soft | 42.45 |
    """
    if not rows:
        return "Nothing has been run."
    rule = ["---", *["---:" if align_right else "---"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def mean_and_error(values: Sequence[float]) -> str:
    """Return mean ± standard error of the mean, with two digits; of one value no error.

    Example:
        >>> mean_and_error([1.0, 2.0, 3.0])
        '2.00 ± 0.58'
    """
    error = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{error}"


def values_or_mean(values: Sequence[float]) -> str:
    """Return two values as they are, because their error says little, and of other numbers :func:`mean_and_error`.

    Example:
        >>> values_or_mean([61.2, 61.2])
        '61.20 and 61.20'
        >>> values_or_mean([1.0, 2.0, 3.0])
        '2.00 ± 0.58'
    """
    return " and ".join(f"{value:.2f}" for value in values) if len(values) == 2 else mean_and_error(values)


def cell(values: Sequence[float], seeds: int) -> str:
    """Return mean ± standard error; the number of values in brackets where it is another than that of the seeds."""
    if not values:
        return "–"
    return mean_and_error(values) + (f" ({len(values)})" if len(values) != seeds else "")


def signed(text: str) -> str:
    """Return a cell of differences with its sign."""
    text = text.replace("-", "−")
    return text if text[0] in "−–" else f"+{text}"


def with_blocks(page: str, benchmark: str, blocks: Mapping[str, str]) -> str:
    """Return a page whose blocks of a benchmark have these texts; a ``KeyError`` for one without a text.

    Example:
        >>> print(
        ...     with_blocks("<!-- speed: times -->\\nold\\n<!-- end -->", "speed", {"times": "new"})
        ... )
        <!-- speed: times -->
        new
        <!-- end -->
    """
    pattern = re.compile(rf"(<!-- {benchmark}: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda match: f"{match[1]}{blocks[match[2]]}\n{match[3]}", page)
