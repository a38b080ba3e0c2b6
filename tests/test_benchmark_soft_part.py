"""The study of the soft part's form: its networks are of one size, and its runs are trained once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmark_runs import run_here

from benchmarks.shared.run_log import Log
from benchmarks.soft_part import forms as soft_part_forms
from benchmarks.soft_part import report as soft_part_report
from benchmarks.soft_part import study


@pytest.mark.parametrize("form", ["strict", "tied", "net, J = 2"])
def test_networks_of_the_equal_side_have_as_many_parameters(form: str) -> None:
    for network in ("C4 regular", "smoke"):
        cell = next(cell for cell in soft_part_forms.CELLS if soft_part_forms.network_of(cell) == network)
        strict, one = (
            sum(
                p.numel()
                for p in soft_part_forms.build(f, network, soft_part_forms.widths_of(cell, f, "equal")).parameters()
            )
            for f in ("strict", form)
        )
        assert abs(one / strict - 1) < 0.035


def test_a_second_call_trains_nothing_and_tells_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "IMAGES", 64)
    monkeypatch.setattr(study, "VALIDATION", 32)
    monkeypatch.setattr(study, "EPOCHS", 1)
    monkeypatch.setattr(soft_part_forms, "WIDTHS", {**soft_part_forms.WIDTHS, "C4 regular": (1, 1, 1, 1)})
    monkeypatch.setattr(soft_part_report, "GROWTHS", soft_part_report.GROWTHS[:1])
    arguments = ["--cells", "C4, upright", "--forms", "strict;tied", "--output", str(tmp_path)]
    first = run_here("soft_part.study", *arguments)
    assert "tied" in (tmp_path / "table.md").read_text()
    runs = Log(tmp_path / "runs.jsonl").runs
    assert len(runs) == 2
    assert {json.loads(run)["form"] for run in runs} == {"strict", "tied"}
    again = run_here("soft_part.study", *arguments)
    assert again.strip() in first
    assert run_here("soft_part.study", "--report", "--output", str(tmp_path)) == again
