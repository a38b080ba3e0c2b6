"""The measurements of speed run, on a CPU and tiny. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmark_runs import run_here

from benchmarks.speed import gpu


@pytest.mark.slow
def test_layers_are_measured(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    rows = "soft rotation, C4;peak memory, C4, 8 channels"
    table = run_here("speed.performance", "--rows", rows, "--repetitions", "1", "--json", str(figures)).splitlines()
    assert sum(line.startswith("| soft rotation, C4, 32 channels") for line in table) == 1
    # One more for the machine.
    assert len(json.loads(figures.read_text())) == 3
    assert " update of 10 images " in run_here("speed.evidence", "--images", "10", "--repetitions", "1")


@pytest.mark.slow
def test_every_side_is_measured_in_every_setting_on_a_gpu(tmp_path: Path) -> None:
    run_here("speed.gpu", "--smoke", "--parts", "speed", "--output", str(tmp_path))
    figures = json.loads((tmp_path / "gpu.json").read_text())
    others = list(gpu.sides(smoke=True))[1:]
    settings = gpu.settings("cpu", smoke=True)
    expected = [f"{name}: {side}" for name in settings for side in others if gpu.is_measured(side, name)]
    assert list(figures["speed"]) == expected
    assert not [name for name, of in figures["speed"].items() if "failed" in of]
    assert (tmp_path / "gpu.md").read_text().count("| soft rotation |") == len(settings)


@pytest.mark.slow
def test_tests_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all((gpu.ROOT / file).exists() for file in gpu.TESTS)
    # To collect those takes as long as to import all that they do.
    file = tmp_path / "test_nothing.py"
    file.write_text("def test_this():\n    pass\n\n\ndef test_that():\n    pass\n")
    monkeypatch.setattr(gpu, "TESTS", (str(file),))
    run_here("speed.gpu", "--smoke", "--parts", "tests", "--output", str(tmp_path))
    figures = json.loads((tmp_path / "gpu.json").read_text())
    assert figures["tests"]["status"] == 0
    assert "2 tests collected" in (tmp_path / "gpu.md").read_text()


def test_what_there_was_no_time_for_is_said(tmp_path: Path) -> None:
    run_here("speed.gpu", "--smoke", "--parts", "speed", "--minutes", "0", "--output", str(tmp_path))
    assert "No time was left in: speed." in (tmp_path / "gpu.md").read_text()
