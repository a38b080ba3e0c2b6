"""Smoke: its symmetry, broken as much as said, turns as escnn turns fields; the benchmark and the example run."""

from __future__ import annotations

import runpy
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from escnn import nn

from benchmarks.shared.run_log import Log
from benchmarks.symmetry import forecasts, smoke_data, turns
from benchmarks.symmetry.runs import Cell, Place, run
from benchmarks.symmetry.smoke_data import Puffs, simulated
from benchmarks.symmetry.tasks import TASKS
from benchmarks.symmetry.training import Rule
from benchmarks.symmetry.ways import Setting, Way

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("phi.flow", exc_type=ImportError)

SMALL = Puffs("rotation", 0, count=1, frames=2, size=12)
TASKS_OF_SMOKE = [("rotation", "smoke", "C4"), ("translation", "smoke, translation", "T1")]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smoke")


@pytest.mark.slow
@pytest.mark.parametrize(("symmetry", "task", "group"), TASKS_OF_SMOKE)
def test_copies_are_alike_at_the_lowest_level_alone(symmetry: str, task: str, group: str, cache: Path) -> None:
    act = turns.turned if symmetry == "translation" else forecasts.fields_turned
    errors = []
    for level in (0, 9):
        films = simulated(replace(SMALL, symmetry=symmetry, level=level), cache)
        copies = [films[:, number].flatten(0, 1) for number in range(films.shape[1])]
        moved = [act(copies[0], element) for element in turns.ELEMENTS[group]]
        errors.append(max(float((one - other).norm() / one.norm()) for one, other in zip(copies, moved, strict=True)))
    assert errors[0] < 1e-6 < 0.3 < errors[1]


def test_copies_turn_as_escnn_turns_a_vector_and_a_scalar(cache: Path) -> None:
    films = simulated(SMALL, cache)
    state = TASKS["smoke"].frame.build("C4", Way(), Setting(), (1, 1, 1)).state
    first = nn.GeometricTensor(films[0, 0], state)
    for quarters in (1, 2, 3):
        element = state.fibergroup.element(quarters)
        fields = first.transform_fibers(element).tensor
        expected = first.transform(element).tensor
        torch.testing.assert_close(films[0, quarters], fields.rot90(quarters, (2, 3)), rtol=0, atol=1e-6)
        # escnn interpolates between pixels, which tells the direction all the same.
        assert (films[0, quarters] - expected).norm() < 1e-3 * expected.norm()


def test_what_is_simulated_is_kept_with_its_settings(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    films = simulated(SMALL, cache)
    monkeypatch.setattr(smoke_data, "_simulate", lambda puffs: pytest.fail("simulated again"))
    assert simulated(SMALL, cache).equal(films)
    with pytest.raises(pytest.fail.Exception, match="simulated again"):
        simulated(replace(SMALL, seed=SMALL.seed + 1), cache)


@pytest.mark.parametrize(("symmetry", "task", "group"), TASKS_OF_SMOKE)
def test_a_strict_network_forecasts_turned_films_as_it_does_films(
    symmetry: str, task: str, group: str, cache: Path
) -> None:
    films = simulated(replace(SMALL, symmetry=symmetry), cache)
    states = films.flatten(0, 2)
    frame, act = TASKS[task].frame, turns.turned if symmetry == "translation" else forecasts.fields_turned
    for head, is_equivariant in (("pooled", True), ("free", False)):
        network = frame.build(group, Way(head=head), Setting(), (1, 1, 1)).eval()
        found = [
            (network(act(states, element)) - act(network(states), element)).norm() / network(states).norm()
            for element in turns.ELEMENTS[group][1:]
        ]
        # A shift to the side is a symmetry of every convolution.
        assert (max(found) < 1e-4) == (is_equivariant or symmetry == "translation")


@pytest.mark.parametrize("way", ["RelaxedR2Conv, evidence", "R2Conv, free head, turned copies"])
def test_smoke_is_a_task_of_the_benchmark(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "simulated", lambda puffs, cache: torch.rand(8, 4, 4, 3, 12, 12))
    monkeypatch.setattr(forecasts, "FRAMES_AHEAD", 2)
    rule = Rule(factors=(1.0,), rounds=(3,))
    task = replace(TASKS["smoke"], trial=(1,), frame=forecasts.ForecastFrame((1, 1, 1)))
    place = Place(None, Log(tmp_path / "log.jsonl"), tasks={"smoke": task}, rule=rule, rates=(0.01,))
    found = run(Cell("smoke", "C4", "level 9", 1, way, 0), place)
    assert {"error", "rollout", "turned", "change", "validation", "history"} <= found.keys()
    if way.endswith("evidence"):
        assert {"hardened", "softness", "evidence", "error, hardened"} <= found.keys()
    else:
        # A last layer without symmetry.
        assert found["change"] > 1


@pytest.mark.slow
def test_the_example_runs_and_writes_under_runs_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(__file__).parent.parent / "examples" / "smoke.py"
    example = runpy.run_path(str(script))
    monkeypatch.chdir(tmp_path)
    example["main"](["--smoke", "--levels", "9"])
    assert "hardened" in capsys.readouterr().out
    assert (tmp_path / "runs" / "smoke.png").stat().st_size > 10_000
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
