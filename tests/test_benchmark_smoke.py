"""Smoke: its symmetry, broken as much as said, turns as escnn turns fields; the benchmark and the example run."""

from __future__ import annotations

import runpy
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmark_runs import run_here
from escnn import nn

from benchmarks.shared.run_log import Log
from benchmarks.smoke import levels as smoke
from benchmarks.smoke import smoke_data
from benchmarks.smoke.smoke_data import Puffs, own_error, simulated, turned_back
from benchmarks.smoke.smoke_networks import WAYS, Forecaster

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("phi.flow", exc_type=ImportError)

SMALL = Puffs("rotation", 0, count=1, frames=2, size=12)
SYMMETRIES = list(WAYS)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smoke")


@pytest.mark.slow
@pytest.mark.parametrize("symmetry", SYMMETRIES)
def test_copies_are_alike_at_the_lowest_level_alone(symmetry: str, cache: Path) -> None:
    lowest, highest = (
        own_error(simulated(replace(SMALL, symmetry=symmetry, level=level), cache), symmetry) for level in (0, 9)
    )
    assert lowest < 1e-6 < 0.5 < highest


def test_copies_turn_as_escnn_turns_a_vector_and_a_scalar(cache: Path) -> None:
    films = simulated(SMALL, cache)
    state = Forecaster("rotation", WAYS["rotation"]["strict"]).state_type
    first = nn.GeometricTensor(films[0, 0], state)
    for turns in (1, 2, 3):
        element = state.fibergroup.element(turns)
        fields = first.transform_fibers(element).tensor
        expected = first.transform(element).tensor
        torch.testing.assert_close(films[0, turns], fields.rot90(turns, (2, 3)), rtol=0, atol=1e-6)
        # escnn interpolates between pixels, which tells the direction all the same.
        assert (films[0, turns] - expected).norm() < 1e-3 * expected.norm()


def test_smoke_rises_from_the_bottom_of_the_image(cache: Path) -> None:
    right, up, density = simulated(SMALL, cache)[0, 0, -1]
    rows = torch.arange(SMALL.size)
    assert (density.sum(1) * rows).sum() / density.sum() > SMALL.size / 2
    assert (up * density).sum() > 5 * (right * density).sum().abs()


def test_what_is_simulated_is_kept_with_its_settings(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    films = simulated(SMALL, cache)
    monkeypatch.setattr(smoke_data, "_simulate", lambda puffs: pytest.fail("simulated again"))
    assert simulated(SMALL, cache).equal(films)
    with pytest.raises(pytest.fail.Exception, match="simulated again"):
        simulated(replace(SMALL, seed=SMALL.seed + 1), cache)


@pytest.mark.parametrize("symmetry", SYMMETRIES)
def test_networks_have_as_many_parameters(symmetry: str) -> None:
    networks = {name: Forecaster(symmetry, way) for name, way in WAYS[symmetry].items()}
    counts = {name: sum(p.numel() for p in network.parameters()) for name, network in networks.items()}
    assert max(counts.values()) < 1.1 * min(counts.values()), counts


@pytest.mark.parametrize("symmetry", SYMMETRIES)
def test_the_strict_network_takes_copies_to_copies(symmetry: str, cache: Path) -> None:
    films = simulated(replace(SMALL, symmetry=symmetry), cache)
    network = Forecaster(symmetry, WAYS[symmetry]["strict"])
    network.set_scales(films)
    predicted = network(films.flatten(0, 2)).detach().view_as(films)
    copies = turned_back(predicted, symmetry)
    torch.testing.assert_close(copies[:, 1:], copies[:, :1].expand_as(copies[:, 1:]), rtol=0, atol=1e-5)


def test_the_rate_is_chosen_at_both_ends_by_validation(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    for rate, (lowest, highest) in zip(smoke.RATES, ((0.1, 0.4), (0.2, 0.1), (0.3, 0.1)), strict=True):
        for run, validation in zip(smoke.trials("rotation", "plain", rate), (highest, lowest), strict=True):
            log.add(str(run), {"validation": validation})
    runs = smoke.chosen_runs("rotation", ["plain", "strict"], 2, log)
    assert {(run.way, run.rate) for run in runs} == {("plain", smoke.RATES[1])}
    assert len(runs) == 2 * len(smoke.LEVELS)


@pytest.mark.slow
def test_the_benchmark_goes_on_from_its_log_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {name: replace(WAYS["rotation"][name], widths=(1, 1, 1)) for name in ("strict", "relaxed")}
    monkeypatch.setattr(smoke, "WAYS", {"rotation": ways})
    monkeypatch.setattr(smoke, "simulated", lambda puffs, cache: torch.rand(3, 4, 3, 3, 12, 12))
    constants = {"TRAINING": 1, "VALIDATION": 1, "LEVELS": (0, 9), "RATES": (1e-2,), "STEPS": 2, "FRAMES_AHEAD": 2}
    for name, value in constants.items():
        monkeypatch.setattr(smoke, name, value)
    arguments = "--parts", "rotation", "--output", str(tmp_path)
    run_here("smoke.levels", *arguments, "--seeds", "1")
    kept = (tmp_path / "rotation.jsonl").read_text()
    run_here("smoke.levels", *arguments, "--seeds", "2")
    text = run_here("smoke.levels", *arguments, "--seeds", "2", "--report")
    runs = (tmp_path / "rotation.jsonl").read_text()
    assert runs.startswith(kept)
    assert (len(kept.splitlines()), len(runs.splitlines())) == (4, 8)
    assert text.strip() == (tmp_path / "rotation.md").read_text().strip()
    assert (text.count("\n| strict |"), text.count("\n| relaxed |")) == (2, 4)
    assert (tmp_path / "rotation.png").stat().st_size > 10_000


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
