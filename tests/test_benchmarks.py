"""Benchmarks run in this process, tiny: speed, logs, discovery, and flow in space."""

import contextlib
import importlib
import io
import json
import runpy
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import discovery
from benchmarks.shared.run_log import Log
from benchmarks.volumes import buoyancy
from escnn_relaxed import SoftnessEvidence
from escnn_relaxed.measure import poses

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_here(script: str, *arguments: str) -> str:
    """Return the text that a benchmark, a module below ``benchmarks``, prints."""
    output = io.StringIO()
    threads, allows_tf32 = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr("sys.argv", [script, *arguments])
        importlib.import_module(f"benchmarks.{script}").main()
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = allows_tf32
    return output.getvalue()


@pytest.mark.slow
def test_layers_and_the_evidence_are_measured() -> None:
    """No time is asserted."""
    parts = ("soft rotation, C4", "peak memory, C4, 8 channels", "penalty, C4", "volumes, construction, C4 about z")
    table = run_here("speed.performance", "--rows", ";".join(parts), "--repetitions", "1")
    assert [sum(part in line for line in table.splitlines()) for part in parts] == [1, 1, 1, 1]


def test_a_log_that_was_cut_off_keeps_its_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    log = Log(path)
    for name in ("first", "second"):
        log.add(name, {"accuracy": 1.0})
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.warns(UserWarning, match=r"runs\.jsonl, line 2 was cut off"):
        log = Log(path)
    log.add("second", {"accuracy": 2.0})
    with pytest.warns(UserWarning, match="line 2 was cut off"):
        assert Log(path).runs == {"first": {"accuracy": 1.0}, "second": {"accuracy": 2.0}}


@pytest.mark.parametrize("line", ['{"run": "first"}', '["first"]', "3"])
def test_a_file_that_is_no_log_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(ValueError, match=r"runs\.jsonl, line 1 must hold 'run' and 'result', got "):
        Log(path)


def test_a_case_of_the_discovery_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "gratings, half turns"
    cases = {name: replace(discovery.CASES[name], seeds=(7,), images=(64,))}
    for constant, value in {"DECIDING": {"held-out": ({}, 64)}, "EPOCHS": 3, "FURTHER": 1, "CASES": cases}.items():
        monkeypatch.setattr(discovery, constant, value)
    log = ["--output", str(tmp_path / "log.jsonl")]
    run_here("discovery", *log)
    assert run_here("discovery", *log, "--table").splitlines()[-1].startswith(f"| {name} | none | 64 | ")


@pytest.mark.parametrize("by", ["held-out", "training", "more"])
def test_the_images_that_decide_a_case(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By training images those that the network saw decide, otherwise none of them."""
    trained: list[Tensor] = []
    decided: list[Tensor] = []

    def record(images: Tensor) -> Tensor:
        decided.append(images)
        return torch.zeros(len(images), 2)

    def decide(network: Any, train: Any, losses: Callable[..., Tensor], seed: int) -> SimpleNamespace:
        losses(record)
        return SimpleNamespace(helps={}, rows=[])

    monkeypatch.setattr(discovery, "train", lambda network, split, *_: trained.append(split[0]))
    monkeypatch.setattr(discovery, "which_softness_helps", decide)
    monkeypatch.setattr(SoftnessEvidence, "harden", lambda _, images, classes: record(images)[:0])
    monkeypatch.setitem(discovery.DECIDING, by, (discovery.DECIDING[by][0], 16))
    discovery.discover(discovery.CASES["gratings, half turns"], 40, 7, None, by)
    known = {image.numpy().tobytes() for image in trained[0]}
    assert [len(images) for images in decided] == [16, 16]
    for images in decided:
        assert {image.numpy().tobytes() in known for image in images} == {by == "training"}


def test_the_test_of_poses_is_tried_on_each_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poses, "_STEPS", 100)
    name, log = "ramp up or down, noise", Log(tmp_path / "log.jsonl")
    found = discovery.discover(discovery.CASES[name], 100, 416, None, "poses")
    assert found["poses"] == {"rotation": True, "reflection": False}
    log.add(discovery.name_of(name, 100, 416, "poses"), found)
    assert discovery.summary(log, "poses").splitlines()[-1] == f"| {name} | rotation | 100 | 1 of 1 | 1 of 1 |"
    assert {case.images for case in discovery.cases_of("poses").values()} == {(100, 300, 1000), (100,)}


def test_more_held_out_images_are_for_the_digits_alone() -> None:
    cases = discovery.cases_of("more")
    assert {name.partition(",")[0] for name in cases} == {"digits"}
    assert {(case.seeds, case.images) for case in cases.values()} == {((416, 417, 418, 419, 420), (3000,))}
    assert (discovery.cases_of("training"), discovery.DECIDING["more"][1]) == (discovery.CASES, 3000)


def test_buoyant_flow_trains_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call tells the same; the evidence is a way of its."""
    monkeypatch.setattr(buoyancy, "flow_in_space", lambda *arguments: torch.rand(14, 2, 4, 6, 6, 6))
    ways = {name: buoyancy.WAYS[name] for name in ("Conv3d", "evidence")}
    for name, value in {"TRAINING": 12, "STEPS": 9, "WAYS": ways, "BUOYANCIES": (0.5,)}.items():
        monkeypatch.setattr(buoyancy, name, value)
    arguments = ["--seeds", "1", "--output", str(tmp_path / "buoyancy.jsonl")]
    first = run_here("volumes.buoyancy", *arguments)
    assert {json.loads(run)["way"] for run in Log(tmp_path / "buoyancy.jsonl").runs} == set(ways)
    assert run_here("volumes.buoyancy", *arguments).strip() in first


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("volumes", ["--smoke"]), pytest.param("smoke", ["--smoke", "--levels", "9"], marks=pytest.mark.slow)],
)
def test_the_example_runs_and_writes_under_runs_alone(
    name: str, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "smoke":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip("phi.flow", exc_type=ImportError)
    example = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    monkeypatch.chdir(tmp_path)
    example["main"](arguments)
    assert "hardened" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] in ([], ["runs"])
