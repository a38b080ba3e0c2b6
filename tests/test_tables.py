"""Tables as text."""

from __future__ import annotations

from escnn_relaxed.measure.reports import plain_table

HEADER = ("layer", "s")
LINES = (("body.first", "0.1"), ("b", "0.25"))


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert plain_table(HEADER, LINES) == "layer       s\nbody.first  0.1\nb           0.25"


def test_table_without_lines_is_its_header() -> None:
    assert plain_table(HEADER, ()) == "layer  s"
