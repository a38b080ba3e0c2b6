"""Charged particles: the simulator keeps what physics keeps, and the ways are what the protocol says."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric", reason="escnn's convolutions of clouds need it")

from benchmarks.nbody import __main__ as command
from benchmarks.nbody import particles, report, runs
from benchmarks.nbody.networks import WAYS, build, edges_of
from benchmarks.nbody.particles import Array, Scenes, energies, random_rotations, scenes, simulate
from benchmarks.nbody.runs import KEPT, PLAIN, SOFT, STRICT, Cell, Place
from benchmarks.shared.markdown import with_blocks
from benchmarks.shared.run_log import Log
from escnn_relaxed import RelaxedLinear, RelaxedR3PointConv


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def starts(count: int = 20) -> tuple[Array, Array, Array]:
    drawn = np.random.default_rng(0)
    positions, velocities = drawn.standard_normal((2, count, 5, 3))
    positions[..., 2] = np.abs(positions[..., 2])
    return positions, velocities, drawn.choice([-1.0, 1.0], (count, 5))


def small_scenes(monkeypatch: pytest.MonkeyPatch, field: str, count: int = 3) -> Scenes:
    monkeypatch.setattr(particles, "simulate", partial(simulate, steps=5))
    return scenes.__wrapped__(field, "train", count, 0)


@pytest.mark.parametrize("field", particles.FIELDS)
def test_energy_is_kept(field: str) -> None:
    """Leapfrog errs by dt² = 1e-6 times curvatures; a reflection within a step by as much as gravity or Coulomb do."""
    before = starts()
    after = simulate(*before, field)
    change = energies(*after, before[2], field) - energies(*before, field)
    assert np.abs(change).max() < (1e-2 if field == "wall" else 1e-4)
    assert (np.abs(after[0] - before[0]).max((1, 2)) > 0.3).all()
    if field == "wall":
        assert (after[0][..., 2] >= 0).all()
        assert (simulate(*before, "none")[0][..., 2] < 0).any()


def test_momentum_is_kept_without_a_field_and_falls_under_gravity() -> None:
    positions, velocities, charges = starts()
    total = velocities.sum(1)
    assert np.abs(simulate(positions, velocities, charges, "none")[1].sum(1) - total).max() < 1e-10
    fallen = simulate(positions, velocities, charges, "gravity")[1].sum(1) - total
    assert np.abs(fallen - [0, 0, -particles.PARTICLES * particles.GRAVITY * particles.TIME]).max() < 1e-10


def test_gravity_adds_the_same_fall_to_each_particle() -> None:
    """Which is why a constant vector is enough to know it."""
    before = starts()
    fall = simulate(*before, "gravity")[0] - simulate(*before, "none")[0]
    assert np.abs(fall - [0, 0, -particles.GRAVITY * particles.TIME**2 / 2]).max() < 1e-10


@pytest.mark.parametrize(("field", "is_kept"), [("none", True), ("gravity", False)])
def test_trajectories_turn_with_their_starts_where_nothing_breaks_it(field: str, is_kept: bool) -> None:
    positions, velocities, charges = starts()
    turn = random_rotations(1)[0].double().numpy()
    # float32 rotations are orthogonal to 1e-7.
    found = simulate(positions @ turn.T, velocities @ turn.T, charges, field, 300)[0]
    error = np.abs(found - simulate(positions, velocities, charges, field, 300)[0] @ turn.T).max()
    assert bool(error < 1e-5) is is_kept


def test_forces_are_those_of_all_pairs() -> None:
    positions, _, charges = starts(2)
    expected = np.zeros_like(positions)
    for scene in range(2):
        for i in range(5):
            for j in set(range(5)) - {i}:
                apart = positions[scene, i] - positions[scene, j]
                size = (apart @ apart + particles.SOFTENING**2) ** 1.5
                expected[scene, i] += charges[scene, i] * charges[scene, j] * apart / size
    assert np.abs(particles.forces(positions, charges, "none") - expected).max() < 1e-12


def test_an_unknown_field_is_told() -> None:
    with pytest.raises(ValueError, match=r"field must be one of .*, got 'wind'"):
        simulate(*starts(1), "wind")


def test_scenes_are_of_their_seed_and_their_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(particles, "simulate", partial(simulate, steps=2))
    draw = scenes.__wrapped__
    first = draw("wall", "train", 4, 1000)
    assert torch.equal(first.moved, draw("wall", "train", 4, 1000).moved)
    others = draw("wall", "train", 4, 1001), draw("wall", "test", 4, 1000), draw("gravity", "train", 4, 1000)
    assert all((other.velocities - first.velocities).abs().max() > 0.1 for other in others)
    assert (first.positions[..., 2] > 0).all()
    assert torch.allclose(first.velocities.norm(dim=2), torch.tensor(particles.SPEED))


def test_edges_join_all_particles_of_a_scene_and_no_others() -> None:
    source, target = edges_of(3)
    assert len(source) == 60
    assert not (source == target).any()
    assert torch.equal(source // 5, target // 5)
    assert len({*zip(source.tolist(), target.tolist(), strict=True)}) == 60


@pytest.mark.parametrize("field", ["gravity", "wall"])
@pytest.mark.parametrize("way", WAYS)
def test_a_way_builds_and_trains(way: str, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training = small_scenes(monkeypatch, field)
    torch.manual_seed(0)
    network = build(WAYS[way], field, 2)
    before = [value.clone() for value in network.parameters()]
    runs.fit(network, training, runs.unit_of(training), 1, 0.01)
    assert all(
        (value != old).any()
        for (name, value), old in zip(network.named_parameters(), before, strict=True)
        # Frequencies, and what does not reach an output, have no gradient.
        if value.grad is not None and value.grad.any()
    )
    layers = [layer for layer in network.modules() if isinstance(layer, RelaxedLinear | RelaxedR3PointConv)]
    assert any(layer.softness() > 0 for layer in layers) is (way in (SOFT, KEPT))
    assert network(training).shape == (3, 5, 3)


@pytest.mark.parametrize("way", [STRICT, runs.TOLD, SOFT, KEPT, PLAIN])
def test_error_on_turned_scenes_is_the_same_for_what_keeps_turns(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    some = small_scenes(monkeypatch, "gravity")
    torch.manual_seed(0)
    network = build(WAYS[way], "gravity", 2).eval()
    about_z = torch.linalg.matrix_exp(torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 0]]))

    def differs(rotations: torch.Tensor) -> bool:
        errors = (runs.squares_of(network, each, torch.tensor(1.0)) for each in (some, some.turned(rotations)))
        # Bases are of single precision.
        return not torch.allclose(*errors, rtol=1e-4)

    assert differs(random_rotations(3)) is (way != STRICT)
    assert differs(about_z) is (way in (SOFT, PLAIN))


def test_a_strict_network_is_blind_to_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    some = small_scenes(monkeypatch, "wall")
    moved = Scenes(some.positions + torch.tensor([0.0, 0.0, 1.0]), some.velocities, some.charges, some.moved)
    for way in WAYS:
        torch.manual_seed(0)
        network = build(WAYS[way], "wall", 2).eval()
        assert torch.allclose(network(some), network(moved), atol=1e-5) is (way == STRICT)


def test_plan_has_the_runs_of_the_protocol(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command.main(["plan", "--log", str(tmp_path / "log")])
    assert capsys.readouterr().out == "60 runs of the test, 0 in the log\n"
    assert (Path(runs.__file__).parent / "protocol.md").read_text(encoding="utf-8").count("60 runs") == 1


def test_choices_are_of_validation_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {8: 3.0, 16: 2.0}
    monkeypatch.setattr(runs, "_trial", lambda cell, choice: {"score": errors[choice.width] - (choice.rate == 0.02)})
    place = Place(Log(tmp_path / "log"))
    assert runs.choose(SOFT, place) == (16, 0.02)
    assert len(place.log.runs) == 8
    assert all('"gravity"' in name for name in place.log.runs)
    runs.choose(STRICT, place)
    assert sum('"none"' in name for name in place.log.runs) == 8


def test_report_of_a_small_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Log(tmp_path / "log")
    costs = {"parameters": 1000, "width": 8, "rate": 0.01, "seconds": 9.0}
    for way, first in ((STRICT, 90.0), (SOFT, 3.0), (PLAIN, 3.1)):
        for seed, more in zip(runs.TEST_SEEDS, (0.0, 0.2, 0.1, 0.3, 0.15), strict=True):
            sign = -1 if way == PLAIN else 1
            log.add(Cell("gravity", way, seed).key("test"), {"score": first + sign * more, "turned": 95.0, **costs})
    log.add(Cell("gravity", SOFT, 100).key("choose", width=8, rate=0.01), {"score": 5.0})
    monkeypatch.setattr(report, "still", lambda field: 123.0)
    command.main(["report", "--log", str(tmp_path / "log")])
    printed = capsys.readouterr().out
    assert "| gravity | soft | 8 | 0.01 | 5.00 |" in printed
    assert "| gravity | no network: x + vt | 123.00 | 123.00 |" in printed
    assert "| gravity | soft | 3.15 ± 0.05 | 95.00 ± 0.00 | 1,000 | 8 | 0.01 | 9 |" in printed
    assert "| gravity | strict | +87.00 ± 0.00 ▲ |" in printed
    assert "| gravity | plain | −0.20 ± 0.28 ○ |" in printed


def test_a_run_of_the_test_is_logged_with_its_softness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(particles, "simulate", partial(simulate, steps=2))
    for name, value in {"HELD_OUT": 6, "TRAINING": 8, "STEPS": 2, "WIDTHS": (2,), "RATES": (0.01,)}.items():
        monkeypatch.setattr(runs, name, value)
    scenes.cache_clear()
    place = Place(Log(tmp_path / "log"))
    runs.test_once(Cell("wall", SOFT, 1000), place)
    scenes.cache_clear()
    result = place.log.runs[Cell("wall", SOFT, 1000).key("test")]
    assert result.keys() >= {"score", "turned", "parameters", "seconds", "width", "rate", "softness"}
    assert len(result["softness"]) == 4
    assert result["score"] > 0


@pytest.mark.parametrize("way", [SOFT, PLAIN])
def test_bases_that_are_known_give_what_bases_sampled_anew_give(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small_scenes(monkeypatch, "none", 6)
    some = whole[torch.tensor([4, 1, 2])][torch.tensor([2, 0])]
    assert torch.equal(some.positions, whole.positions[[2, 4]])
    network = build(WAYS[way], "none", 2).eval()
    network(whole[torch.tensor([5])])
    assert bool(whole.known) is (way == SOFT)
    anew = Scenes(some.positions, some.velocities, some.charges, some.moved)
    assert torch.allclose(network(some), network(anew), atol=1e-6)


@pytest.mark.skipif(not command.PAGE.exists(), reason="no docs beside the tests")
def test_the_page_has_what_the_log_says() -> None:
    text = command.PAGE.read_text(encoding="utf-8")
    errors = report.page_table(report.runs_of(Log(command.LOG)))
    assert errors.count("\n") == 7
    assert with_blocks(text, "nbody", {"errors": errors}) == text, "python -m benchmarks.nbody page"
    assert "<!-- nbody: errors -->" in text
