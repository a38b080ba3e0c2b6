"""The benchmark of symmetry: runs that are made once, choices, equal parameters, copies, differences, own layers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark_runs import run_here
from escnn.nn import R2Conv
from torch import Tensor

from benchmarks.shared.run_log import Log
from benchmarks.shared.training import Split
from benchmarks.symmetry import __main__, glyphs, networks, parts, runs, training, turns
from benchmarks.symmetry.data import Data
from benchmarks.symmetry.digits import load_digits, load_quadrants, load_sixes_and_sevens
from benchmarks.symmetry.evaluate import evaluate
from benchmarks.symmetry.networks import Frame
from benchmarks.symmetry.order import BLOCKS, ordered_cells
from benchmarks.symmetry.runs import CHOOSING_SEED, SEEDS, Cell, Place
from benchmarks.symmetry.scores import scores
from benchmarks.symmetry.tasks import TASKS
from benchmarks.symmetry.training import Rule
from benchmarks.symmetry.ways import MAIN_WAYS, WAYS, Setting, Way
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

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


@pytest.mark.parametrize(
    ("task", "group", "pose", "way"),
    [
        ("digits", "SO(2)", "turned", "RelaxedR2Conv"),
        ("digits", "SO(2)", "upright", "RestrictionModule"),
        ("quadrant", "T", "in a quadrant", "RelaxedR2Conv, directions"),
        ("quadrant", "T", "quadrant", "R2Conv, free head"),
        ("mnist67-180", "C4", "1 of 2", "R2Conv, soft head"),
        ("faces", "D1", "as they are", "RelaxedR2Conv, turned copies"),
        ("faces", "D2", "moved by D2", "R2Conv, soft head"),
    ],
)
def test_every_task_runs(task: str, group: str, pose: str, way: str, place: Place) -> None:
    if task == "faces":
        pytest.importorskip("skimage")
    known = TASKS[task]

    def few(*arguments: Any) -> Data:
        data = known.load(*arguments)
        test, copied = ((pair[0][:16], pair[1][:16]) for pair in (data.test, data.copied))
        return replace(data, validation=test, test=test, copied=copied)

    small = replace(known, load=few, frame=replace(known.frame, widths=(1, 1, 1, 2)), trial=(1,), trial_images=64)
    place = replace(place, tasks={task: small}, rates=(0.01,))
    found = runs.run(Cell(task, group, pose, 64, way, 0), place)
    # A shift changes the class where it is the place.
    assert ("turned" in found) == (pose != "quadrant")


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


def test_seeds_of_tables_are_not_that_of_choices() -> None:
    cells = list(ordered_cells())
    assert len(cells) == len(set(cells))
    assert CHOOSING_SEED not in {one.seed for one in cells}
    assert {one.seed for one in cells} == {*SEEDS, 5}
    assert (BLOCKS[0].task, BLOCKS[0].group, BLOCKS[0].ways) == ("digits", "C8", tuple(MAIN_WAYS))
    assert {one.way for one in cells} == set(WAYS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "group", "count"), [("digits", "C8", 12_970), ("quadrant", "T", 6_922), ("smoke", "C4", 3_565)]
)
def test_networks_of_a_table_have_as_many_parameters(task: str, group: str, count: int) -> None:
    frame = TASKS[task].frame
    for name in {one.way for one in ordered_cells() if (one.task, one.group) == (task, group)}:
        if WAYS[name].is_as_wide:
            continue
        widths = networks.equal_widths(frame, group, WAYS[name])
        found = networks.parameters(frame.build(group, WAYS[name], WAYS[name].settings[0], widths))
        assert abs(found / count - 1) < 0.03, name


@torch.no_grad()
def change(network: torch.nn.Module, images: Tensor, element: turns.Element) -> float:
    """Return how much the logits change as images turn."""
    logits = network.eval()(images)
    return float((network(turns.turned(images, element)) - logits).norm() / logits.norm())


CASES = [
    *(("digits", group, 33) for group in ("C4", "SO(2)")),
    *((task, "D4", side) for task, side in (("digits", 33), ("cifar10", 33), ("ddmnist", 57))),
    *(("faces", group, 25) for group in ("D1", "D2")),
    ("quadrant", "T", 32),
]


@pytest.mark.parametrize(("task", "group", "side"), CASES)
def test_strict_pooled_networks_are_invariant_and_those_with_a_free_head_are_not(
    task: str, group: str, side: int
) -> None:
    frame = TASKS[task].frame
    images = torch.randn(2, frame.channels, side, side)
    # Turns by odd multiples of 45° are interpolated, so that SO(2) is tried with the others.
    elements = turns.ELEMENTS["C4" if group == "SO(2)" else group][1:]
    for head, is_invariant in (("pooled", True), ("free", False)):
        network = frame.build(group, Way(head=head), Setting(), (2,) * len(frame.widths))
        found = [change(network, images, element) for element in elements]
        assert (max(found) < 1e-4) == is_invariant
        assert (min(found) < 1e-4) == is_invariant


@pytest.mark.parametrize(("task", "group"), [("digits", "C4"), ("quadrant", "T")])
def test_the_last_stage_alone_is_soft_where_a_way_says_so(task: str, group: str) -> None:
    network = TASKS[task].frame.build(group, WAYS["RelaxedR2Conv, last stage"], Setting(), (1, 1, 1, 1))
    soft = [layer for _, layer in named_relaxed_layers(network)]
    assert [layer.in_type.size for layer in soft] == [network.body.out_type.size]
    assert soft[0].relaxed_subgroups == (("translation",) if task == "quadrant" else ("rotation",))


def test_turns_by_interpolation_go_the_way_of_exact_ones() -> None:
    images = torch.rand(2, 1, 33, 33)
    by_interpolation = turns.rotated(images, torch.full((2,), math.pi / 2))
    torch.testing.assert_close(by_interpolation, turns.turned(images, turns.Element(90)), atol=1e-5, rtol=0)


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


def test_each_image_of_a_batch_is_moved_by_an_element_of_its_own() -> None:
    images = torch.rand(1, 1, 9, 9).repeat(40, 1, 1, 1)
    found = turns.randomly_moved(images, turns.ELEMENTS["D4"])
    allowed = {turns.turned(images[:1], element).flatten().tolist()[1] for element in turns.ELEMENTS["D4"]}
    assert {image.flatten().tolist()[1] for image in found} == allowed


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
    loss, _ = training.loss_and_accuracy(training.outputs_of(network, ones(4)[0]), torch.zeros(4, dtype=torch.long))
    assert loss == pytest.approx(course.loss)
    # A round has 15 steps: of 128 images, two a step, eight epochs.
    assert course.epochs == 8 * len(course.history)


def test_the_class_of_a_digit_is_its_place_or_its_pose_where_the_pose_says_so() -> None:
    quadrant, digit = (load_quadrants(pose, 40, 0, None) for pose in ("quadrant", "in a quadrant"))
    assert torch.equal(quadrant.train[0], digit.train[0])
    lit = digit.train[0].unflatten(3, (2, 16)).unflatten(2, (2, 16)).sum((1, 3, 5))
    assert torch.equal(quadrant.train[1], (digit.train[1] + lit.flatten(1).argmax(1)) % 10)
    assert (len(quadrant.copied[0]), len(digit.copied[0])) == (0, 898)
    four, two = (load_sixes_and_sevens(pose, 40, 0, None) for pose in ("2 of 2", "0 of 2"))
    assert set(four.test[1].tolist()) == {0, 1, 2, 3}
    assert torch.equal(four.test[1] // 2 * 2, two.test[1])
    assert len(four.copied[0]) == 0


def test_ways_with_turned_copies_train_longer() -> None:
    plain, longer = (runs.rule_of(WAYS[way].is_turned, Rule(), (8, 2)) for way in ("Conv2d", "Conv2d, turned copies"))
    assert (plain.patience, plain.rounds) == (4, (8, 2))
    assert (longer.patience, longer.rounds) == (12, (24, 6))


def test_a_layer_of_ones_own_is_tried_beside_both_heads(place: Place) -> None:
    text = evaluate(R2Conv, replace(place, rates=(0.01,)), subset=(("digits", "C4", "upright", 64),), seeds=(0,))
    found = {line.split(" | ")[0]: line.split(" | ")[1:3] for line in text.splitlines() if line.startswith("| `")}
    assert list(found) == ["| `R2Conv`", "| `R2Conv, free head`", "| `own layer`"]
    # It is R2Conv.
    assert found["| `own layer`"] == found["| `R2Conv`"]


def test_command_asks_for_parts_of_the_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Cell] = []
    monkeypatch.setattr(__main__, "train_missing", lambda cells, place: asked.extend(cells))
    words = ["--groups", "D4", "--images", "300", "--seeds", "1,2", "--poses", "turned;upright"]
    run_here("symmetry.__main__", "--output", str(tmp_path / "log.jsonl"), "--ways", "Conv2d;R2Conv", *words)
    assert asked == [
        Cell("digits", "D4", pose, 300, way, seed)
        for seed in (1, 2)
        for pose in ("upright", "turned")
        for way in ("R2Conv", "Conv2d")
    ]
