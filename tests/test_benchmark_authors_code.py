"""The comparison with the authors' code runs with a stand-in for it, and says what is wrong with what it was given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmark_runs import run_here

# As many parameters as our strict network of T(2).
STAND_IN = """
import torch


class Network(torch.nn.Module):
    def __init__(self, parameters):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(parameters))

    def forward(self, images):
        return images.mean((1, 2, 3))[:, None] + self.weights[:10]


def build(parameters):
    return Network(parameters)


def number():
    return 3
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "stand_in_for_theirs.py").write_text(STAND_IN)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit):
        run_here("speed.authors_code", *arguments, "--row", "t2-strict", "--batch", "1", "--repetitions", "1")
    return capsys.readouterr().err


def test_networks_of_as_many_parameters_are_compared(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 10))
    monkeypatch.setattr("benchmarks.speed.authors_code.build_network", lambda *arguments: ours)
    given = "--theirs", "stand_in_for_theirs:build", "--arguments", '{"parameters": 40}', "--row", "t2-strict"
    line = run_here("speed.authors_code", str(checkout), *given, "--batch", "1", "--repetitions", "1")
    assert line.startswith("t2-strict, 40 parameters, batch 1: theirs ")


def test_other_numbers_of_parameters_are_refused(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = "--theirs", "stand_in_for_theirs:build", "--arguments", '{"parameters": 7}'
    assert "their network has 7 parameters and ours" in refused(capsys, str(checkout), *given)


@pytest.mark.parametrize(
    ("folder", "factory", "message"),
    [
        ("missing", "stand_in_for_theirs:build", "there is no folder"),
        (".", "stand_in_for_theirs.build", "PACKAGE.MODULE:FUNCTION"),
        (".", "no_such_module:build", "No module named"),
        (".", "stand_in_for_theirs:nothing", "no attribute 'nothing'"),
        (".", "stand_in_for_theirs:build", "missing 1 required positional argument"),
        (".", "stand_in_for_theirs:number", "must give a torch module, got int"),
    ],
)
def test_what_is_wrong_is_said(
    folder: str, factory: str, message: str, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, str(checkout / folder), "--theirs", factory)
