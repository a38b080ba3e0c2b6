"""The benchmarks run, go on from their logs, and say what they found; no accuracy and no time is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark_runs import run_here

from benchmarks.shared.networks import NETWORKS, build_network
from benchmarks.shared.run_log import Log
from benchmarks.shared.tasks import TASKS, image_task
from benchmarks.shared.training import change_under_quarter_turn

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_second_run_takes_every_network_from_the_log(tmp_path: Path) -> None:
    """The first one as users start it, with a process a core."""
    log = tmp_path / "runs.jsonl"
    arguments = "--smoke", "--rows", "digits upright", "--networks", "default;soft, continuous", "--log", str(log)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "benchmarks.accuracy.swap", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert process.returncode == 0, process.stderr
    first, second = process.stdout, run_here("accuracy.swap", *arguments)
    assert first.count("soft, digits upright; ") == len(log.read_text().splitlines()) == 2
    assert "soft, digits upright; " not in second
    table = first[first.index("| row |") :]
    assert table == second[second.index("| row |") :]
    assert table.count("| soft, digits upright |") == 2


def test_a_log_that_was_cut_off_keeps_its_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    log = Log(path)
    for name in ("first", "second"):
        log.add(name, {"accuracy": 1.0})
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.warns(UserWarning, match=r"runs\.jsonl, line 2 was cut off"):
        log = Log(path)
    assert list(log.runs) == ["first"]
    log.add("second", {"accuracy": 2.0})
    with pytest.warns(UserWarning, match="line 2 was cut off"):
        assert Log(path).runs == {"first": {"accuracy": 1.0}, "second": {"accuracy": 2.0}}


@pytest.mark.slow
def test_ablation_annealing_and_bound_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.accuracy.strict_part.WIDTHS", (2, 2, 2, 4))
    monkeypatch.setattr("benchmarks.accuracy.strict_part.EPOCHS", 9)
    names = "bound, turned", "annealed, turned, λ to 0.3", "relaxed after 8 epochs, within 60°"
    arguments = "--seeds", "1", "--images", "64", "--runs", ";".join(names), "--log", str(tmp_path / "runs.jsonl")
    answer = run_here("accuracy.strict_part", *arguments)
    assert all(answer.count(f"{name}: accuracy") == 2 for name in names)
    assert "multipliers" in answer


@pytest.mark.slow
def test_filter_banks_are_measured() -> None:
    table = run_here("speed.filter_bank", "--repetitions", "1", "--fields", "C4").splitlines()
    assert sum(line.startswith("| C4") for line in table) == 1


@pytest.mark.slow
def test_trained_networks_are_measured() -> None:
    lines = run_here("accuracy.measuring", "--images", "64", "--epochs", "1", "--measured", "8").splitlines()
    assert sum(line.startswith("rotation 90°") for line in lines) == 4
    assert sum(line.startswith("all of these") for line in lines) == 2
    assert sum(line.startswith("body.") for line in lines) == 4


# D8 is D4 and C8 at once, and escnn takes twelve seconds to solve for its bases.
@pytest.mark.parametrize("name", [name for name in NETWORKS if not name.startswith(("plain", "D8"))])
def test_strict_networks_of_the_benchmark_are_invariant(name: str) -> None:
    """Or both sides would learn which way is up, and the baseline would not be strict."""
    channels = 3 if "ResNet" in name else 1
    network = build_network(name, (2, 2, 2, 2), 3, None)
    images, _ = image_task("turned", 8, seed=0, root=None)[1]
    change = change_under_quarter_turn(network, images[:8].expand(-1, channels, -1, -1))
    assert change < 1e-5  # float32, five layers


@pytest.mark.parametrize("name", [name for name in TASKS if name != "CIFAR-10"])
def test_tasks_have_images_of_the_networks_size_and_ten_classes(name: str) -> None:
    for images, labels in image_task(name, 50, seed=0, root=None):
        assert images.shape[1:] == (1, 33, 33)
        assert len(images) == len(labels)
        assert set(labels.tolist()) <= set(range(10))
        assert 0 <= images.min() < images.max() <= 1 + 1e-6


def test_cifar_needs_its_files() -> None:
    with pytest.raises(ValueError, match="--data"):
        image_task("CIFAR-10", 10, seed=0, root=None)


@pytest.mark.slow
def test_cost_is_measured(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    rows = "soft rotation, steerable;construction, strict"
    table = run_here("speed.performance", "--rows", rows, "--repetitions", "1", "--json", str(figures)).splitlines()
    assert sum(line.startswith("| soft rotation, steerable") for line in table) == 1
    assert len(json.loads(figures.read_text())) == 3
