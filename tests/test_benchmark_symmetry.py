"""The benchmark of symmetry: runs that are made once, choices, equal parameters, copies, differences, own layers."""

from __future__ import annotations

import functools
import json
import math
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from escnn.nn import R2Conv
from torch import Tensor

from benchmarks.shared.run_log import Log
from benchmarks.symmetry import __main__, glyphs, networks, parts, report, runs, training, turns
from benchmarks.symmetry.evaluate import evaluate
from benchmarks.symmetry.heads import SoftHead
from benchmarks.symmetry.networks import Frame
from benchmarks.symmetry.order import BLOCKS, ordered_cells
from benchmarks.symmetry.runs import CHOOSING_SEED, SEEDS, Cell, Place
from benchmarks.symmetry.tasks import TASKS, Data, Split, load_digits
from benchmarks.symmetry.training import Rule
from benchmarks.symmetry.ways import MAIN_WAYS, WAYS, Setting, Way

SMALL = Frame(10, widths=(1, 1, 1, 1))


def few_digits(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return scikit-learn's digits with fewer images to test."""
    data = load_digits(pose, images, seed, root)
    few = data.test[0][:24], data.test[1][:24]
    return Data(data.train, (data.validation[0][:24], data.validation[1][:24]), few, few)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place of runs with networks of one field a layer, one step in all and two rates."""
    monkeypatch.setattr(training, "FEWEST_STEPS", 1)
    task = replace(TASKS["digits"], load=few_digits, frame=SMALL, trial=(1,), trial_images=64)
    rule = Rule(factors=(1.0,), rounds=(1,))
    return Place(None, Log(tmp_path / "log.jsonl"), tasks={"digits": task}, rule=rule, rates=(0.01, 0.03))


def cell(way: str = "R2Conv", seed: int = 0, **changed: str) -> Cell:
    values = {"task": "digits", "group": "C4", "pose": "upright", **changed}
    return Cell(**values, images=64, way=way, seed=seed)


def test_runs_are_made_once_and_a_second_call_goes_on(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    ways = ["R2Conv", "Conv2d, turned copies"]
    runs.train_missing([cell(way) for way in ways], place)
    # Two rates are tried for each way, and then it runs.
    assert [json.loads(name)["seed"] for name in place.log.runs] == [CHOOSING_SEED, CHOOSING_SEED, 0] * 2
    found = place.log.runs[str(cell())]
    assert found["rate"] in place.rates
    assert found["trials"] == 2
    assert {"accuracy", "loss", "turned", "worst", "agreement", "averaged", "seconds", "epochs", "commit"} <= set(found)
    assert len(capsys.readouterr().out.splitlines()) == 2
    again = replace(place, log=Log(place.log._path))
    runs.train_missing([cell(way) for way in ways], again)
    assert capsys.readouterr().out == ""
    runs.train_missing([cell(seed=1)], again)
    # Another seed needs no trials.
    assert len(again.log.runs) == 7


def test_settings_are_chosen_after_the_rate(place: Place) -> None:
    _, rate, trials = runs.choose(cell("PartialR2Conv"), place)
    tried = [json.loads(name) for name in place.log.runs]
    assert [(run["rate"], run["setting"]["options"]["initial_softness"]) for run in tried[:2]] == [
        (0.01, 0.1),
        (0.03, 0.1),
    ]
    assert (tried[2]["rate"], tried[2]["setting"]["options"]) == (rate, {"initial_softness": 0.01})
    assert len(tried) == trials == 3


def test_what_the_evidence_hardens_is_told_beside_the_scores_before(place: Place) -> None:
    place = replace(place, rule=Rule(factors=(1.0,), rounds=(3,)), rates=(0.01,))
    found = runs.run(cell("RelaxedR2Conv, evidence"), place)
    assert [trial["subgroup"] for trial in found["evidence"]] == ["rotation"]
    assert all(softness > 0 for softness in found["softness"])
    hardened = [softness == 0 for softness in found["softness, hardened"]]
    assert all(hardened) == found["evidence"][0]["is_hardened"]
    assert "turned, hardened" in found


def test_seeds_of_tables_are_not_that_of_choices() -> None:
    cells = list(ordered_cells())
    assert len(cells) == len(set(cells))
    assert CHOOSING_SEED not in {one.seed for one in cells}
    assert {one.seed for one in cells} == set(SEEDS)
    assert (BLOCKS[0].task, BLOCKS[0].group, BLOCKS[0].ways) == ("digits", "C8", tuple(MAIN_WAYS))
    assert {one.way for one in cells} == set(WAYS)


@pytest.mark.parametrize("way", ["R2Conv, free head", "RelaxedR2Conv", "R2Conv, soft head", "Conv2d"])
def test_ways_have_as_many_parameters(way: str) -> None:
    frame = Frame(10, widths=(3, 3, 3, 6))
    target = networks.parameters(networks.build(frame, "C4", Way(), Setting(), frame.widths))
    widths = networks.equal_widths(frame, "C4", WAYS[way])
    count = networks.parameters(networks.build(frame, "C4", WAYS[way], Setting(), widths))
    assert abs(count / target - 1) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("group", ["C8", "D4"])
@pytest.mark.parametrize("way", [name for name, way in WAYS.items() if not way.is_as_wide])
def test_networks_of_the_tables_have_as_many_parameters(group: str, way: str) -> None:
    frame = TASKS["digits"].frame
    widths = networks.equal_widths(frame, group, WAYS[way])
    count = networks.parameters(networks.build(frame, group, WAYS[way], WAYS[way].settings[0], widths))
    assert abs(count / 12_970 - 1) < 0.03


@torch.no_grad()
def change(network: torch.nn.Module, images: Tensor, element: turns.Element) -> float:
    """Return how much the logits change as images turn."""
    logits = network.eval()(images)
    return float((network(turns.turned(images, element)) - logits).norm() / logits.norm())


@pytest.mark.parametrize("task", ["digits", "cifar10", "ddmnist"])
def test_strict_pooled_networks_are_invariant_and_those_with_a_free_head_are_not(task: str) -> None:
    frame = TASKS[task].frame
    side = 57 if task == "ddmnist" else 33
    images = torch.randn(2, frame.channels, side, side)
    few = (1,) * len(frame.widths)
    for head, is_invariant in (("pooled", True), ("free", False)):
        network = networks.build(frame, "D4", Way(head=head), Setting(), few)
        found = [change(network, images, element) for element in turns.ELEMENTS["D4"][1:]]
        assert (max(found) < 1e-4) == is_invariant
        assert (min(found) < 1e-4) == is_invariant


def test_a_soft_head_is_strict_until_its_weights_are_not() -> None:
    network = networks.build(SMALL, "D4", WAYS["R2Conv, soft head"], Setting(), SMALL.widths)
    images, element = torch.randn(2, 1, 33, 33), turns.Element(90, True)
    assert change(network, images, element) < 1e-4
    assert isinstance(network.head, SoftHead)
    # Two coordinates of rotation, one of reflection and two products.
    assert network.head.alpha.shape == (10, 1, 5)
    torch.nn.init.normal_(network.head.alpha)
    assert change(network, images, element) > 1e-3


def test_turns_by_interpolation_go_the_way_of_exact_ones() -> None:
    images = torch.rand(2, 1, 33, 33)
    by_interpolation = turns.rotated(images, torch.full((2,), math.pi / 2))
    torch.testing.assert_close(by_interpolation, turns.turned(images, turns.Element(90)), atol=1e-5, rtol=0)


def test_each_image_of_a_batch_is_moved_by_an_element_of_its_own() -> None:
    images = torch.rand(1, 1, 9, 9).repeat(40, 1, 1, 1)
    found = turns.randomly_moved(images, turns.ELEMENTS["D4"])
    allowed = {turns.turned(images[:1], element).flatten().tolist()[1] for element in turns.ELEMENTS["D4"]}
    assert {image.flatten().tolist()[1] for image in found} == allowed


def test_elements_that_no_image_drew_are_left_out() -> None:
    # Two images cannot draw all eight elements.
    assert turns.randomly_moved(torch.rand(2, 1, 5, 5), turns.ELEMENTS["C8"]).shape == (2, 1, 5, 5)


def test_parts_turn_about_their_own_centres() -> None:
    digits = torch.arange(20 * 28 * 28).view(20, 1, 28, 28) % 251, torch.arange(20) % 10
    images, classes = parts.draw_pairs(digits, 2, "D4", seed=0)
    assert images.shape == (200, 1, 57, 57)
    assert classes.bincount().tolist() == [2] * 100
    found = parts.parts_turned(images, turns.Element(90))
    left, right = (found[..., 14:42, column : column + 28] for column in (0, 29))
    assert torch.equal(left, images[..., 14:42, :28].rot90(1, (2, 3)))
    assert torch.equal(right, images[..., 14:42, 29:].rot90(1, (2, 3)))


def test_shapes_have_a_class_for_each_pose_or_one_for_all() -> None:
    assert glyphs.glyph_classes(4) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    images, labels, is_pose = glyphs.draw_glyphs(80, 2, glyphs.TEST_FONTS, seed=0)
    assert images.shape == (80, 1, 33, 33)
    assert set(labels[is_pose].tolist()) == {0, 1, 2, 3}
    assert set(labels[~is_pose].tolist()) == {4, 5}
    assert not set(glyphs.TEST_FONTS) & set(glyphs.TRAINING_FONTS)


class Fixed(torch.nn.Module):
    """A network whose only weight is the logit of class 1."""

    def __init__(self) -> None:
        super().__init__()
        self.logit = torch.nn.Parameter(torch.zeros(1))

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([torch.zeros(len(images), 1), self.logit.expand(len(images), 1)], 1)


def ones(count: int) -> Split:
    return torch.zeros(count, 1, 1, 1), torch.ones(count, dtype=torch.long)


def test_training_ends_at_the_plateau_with_the_best_weights() -> None:
    network = Fixed()
    # Trained towards class 1, and validated on images of class 0: the start is the best of what is reached.
    course = training.fit(network, ones(128), (ones(4)[0], torch.zeros(4, dtype=torch.long)), 0.01, Rule(patience=3))
    # The first round has the lowest loss; three more end the first stage, and each of the second.
    assert len(course.history) in (4 + 3, 4 + 4, 4 + 20)
    assert course.loss == pytest.approx(min(loss for _, loss, _ in course.history))
    loss, _ = training.loss_and_accuracy(training.logits_of(network, ones(4)[0]), torch.zeros(4, dtype=torch.long))
    assert loss == pytest.approx(course.loss)
    # A round has 15 steps: of 128 images, two a step, eight epochs.
    assert course.epochs == 8 * len(course.history)


def test_training_waits_while_the_file_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "SECONDS_BETWEEN_LOOKS", 0.01)
    pause = tmp_path / "pause"
    pause.touch()
    fit = functools.partial(training.fit, Fixed(), ones(64), ones(4), 0.1, Rule(rounds=(1, 1)), pause=pause)
    thread = threading.Thread(target=fit)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    pause.unlink()
    thread.join(10)
    assert not thread.is_alive()


def test_differences_are_taken_seed_by_seed_from_the_better_head(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    values = {"R2Conv": (90, 92), "R2Conv, free head": (94, 95), "RelaxedR2Conv": (95, 97), "Conv2d": (60,)}
    for way, accuracies in values.items():
        for seed, accuracy in enumerate(accuracies):
            line = {"accuracy": accuracy, "turned": accuracy - 10 * (way != "R2Conv"), "parameters": 1, "seconds": 2.0}
            line |= {"epochs": 3, "all epochs": 4, "rate": 0.01, "trials": 3, "history": [[1, 0.5, 80], [3, 0.4, 99]]}
            log.add(str(cell(way, seed)), line)
    log.add(json.dumps({"way": "R2Conv"}), {"validation": 0.1})
    results = report.found_results(log)
    ways = results["digits", "C4", 64]["upright"]
    assert report.better_head(ways) == "R2Conv, free head"
    assert report.better_head(ways, "turned") == "R2Conv"
    assert report.differences(ways, "RelaxedR2Conv", "R2Conv, free head") == [1, 2]
    assert report.regret(ways, "RelaxedR2Conv") == [-1, -2]
    text = report.report(results)
    assert "| `RelaxedR2Conv` | 96.00 ± 1.00 | +1.50 ± 0.50 |" in text
    assert "| `Conv2d` | 60.00 (1) | −34.00 (1) |" in text
    # At the time at which R2Conv has ended the second round has not.
    assert "| `RelaxedR2Conv` | 80.00 ± 0.00 |" in text
    points = {(point["way"], point["score"]): point for point in report.figure_data(results)}
    assert points["RelaxedR2Conv", "accuracy"]["mean"] == 1.5
    assert points["RelaxedR2Conv", "accuracy"]["error"] == pytest.approx(0.5)


def test_a_layer_of_ones_own_is_tried_beside_both_heads(place: Place, tmp_path: Path) -> None:
    log = tmp_path / "own.jsonl"
    subset = (("digits", "C4", "upright", 64),)
    given = {"tasks": place.tasks, "rule": place.rule, "rates": (0.01,)}
    found = evaluate(R2Conv, None, log, subset=subset, seeds=(0,), place=given)
    assert [part["way"] for part in found["results"]] == ["R2Conv", "R2Conv, free head", "own layer"]
    accuracies = [part["accuracy"] for part in found["results"]]
    # It is R2Conv.
    assert accuracies[2] == accuracies[0]
    assert json.dumps(found)


def test_command_asks_for_parts_of_the_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Cell] = []
    monkeypatch.setattr(__main__, "train_missing", lambda cells, place: asked.extend(cells))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    words = ["--tasks", "digits", "--groups", "D4", "--images", "300", "--seeds", "1,2"]
    words += ["--poses", "turned;upright", "--ways", "Conv2d;R2Conv"]
    monkeypatch.setattr("sys.argv", ["symmetry", "--output", str(tmp_path / "log.jsonl"), *words])
    __main__.main()
    assert [(one.seed, one.pose, one.way) for one in asked] == [
        (seed, pose, way) for seed in (1, 2) for pose in ("upright", "turned") for way in ("R2Conv", "Conv2d")
    ]
    assert {(one.task, one.group, one.images) for one in asked} == {("digits", "D4", 300)}


def test_ways_with_turned_copies_train_longer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = []

    def end(*_: object, **__: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(runs, "fit", lambda *arguments, **_: rules.append(arguments[4]) or end())
    for way in ("Conv2d", "Conv2d, turned copies"):
        with pytest.raises(InterruptedError):
            runs._trial(cell(way), Setting(), 0.01, place)
    plain, longer = rules
    assert longer.patience == 3 * plain.patience
    assert longer.rounds == tuple(3 * most for most in plain.rounds)
