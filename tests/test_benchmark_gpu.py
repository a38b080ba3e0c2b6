"""The measurements on a GPU also run on a CPU, tiny. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmark_runs import run_here
from escnn import gspaces
from escnn.nn import FieldType

from benchmarks.speed import gpu
from benchmarks.speed.region_loop import RegionLoop
from escnn_relaxed import RelaxedR2Conv


@pytest.mark.slow
def test_every_side_is_measured_in_every_setting(tmp_path: Path) -> None:
    run_here("speed.gpu", "--smoke", "--parts", "speed", "--output", str(tmp_path))
    figures = json.loads((tmp_path / "gpu.json").read_text())
    others = list(gpu.sides(smoke=True))[1:]
    expected = [
        f"{name}: {side}" for name in gpu.settings("cpu", smoke=True) for side in others if gpu.is_measured(side, name)
    ]
    assert list(figures["speed"]) == expected
    assert not [name for name, of in figures["speed"].items() if "failed" in of]
    assert (tmp_path / "gpu.md").read_text().count("| soft rotation |") == len(gpu.settings("cpu", smoke=True))


@pytest.mark.slow
def test_tests_are_found_and_a_network_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all((gpu.ROOT / file).exists() for file in gpu.TESTS)
    # To collect those takes as long as to import all that they do.
    file = tmp_path / "test_nothing.py"
    file.write_text("def test_this():\n    pass\n\n\ndef test_that():\n    pass\n")
    monkeypatch.setattr(gpu, "TESTS", (str(file),))
    run_here("speed.gpu", "--smoke", "--parts", "tests", "training", "--output", str(tmp_path))
    figures = json.loads((tmp_path / "gpu.json").read_text())
    assert [figures[part]["status"] for part in ("tests", "training")] == [0, 0]
    assert "2 tests collected" in (tmp_path / "gpu.md").read_text()


def test_what_there_was_no_time_for_is_said(tmp_path: Path) -> None:
    run_here("speed.gpu", "--smoke", "--parts", "speed", "paper", "--minutes", "0", "--output", str(tmp_path))
    assert "No time was left in: speed, paper." in (tmp_path / "gpu.md").read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_here("speed.gpu", "--output", str(tmp_path))
    assert "there is no GPU here" in capsys.readouterr().err


def test_a_loop_over_regions_is_the_layer() -> None:
    gspace = gspaces.rot2dOnR2(4)
    fields = FieldType(gspace, [gspace.regular_repr])
    layer = RelaxedR2Conv(fields, fields, 3, padding=1, relax={"translation": 0.5}).double()
    images = torch.randn(2, 4, 18, 18, dtype=torch.float64)
    torch.testing.assert_close(RegionLoop(layer)(images), layer(fields(images)).tensor)
