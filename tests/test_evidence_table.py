"""Tables of the evidence and of trials of hardening: sequences of rows whose text is a table."""

from __future__ import annotations

import html
import json
import re
from dataclasses import asdict

import pytest

from escnn_relaxed.learning import EvidenceRow, EvidenceTable, HardeningReport, HardeningTrial
from escnn_relaxed.measure import (
    AblationReport,
    AblationRow,
    AgreementReport,
    AgreementRow,
    EquivarianceReport,
    ErrorRow,
    LayerSummary,
    RelaxationSummary,
)

ROWS = (EvidenceRow("first", "rotation", 40, 2.0, 1e-4, 300.0), EvidenceRow("second", "rotation", 8, 6.0, 0.02, 1.0))
TRIALS = (
    HardeningTrial("rotation", ("first", "second"), 48, 8.0, 20.0, 43.0, 300.0, 12.0, False),
    HardeningTrial("rotation", ("first",), 40, 2.0, 3.0, 9.0, 1.25, 0.5, True),
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
        "first     rotation  40         2.0           0.05  1.0e-04",
        "second    rotation  8          6.0           0.75  2.0e-02",
        "2 layers  rotation  48         8.0           0.17  2.0e-02",
    ]
    assert str(EvidenceTable(ROWS[:1])).count("\n") == 1  # one row is its own sum
    assert str(HardeningReport(TRIALS)).splitlines()[1:] == [
        "rotation  2 layers  48         8.0           20.0          43.0      300.0 ± 12.0  soft",
        "rotation  first     40         2.0           3.0           9.0       1.2 ± 0.5     strict",
    ]


def test_tables_have_the_sums_of_each_subgroup_and_of_all() -> None:
    table = EvidenceTable((*ROWS, EvidenceRow("second", "reflection", 4, 1.0, 0.3, 1.0)))
    sums = [
        "2 layers  rotation    48         8.0           0.17  2.0e-02",
        "all       all         52         9.0           0.17  3.0e-01",
    ]
    assert str(table).splitlines()[4:] == sums
    short = [sums[0], "second    reflection  4          1.0           0.25  3.0e-01", sums[1]]
    assert str(table.by_subgroup()).splitlines()[1:] == short
    # Sums are of the text alone, or whoever adds up rows would count weights twice.
    assert [len(rows) for rows in (table, table.by_subgroup())] == [3, 2]


TURN, SAME = (
    ("rotation 90°", "rotation", 1.57, "exact", 0.5, 0.0),
    ("rotation 90°", "rotation", 1.57, "exact", 0.5, 1.0),
)
REPORTS = {
    "evidence": EvidenceTable(ROWS),
    "hardening": HardeningReport(TRIALS),
    "errors": EquivarianceReport("<layer>", (ErrorRow(*TURN),)),
    "agreement": AgreementReport((AgreementRow(*SAME),), orbit=0.5),
    "ablation": AblationReport((AblationRow("nothing", "network", 1.0, 0.0, 0.01),)),
    "summary": RelaxationSummary(
        (LayerSummary("conv", "1 regular -> 1 regular", {}, {"all": 0.0}),), {"R2Conv": ("1",)}
    ),
}


@pytest.mark.parametrize("name", REPORTS)
def test_reports_are_dicts_and_html(name: str) -> None:
    report = REPORTS[name]
    found = json.loads(json.dumps(report.to_dict()))
    assert found["rows"] == json.loads(json.dumps([asdict(row) for row in report.rows]))
    assert found.get("orbit", 0.5) == 0.5
    assert found.get("strict", {}) == ({"R2Conv": ["1"]} if name == "summary" else {})
    text = re.fullmatch("<pre>(.*)</pre>", report._repr_html_(), re.DOTALL)
    assert text is not None
    assert html.unescape(text[1]) == str(report)
    assert "->" not in text[1]
