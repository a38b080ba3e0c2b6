"""The measurements of speed run, on a CPU and tiny. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmark_runs import run_here

from benchmarks.speed import gpu


@pytest.mark.slow
def test_layers_are_measured(tmp_path: Path) -> None:
    table = run_here("speed.filter_bank", "--repetitions", "1", "--fields", "C4").splitlines()
    assert sum(line.startswith("| C4") for line in table) == 1
    figures = tmp_path / "figures.json"
    rows = "soft rotation, C8, 8 regular;construction, strict"
    table = run_here("speed.performance", "--rows", rows, "--repetitions", "1", "--json", str(figures)).splitlines()
    assert sum(line.startswith("| soft rotation, C8") for line in table) == 2
    assert len(json.loads(figures.read_text())) == 4


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


def test_networks_of_as_many_parameters_as_the_authors_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 10))
    monkeypatch.setattr("benchmarks.speed.authors_code.build_network", lambda *arguments: ours)
    (tmp_path / "stand_in_for_theirs.py").write_text(
        "from torch import nn\n\n\ndef build(classes):\n"
        "    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, classes))\n"
    )
    given = str(tmp_path), "--theirs", "stand_in_for_theirs:build", "--row", "t2-strict", "--repetitions", "1"
    line = run_here("speed.authors_code", *given, "--arguments", '{"classes": 10}')
    assert line.startswith("t2-strict, 40 parameters, batch 4: theirs ")
    with pytest.raises(ValueError, match="their network has 44 parameters and ours, t2-strict, 40"):
        run_here("speed.authors_code", *given, "--arguments", '{"classes": 11}')
