"""The benchmark of buoyant flow: its data have the symmetry that they should have, and its runs are trained once."""

from __future__ import annotations

import functools
import json
import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmark_runs import run_here
from escnn import gspaces
from escnn.group import GroupElement
from escnn.nn import FieldType
from torch import Tensor

from benchmarks.shared.run_log import Log
from benchmarks.volumes import buoyancy
from benchmarks.volumes.flow import Flow, simulated, solve, starts

SMALL = {"count": 1, "frames": 2, "size": 6}


def turned(state: np.ndarray, about: str) -> np.ndarray:
    """A state (film, channel, x, y, z) after a quarter turn about an axis."""
    first, second = {"z": (0, 1), "x": (1, 2)}[about]
    moved = np.rot90(state, 1, (2 + first, 2 + second)).copy()
    moved[:, [first, second]] = np.stack([-moved[:, second], moved[:, first]], 1)
    return moved


@functools.cache
def solved(strength: float, about: str | None = None) -> np.ndarray:
    """The film of one start, or of that start turned about an axis; the solver takes a second for each."""
    flow = Flow(strength, **SMALL)
    first = starts(flow)
    return solve(first if about is None else turned(first, about), flow)


def films_as_starts(films: np.ndarray) -> np.ndarray:
    """Films (film, frame, channel, D, H, W) in the order of starts, (film, frame, channel, x, y, z)."""
    return films[..., ::-1, ::-1, :].transpose(0, 1, 2, 5, 4, 3)


@pytest.mark.parametrize(("strength", "about", "is_symmetry"), [(0.0, "x", True), (0.5, "z", True), (0.5, "x", False)])
def test_flow_turns_with_its_start_where_gravity_lets_it(strength: float, about: str, is_symmetry: bool) -> None:
    pytest.importorskip("phi.flow")
    films, moved = (films_as_starts(solved(strength, of)) for of in (None, about))
    expected = np.stack([turned(films[:, frame], about) for frame in range(films.shape[1])], 1)
    error = np.linalg.norm(moved - expected) / np.linalg.norm(expected)
    # The solver's answers are rounded to about 1e-5.
    assert (error < 1e-4) == is_symmetry


def test_channels_are_those_on_which_the_group_acts() -> None:
    """A quarter turn of a film by escnn is the film of the turned state."""
    pytest.importorskip("phi.flow")
    gspace = gspaces.rot2dOnR3(4)
    state = FieldType(gspace, [gspace.basespace_action, gspace.trivial_repr])
    film, moved = (torch.from_numpy(solved(0.5, of)[:, -1].copy()) for of in (None, "z"))
    found = state(film.float()).transform(gspace.fibergroup.element(1)).tensor
    assert torch.linalg.norm(found - moved) / torch.linalg.norm(moved) < 1e-4


def test_a_second_call_trains_nothing_and_tells_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("phi.flow")
    for name, value in {"TRAINING": 3, "TESTS": 1, "BATCH": 2}.items():
        monkeypatch.setattr(buoyancy, name, value)
    monkeypatch.setattr(buoyancy, "simulated", lambda flow, cache: simulated(Flow(flow.buoyancy, 4, 3, 6), cache))
    ways = {name: buoyancy.WAYS[name] for name in ("Conv3d", "strict about the axis")}
    monkeypatch.setattr(buoyancy, "WAYS", ways)
    monkeypatch.setattr(buoyancy, "BUOYANCIES", (0.5,))
    arguments = ["--seeds", "1", "--steps", "2", "--output", str(tmp_path), "--cache", str(tmp_path)]
    first = run_here("volumes.buoyancy", *arguments)
    runs = Log(tmp_path / "buoyancy.jsonl").runs
    assert {json.loads(run)["way"] for run in runs} == set(ways)
    assert run_here("volumes.buoyancy", *arguments).strip() in first


@pytest.mark.slow
def test_the_evidence_is_a_way_of_buoyant_flow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(buoyancy, "simulated", lambda flow, cache: torch.rand(14, 2, 4, 6, 6, 6))
    monkeypatch.setattr(buoyancy, "TRAINING", 12)
    # Three epochs of 12 pairs.
    result = buoyancy.train(buoyancy.Run(0.5, "evidence", 9, 0), tmp_path)
    assert result.keys() >= {"error", "rollout", "softness", "hardened error", "rows", "trials, held out"}
    log = Log(tmp_path / "log.jsonl")
    log.add(str(buoyancy.Run(0.5, "evidence", 9, 0)), result)
    assert "of 3 |" in buoyancy.report(9, 1, log)


def test_networks_have_as_many_parameters() -> None:
    films = torch.randn(2, 2, 4, 6, 6, 6)
    counts = {
        name: sum(p.numel() for p in buoyancy.Forecaster(way, films).parameters())
        for name, way in buoyancy.WAYS.items()
    }
    assert all(abs(count / counts["strict"] - 1) < 0.2 for count in counts.values()), counts


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "volumes.py"))
    example["main"](["--smoke"])
    assert "hardened" in capsys.readouterr().out


def test_laws_of_the_example_have_the_symmetries_that_it_says() -> None:
    """Quarter turns about the law's axis alone; half turns about the other axes under the tetragonal law alone."""
    example = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "volumes.py"))
    field, group = example["DENSITY"], example["CUBE"].fibergroup
    density = torch.randn(1, 1, 5, 5, 5)

    def keeps(law: Callable[..., Tensor], element: GroupElement) -> bool:
        def turned(features: Tensor) -> Tensor:
            return field(features).transform(element).tensor

        # escnn turns volumes in float32.
        return torch.allclose(law(turned(density), "z"), turned(law(density, "z")), atol=1e-4)

    actions = {element: np.asarray(example["CUBE"].basespace_action(element)).round() for element in group.elements}
    kept = {name: {e for e in group.elements if keeps(law, e)} for name, law in example["LAWS"].items()}
    assert kept["wind"] == {element for element, action in actions.items() if action[2, 2] == 1}
    assert kept["tetragonal"] == {element for element, action in actions.items() if abs(action[2, 2]) == 1}
