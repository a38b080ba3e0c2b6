"""Benchmarks run in this process, tiny; strict networks of theirs are invariant, and the page has what the logs say."""

import contextlib
import importlib
import io
import json
import re
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

from benchmarks.shared import turns
from benchmarks.shared.run_log import Log
from benchmarks.symmetry import bodies, discovery, forecasts, report, runs, training
from benchmarks.symmetry.data import Data
from benchmarks.symmetry.results import grouped, read, rows_of
from benchmarks.symmetry.runs import CHOOSING_SEED, Place
from benchmarks.symmetry.tasks import TASKS, Cell
from benchmarks.symmetry.training import Rule, scores
from benchmarks.symmetry.ways import Setting, Way
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


# Symmetry: runs that are made once, networks, scores and the report.


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place of runs, one step in all and two rates."""
    monkeypatch.setattr(training, "FEWEST_STEPS", 1)
    return Place(
        None, Log(tmp_path / "log.jsonl"), tasks={}, rule=Rule(factors=(1.0,), rounds=(3,)), rates=(0.01, 0.03)
    )


def with_few_images(place: Place, task: str) -> Place:
    """The same place for a task with networks of one field a layer and 16 images to test."""
    known = TASKS[task]

    def few(*arguments: Any) -> Data:
        data = known.load(*arguments)
        test, copied = ((pair[0][:16], pair[1][:16]) for pair in (data.test, data.copied))
        return replace(data, validation=test, test=test, copied=copied)

    small = replace(known, load=few, frame=replace(known.frame, widths=(1, 1, 1, 2)), trial=(1,), trial_images=64)
    return replace(place, tasks={task: small})


@pytest.mark.parametrize(
    ("task", "group", "pose", "way"),
    [
        ("digits", "SO(2)", "turned", "RelaxedR2Conv, evidence"),
        ("digits", "SO(2)", "upright", "RestrictionModule"),
        ("quadrant", "T", "in a quadrant", "RelaxedR2Conv, directions"),
        ("quadrant", "T", "quadrant", "R2Conv, free head"),
        ("mnist67-180", "C4", "1 of 2", "R2Conv, soft head"),
        ("faces", "D1", "as they are", "RelaxedR2Conv, turned copies"),
    ],
)
def test_every_task_runs(task: str, group: str, pose: str, way: str, place: Place) -> None:
    if task == "faces":
        pytest.importorskip("skimage")
    found = runs.run(Cell(task, group, pose, 64, way, 0), replace(with_few_images(place, task), rates=(0.01,)))
    # A shift changes the class where it is the place.
    assert ("turned" in found) == (pose != "quadrant")
    assert ("softness, hardened" in found) == way.endswith("evidence")


def test_runs_are_made_once_and_settings_are_chosen_after_the_rate(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place = with_few_images(place, "digits")
    cell = Cell("digits", "C4", "upright", 64, "PartialR2Conv", 0)
    runs.train_missing([cell], place)
    *tried, _ = [json.loads(name) for name in place.log.runs]
    assert [run["seed"] for run in tried] == [CHOOSING_SEED] * 3
    assert [run["setting"]["options"]["initial_softness"] for run in tried] == [0.1, 0.1, 0.01]
    found = place.log.runs[str(cell)]
    assert (found["rate"], found["trials"]) == (tried[2]["rate"], 3)
    assert len(capsys.readouterr().out.splitlines()) == 4
    again = replace(place, log=Log(place.log._path))
    runs.train_missing([cell], again)
    assert capsys.readouterr().out == ""
    # Another seed needs no trials.
    runs.train_missing([replace(cell, seed=1)], again)
    assert len(again.log.runs) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "nope"], "--tasks: there is no 'nope', but digits; cifar10; ddmnist"),
        (["--layer", "escnn.nn:R2Conv", "--head", "blah"], "argument --head: invalid choice: 'blah'"),
    ],
)
def test_names_that_do_not_exist_are_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_here("symmetry.__main__", "--output", str(tmp_path / "log"), *words)
    assert message in capsys.readouterr().err


@torch.no_grad()
def change(network: torch.nn.Module, images: Tensor, element: turns.Element) -> float:
    """Return how much the logits change as images turn."""
    logits = network.eval()(images)
    return float((network(turns.turned(images, element)) - logits).norm() / logits.norm())


@pytest.mark.parametrize(
    ("task", "group", "side"),
    [("digits", "SO(2)", 33), ("ddmnist", "D4", 57), ("faces", "D2", 25), ("quadrant", "T", 32)],
)
def test_strict_pooled_networks_are_invariant_and_those_with_a_free_head_or_free_biases_are_not(
    task: str, group: str, side: int
) -> None:
    frame = TASKS[task].frame
    images = torch.randn(2, frame.channels, side, side)
    # Turns by odd multiples of 45° are interpolated, so that SO(2) is tried with the others.
    elements = turns.ELEMENTS["C4" if group == "SO(2)" else group][1:]
    for way, is_invariant in ((Way(), True), (Way(head="free"), False), (Way(has_free_biases=True), False)):
        network = frame.build(group, way, Setting(), (2,) * len(frame.widths))
        network.apply(lambda part: isinstance(part, bodies.FreeBias) and torch.nn.init.normal_(part.bias))
        found = [change(network, images, element) for element in elements]
        assert (max(found) < 1e-4) == (min(found) < 1e-4) == is_invariant


class BrightestPixel(torch.nn.Module):
    """The class of an image is its brightest pixel."""

    def forward(self, images: Tensor) -> Tensor:
        return 10 * images.flatten(1)


def test_scores_of_turned_copies_leave_the_identity_out() -> None:
    # The centre stays where it is under all turns, a corner under none.
    images, labels = torch.zeros(2, 1, 3, 3), torch.tensor([4, 0])
    images.flatten(1)[[0, 1], labels] = 1.0
    pair = images, labels
    found = scores(BrightestPixel(), Data(pair, pair, pair, pair), turns.ELEMENTS["C4"])
    named = {name: found[name] for name in ("accuracy", "as is", "turned", "worst", "agreement")}
    assert named == {"accuracy": 100, "as is": 100, "turned": 50, "worst": 50, "agreement": 50}


def test_the_report_writes_the_results_the_page_and_the_figure(tmp_path: Path) -> None:
    log, (page, table, figure) = Log(tmp_path / "log.jsonl"), (tmp_path / of for of in ("a.md", "b.csv", "c.png"))
    costs = {"parameters": 1, "seconds": 2.0, "epochs": 3, "all epochs": 4, "rate": 0.01, "trials": 3}
    accuracies = {"R2Conv": (90, 92, 91), "R2Conv, free head": (94, 95, 94), "RelaxedR2Conv": (95, 97, 95)}
    for way, seeds in {**accuracies, "Conv2d": (60,)}.items():
        for seed, accuracy in enumerate(seeds):
            line = {"accuracy": accuracy, "turned": accuracy, "history": [[1, 0.5, 80], [3, 0.4, 99]], **costs}
            log.add(str(Cell("digits", "C8", "upright", 1000, way, seed)), line)
    page.write_text("".join(f"<!-- symmetry: {name} -->\nold\n<!-- end -->\n" for name in report.blocks_of({})))
    report.update([log._path], table, [page], figure)
    text = page.read_text(encoding="utf-8")
    # At the time at which R2Conv has ended the second round has not.
    assert grouped(rows_of([log]))["digits", "C8", 1000, "upright"].ways["Conv2d"][0]["at equal time"] == 80
    # Student's t of three seeds asks for 4.3 standard errors.
    upright = "91.0 | **94.3** | 95.7 | +1.33 ± 0.33 ○ (3)"
    assert f"| digits with C8, 1,000 images, upright | {upright} |" in text
    # Of equal seeds, soft layers less each way.
    assert "| 1,000, upright | 91.0 ▲ (3) | 94.3 ○ (3) | – | 95.7 |" in text
    assert figure.stat().st_size > 10_000
    # The file alone gives the same page.
    report.update([], table, [page], figure)
    assert page.read_text(encoding="utf-8") == text
    with pytest.raises(KeyError, match="other"):
        report.with_blocks("<!-- symmetry: other -->\n<!-- end -->", {"fields": ""})


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


@pytest.mark.skipif(not report.PAGES[0].exists(), reason="no docs beside the tests")
def test_the_pages_have_what_the_results_say() -> None:
    pages = [page.read_text(encoding="utf-8") for page in report.PAGES]
    found = report.blocks_of(grouped(read(report.RESULTS)))
    assert [report.with_blocks(page, found) for page in pages] == pages, "python -m benchmarks.symmetry.report"
    assert sorted(re.findall("<!-- symmetry: (.*) -->", "".join(pages))) == sorted(found)


def test_a_case_of_the_discovery_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "gratings, half turns"
    cases = {name: replace(discovery.CASES[name], seeds=(7,), images=(64,))}
    for constant, value in {"DECIDING": {"held-out": ({}, 64)}, "EPOCHS": 3, "FURTHER": 1, "CASES": cases}.items():
        monkeypatch.setattr(discovery, constant, value)
    log = ["--output", str(tmp_path / "log.jsonl")]
    run_here("symmetry.discovery", *log)
    assert run_here("symmetry.discovery", *log, "--table").splitlines()[-1].startswith(f"| {name} | none | 64 | ")


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


# Smoke and volumes, whose solver is phi.flow.


@pytest.mark.parametrize("way", ["RelaxedR2Conv, evidence", "R2Conv, free head, turned copies"])
def test_smoke_is_a_task_of_the_benchmark(way: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "puffs_of_smoke", lambda *arguments: torch.rand(8, 4, 4, 3, 12, 12))
    monkeypatch.setattr(forecasts, "FRAMES_AHEAD", 2)
    task = replace(TASKS["smoke"], trial=(1,), frame=forecasts.ForecastFrame((1, 1, 1)))
    place = replace(place, tasks={"smoke": task}, rates=(0.01,))
    found = runs.run(Cell("smoke", "C4", "level 9", 1, way, 0), place)
    assert {"error", "rollout", "turned", "change", "validation", "history"} <= found.keys()
    assert way.endswith("copies") or {"hardened", "softness", "evidence", "error, hardened"} <= found.keys()


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
