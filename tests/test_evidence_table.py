"""Tables of the evidence and of trials of hardening: sequences of rows whose text is a table."""

from __future__ import annotations

import pytest

from escnn_relaxed.learning import EvidenceRow, EvidenceTable, HardeningReport, HardeningTrial

ROWS = (EvidenceRow("first", "rotation", 40, 2.0, 1e-4, 300.0), EvidenceRow("second", "rotation", 8, 6.0, 0.02, 1.0))
TRIALS = (
    HardeningTrial("rotation", ("first", "second"), 48, 300.0, 12.0, 20.0, False),
    HardeningTrial("rotation", ("first",), 40, 1.25, 0.5, 3.0, True),
)


@pytest.mark.parametrize(("table", "rows"), [(EvidenceTable(ROWS), ROWS), (HardeningReport(TRIALS), TRIALS)])
def test_table_is_a_sequence_of_its_rows(table: EvidenceTable | HardeningReport, rows: tuple[object, ...]) -> None:
    assert len(table) == 2
    assert table[1] == rows[1]
    assert table[:1] == rows[:1]
    assert list(table) == list(rows)
    assert table.rows == rows
    assert type(table.rows) is tuple


def test_texts_are_tables() -> None:
    assert str(EvidenceTable(ROWS)).splitlines()[1:] == [
        "first   rotation  40         2.0           0.05  1.0e-04",
        "second  rotation  8          6.0           0.75  2.0e-02",
    ]
    assert str(HardeningReport(TRIALS)).splitlines()[1:] == [
        "rotation  2 layers  48         300.0 ± 12.0  20.0   soft",
        "rotation  first     40         1.2 ± 0.5     3.0    strict",
    ]
