"""Tables as text, and for rich."""

from __future__ import annotations

import pytest

from escnn_relaxed.measure.tables import plain_table, rich_table

HEADER = ("layer", "s")
LINES = (("body.first", "0.1"), ("b", "0.25"))


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert plain_table(HEADER, LINES) == "layer       s\nbody.first  0.1\nb           0.25"


def test_table_without_lines_is_its_header() -> None:
    assert plain_table(HEADER, ()) == "layer  s"


def test_rich_has_the_same_cells() -> None:
    pytest.importorskip("rich")
    table = rich_table(HEADER, LINES)
    assert [column.header for column in table.columns] == [*HEADER]
    assert [list(column.cells) for column in table.columns] == [["body.first", "b"], ["0.1", "0.25"]]
