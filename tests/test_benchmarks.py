"""The benchmarks of accuracy run, go on from their logs and compare what is alike; no accuracy is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmark_runs import run_here
from errors import relative_error
from torch import Tensor, nn

from benchmarks.accuracy import ways
from benchmarks.shared.networks import NETWORKS, build_network
from benchmarks.shared.run_log import Log
from benchmarks.shared.tasks import TASKS, image_task
from benchmarks.soft_part import forms, report, study

ROOT = Path(__file__).parents[1]


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


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


@pytest.mark.parametrize("name", [name for name in NETWORKS if not name.startswith("plain")])
def test_strict_networks_are_invariant(name: str) -> None:
    """Or both sides would learn which way is up, and the baseline would not be strict."""
    images, _ = image_task("turned", 8, seed=0, root=None)[1]
    network = build_network(name, (2, 2, 2, 2), 3, None).requires_grad_(False).eval()
    # In float32, five layers.
    assert relative_error(network(images[:8].rot90(1, (2, 3))), network(images[:8])) < 1e-5


@pytest.mark.parametrize("name", [name for name in TASKS if name != "CIFAR-10"])  # which needs its files
def test_tasks_have_images_of_the_networks_size_and_ten_classes(name: str) -> None:
    for images, labels in image_task(name, 50, seed=0, root=None):
        assert images.shape[1:] == (1, 33, 33)
        assert len(images) == len(labels)
        assert set(labels.tolist()) <= set(range(10))
        assert 0 <= images.min() < images.max() <= 1 + 1e-6


def test_networks_that_are_compared_have_as_many_parameters() -> None:
    """Of ways to relax within a tenth, of forms of the soft part within 3.5 %."""
    counts = [parameters(ways.build(way, way.settings[0])) for way in ways.WAYS.values()]
    assert max(counts) / min(counts) < 1.1, counts
    for cell in ("C4, upright", "plane, quadrant", "smoke, level 0"):
        network = forms.network_of(cell)
        counts = [
            parameters(forms.build(form, network, forms.widths_of(cell, form)))
            for form in forms.FORMS
            if forms.can(form, network)
        ]
        assert max(counts) / counts[0] - 1 < 0.035, (cell, counts)


def test_rate_and_setting_are_those_of_the_best_validation(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    search = ways.Search("turned", 64, "weighted", log)
    for run, validation in zip(search.rates(), (50.0, 70.0, 60.0), strict=True):
        log.add(str(run), {"validation": validation, "test": 100 - validation})
    for run, validation in zip(search.settings()[1:], (65.0, 72.0), strict=True):
        assert run.rate == ways.RATES[1]
        log.add(str(run), {"validation": validation, "test": 0.0})
    chosen = search.chosen(seeds=3)
    assert {(run.rate, run.setting.options["initial_softness"]) for run in chosen} == {(ways.RATES[1], 0.001)}
    assert [run.seed for run in chosen] == [0, 1, 2]


def test_run_is_trained_and_tested_on_images_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def fit(network: nn.Module, data: tuple[Tensor, Tensor], *_: Any, **options: Any) -> None:
        seen.append(data[0])
        assert options["penalty"]().isfinite()

    def accuracy(network: nn.Module, data: tuple[Tensor, Tensor]) -> float:
        seen.append(data[0])
        return 0.0

    for name, value in {"VALIDATION": 64, "fit": fit, "accuracy": accuracy}.items():
        monkeypatch.setattr(ways, name, value)
    ways.train(ways.Run("upright", 64, "residual", ways.Setting(deviation=0.1), 1e-2, 0), None)
    known, held_out, test = ({image.numpy().tobytes() for image in images} for images in seen)
    assert len(known) == len(held_out) == 64
    assert known.isdisjoint(held_out | test)
    assert held_out.isdisjoint(test)


def test_a_second_call_of_the_study_trains_nothing_and_tells_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"IMAGES": 64, "VALIDATION": 32, "EPOCHS": 1}.items():
        monkeypatch.setattr(study, name, value)
    monkeypatch.setitem(forms.WIDTHS, "C4 regular", (1, 1, 1, 1))
    monkeypatch.setattr(report, "GROWTHS", report.GROWTHS[:1])
    arguments = ["--cells", "C4, upright", "--forms", "strict;tied", "--output", str(tmp_path)]
    first = run_here("soft_part.study", *arguments)
    assert "tied" in (tmp_path / "table.md").read_text()
    assert {json.loads(run)["form"] for run in Log(tmp_path / "runs.jsonl").runs} == {"strict", "tied"}
    again = run_here("soft_part.study", *arguments)
    assert again.strip() in first
    assert run_here("soft_part.study", "--report", "--output", str(tmp_path)) == again


def test_the_committed_table_of_the_study_is_that_of_the_committed_runs() -> None:
    results = ROOT / "benchmarks" / "results"
    table = (results / "tables" / "soft_part.md").read_text(encoding="utf-8")
    assert f"{report.report(Log(results / 'soft-part' / 'runs.jsonl'))}\n" == table


@pytest.mark.slow
def test_trained_networks_are_measured_by_the_command_of_the_docs() -> None:
    command = [sys.executable, "-m", "benchmarks.accuracy.measuring", "--images", "64", "--epochs", "1", "--measured"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    process = subprocess.run([*command, "8"], capture_output=True, text=True, env=environment, check=False)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert sum(line.startswith("rotation 90°") for line in lines) == 4
    assert sum(line.startswith("all of these") for line in lines) == 2
    assert sum(line.startswith("body.") for line in lines) == 4
