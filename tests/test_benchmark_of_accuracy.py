"""The accuracy benchmark: networks break the symmetry that their way says, and what is planned is what is run."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_accuracy_runs import cut, few_fields, logged, without_zeros
from torch import Tensor

from benchmarks.accuracy import __main__ as command
from benchmarks.accuracy import data, networks, pages, report, runs, training
from benchmarks.accuracy.layers import AnnealedR2Conv, Constant, FreeBias
from benchmarks.accuracy.runs import Cell, Choice, Place
from benchmarks.accuracy.tasks import CHOOSING, TASKS, TEST_SEEDS, WITH_FLAG, Choosing
from benchmarks.accuracy.ways import EQUAL_WAYS, WAYS
from benchmarks.shared import gains
from benchmarks.shared.markdown import with_blocks
from benchmarks.shared.run_log import Log
from benchmarks.shared.turns import ELEMENTS, Element, turned
from escnn_relaxed import RelaxedR2Conv

SYMMETRIC = ("strict", "constant scalar", "annealed", "canonical")


@pytest.fixture(autouse=True)
def _few_fields(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from few_fields(monkeypatch)


@torch.no_grad()
@pytest.mark.parametrize(
    ("build", "channels", "side", "way"),
    [
        *(("digits", 1, 25, way) for way in WAYS),
        *(("photographs", 3, 33, way) for way in ("strict", "free head", "reference vector", "soft")),
    ],
)
def test_a_classifier_is_invariant_where_its_way_is(build: str, channels: int, side: int, way: str) -> None:
    torch.manual_seed(0)
    network = without_zeros(getattr(networks, f"{build}_network")(WAYS[way], "C4", 2))
    images = torch.randn(4, channels, side, side)
    logits = network(images)
    changes = [(network(turned(images, element)) - logits).norm() / logits.norm() for element in ELEMENTS["C4"][1:]]
    # Of float32, in which escnn pools.
    assert (max(changes) < 1e-4) == (min(changes) < 1e-3) == (way in SYMMETRIC)


@torch.no_grad()
@pytest.mark.parametrize(
    ("group", "way"),
    [
        *(("C4", way) for way in ("strict", "free head", "free biases", "reference vector", "soft")),
        *(("T1", way) for way in ("strict", "free biases", "soft")),
    ],
)
def test_a_forecast_turns_with_its_input_where_its_way_does(group: str, way: str) -> None:
    torch.manual_seed(0)
    network = networks.smoke_network(WAYS[way], group, 2)
    for layer in network.modules():
        if isinstance(layer, FreeBias):
            torch.nn.init.normal_(layer.bias)
        elif isinstance(layer, Constant):
            torch.nn.init.ones_(layer.value)
        elif isinstance(layer, RelaxedR2Conv):
            layer.set_softness(0.1)
    state, act = torch.randn(2, 3, 12, 12).double(), data.fields_turned if group == "C4" else turned
    network = network.double().eval()
    element = ELEMENTS[group][1]
    expected = act(network(state), element)
    change = (network(act(state, element)) - expected).norm() / expected.norm()
    # escnn makes its bases in float32.
    assert (change < 1e-5) == (change < 1e-3) == (way == "strict")


@torch.no_grad()
def test_an_annealed_layer_goes_from_the_soft_layer_to_the_strict_one() -> None:
    fields = networks._regular(networks.group_of("C8"), 2)
    annealed = AnnealedR2Conv(fields, fields, 5, padding=2, initial_softness=0.2).double()
    soft = RelaxedR2Conv(fields, fields, 5, padding=2).double()
    soft.load_state_dict(annealed.state_dict())
    x = fields(torch.randn(2, fields.size, 9, 9).double())
    for gate in (1.0, 0.0):
        annealed.gate = gate
        torch.testing.assert_close(annealed(x).tensor, soft(x).tensor, rtol=1e-12, atol=1e-12)
        soft.harden()


def digits(is_test: bool, images: int = 64, seed: int = 0) -> data.Data:
    return data.load_digits("within 60°", images, seed, None, is_test)


def test_seeds_share_the_test_alone_and_smaller_training_sets_are_parts_of_larger_ones() -> None:
    few, many, other = digits(True), digits(True, 128), digits(True, seed=1)
    assert torch.equal(few.scored[0], other.scored[0])
    assert not torch.equal(few.train[0], other.train[0])
    assert torch.equal(few.train[0], many.train[0][:64])
    assert torch.equal(few.train[0], digits(False).train[0])
    known = {image.numpy().tobytes() for image in many.train[0]}
    assert not known & {image.numpy().tobytes() for part in (many.stop, digits(False).scored) for image in part[0]}


def test_validation_reads_no_test_image(monkeypatch: pytest.MonkeyPatch) -> None:
    read = data.mnist
    splits: list[str] = []
    monkeypatch.setattr(data, "mnist", lambda root, split: (splits.append(split), read(root, split))[1])
    digits(False)
    assert splits == ["train"]
    digits(True)
    assert splits == ["train", "train", "test"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A place of short runs on scikit-learn's digits."""
    known = TASKS["digits within 60°"]
    small = replace(known, group="C4", steps={64: 3}, load=lambda *arguments: cut(known.load(*arguments)))
    choosing = {"digits": Choosing("digits within 60°", 64, 1, (1, 2))}
    return Place(None, Log(tmp_path / "log.jsonl"), tasks={"digits within 60°": small}, choosing=choosing)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_runs_once_with_five_trials_of_two_seeds(
    way: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell("digits within 60°", 64, way, 1000)
    found = place.log.once(cell.key("test"), lambda: runs.test(cell, place))
    assert {"score", "turned", "parameters", "seconds", "width", "rate", "penalty"} <= found.keys()
    assert ("softness" in found) == (way in ("annealed", "penalty") or way.startswith("soft,") or way == "soft")
    tried = [json.loads(name) for name in place.log.runs if json.loads(name)["way"] == way]
    # Two widths and two further rates, or three λ and two further rates, with two seeds each.
    assert sum(run["stage"] == "choose" for run in tried) == (10 if way == "penalty" else 8)
    assert {run["seed"] for run in tried if run["stage"] == "choose"} == {100, 101}
    count = len(place.log.runs)
    monkeypatch.setattr(runs, "_trainer", None)
    again = replace(place, log=Log(place.log._path))
    again.log.once(cell.key("test"), lambda: runs.test(cell, again))
    assert (len(again.log.runs), again.log.runs[cell.key("test")]) == (count, found)


def test_networks_of_equal_parameters_have_those_of_the_soft_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "LAST", 32)
    monkeypatch.setattr(runs, "_trial", lambda family, way, choice, place: choice.width if way == "soft" else 0.0)
    place = replace(place, choosing={"digits": Choosing("digits within 60°", 64, 1, (2, 5))})
    task = place.tasks["digits within 60°"]
    soft = runs.parameters(task.network(WAYS["soft"], "C4", 5))
    for way in EQUAL_WAYS:
        widths = runs.equal_widths(Cell("digits within 60°", 64, way, 0), place)
        assert runs.parameters(task.network(EQUAL_WAYS[way], "C4", widths)) == pytest.approx(soft, rel=0.03)
    found = runs.test(Cell("digits within 60°", 64, way, 0), place)
    assert (found["width"], found["rate"]) == (widths, 0.01)


def test_tables_of_the_study_and_of_the_choices(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    for way, seed, score in (("strict", 100, 5.0), ("strict", 101, 8.0), ("soft", 100, 4.0), ("soft", 101, 6.0)):
        run = Cell("smoke level 9", 5, way, seed)
        log.add(run.key("study", rule="fixed length"), {"score": score, "score, averaged": score + 1, "steps": 640})
        log.add(run.key("study", rule="early stopping"), {"score": score - 1, "steps": 10 * seed})
        for width in (4, 6):
            log.add(run.key("choose", width=width, rate=0.01, penalty=0.0), {"score": score + width})
    # A seed that one rule lacks is left out.
    log.add(Cell("smoke level 9", 5, "soft", 102).key("study", rule="early stopping"), {"score": 99.0, "steps": 1000})
    _, soft, less = report.study_table(log).splitlines()[2:]
    assert soft == "| smoke level 9 (2) | soft | 4.00, 1.41 | 5.00, 1.41 | 6.00, 1.41 | – | 1000 to 1010 |"
    assert "| soft − strict | −1.50, 0.71 | −1.50, 0.71 | −1.50, 0.71 | – |" in less
    rows = report.choice_table(log).splitlines()[4:]
    assert [row.split(" | ")[-1] for row in rows] == ["**9.00** |", "11.00 |"]


def test_an_annealed_network_ends_strict(place: Place) -> None:
    trainer = runs._trainer(Cell("digits within 60°", 64, "annealed", 0), Choice(1, 0.01), place)
    gates: list[float] = []
    layer = next(layer for layer in trainer.network.modules() if isinstance(layer, AnnealedR2Conv))
    training.train(trainer, 8, lambda part: gates.append(layer.gate))
    assert gates == pytest.approx([1, 5 / 6, 2 / 3, 1 / 2, 1 / 3, 1 / 6, 0, 0])


@pytest.mark.parametrize(("family", "width", "rate"), [("digits", 6, 0.03), ("smoke", 9, 0.003)])
def test_the_best_width_is_chosen_first_and_then_the_rate(
    family: str, width: int, rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[int, float]] = []

    def trial(family: str, way: str, choice: Choice, place: Place) -> float:
        tried.append((choice.width, choice.rate))
        # Of accuracies the largest is best, of errors the smallest.
        return 10 * (choice.width == 6) + choice.rate

    monkeypatch.setattr(runs, "_trial", trial)
    assert runs.choose(family, "soft", Place(None, Log(tmp_path / "log"))) == Choice(width, rate)
    assert set(tried) == {(some, 0.01) for some in CHOOSING[family].widths} | {(width, 0.003), (width, 0.03)}


def test_inputs_and_changes_turn_together(place: Place) -> None:
    fields = torch.randn(8, 3, 5, 5)
    known = data.Data((fields, 2 * fields), *[(fields, fields)] * 3, data.fields_turned, torch.ones(3, 1, 1))
    network = networks.smoke_network(WAYS["strict"], "C4", 1)
    trainer = training.Trainer(network, WAYS["turned copies"], known, training.CHANGES, "C4", 0.01)
    inputs, targets = next(trainer._batches)
    assert torch.equal(2 * inputs, targets)
    copies = {data.fields_turned(fields, element)[0].numpy().tobytes() for element in ELEMENTS["C4"]}
    assert sum(image.numpy().tobytes() in copies for image in inputs) == 1
    assert not all(torch.isclose(inputs, image).flatten(1).all(1).any() for image in fields)


def test_the_study_has_three_rules(place: Place) -> None:
    cell = Cell("digits within 60°", 64, "soft", 100)
    fixed, longer, early = (
        runs.study(cell, rule, 3, place) for rule in ("fixed length", "twice as long", "early stopping")
    )
    assert (fixed["steps"], longer["steps"]) == (3, 6)
    assert early["steps"] > 5
    assert {"score, averaged"} == fixed.keys() - early.keys()


class BrightestPixel(torch.nn.Module):
    """The class of an image is its brightest pixel."""

    def forward(self, images: Tensor) -> Tensor:
        return 10 * images.flatten(1)


def test_scores_on_turned_inputs_leave_the_identity_out() -> None:
    # The centre stays where it is under all turns, a corner under none.
    images, labels = torch.zeros(2, 1, 3, 3), torch.tensor([4, 0])
    images.flatten(1)[[0, 1], labels] = 1.0
    found = training.scores(BrightestPixel(), data.Data(*[(images, labels)] * 4), "C4")
    assert found == {"score": 100, "turned": 50}


class Right(torch.nn.Module):
    """Everything moves to the right, by as much as it is."""

    def forward(self, states: Tensor) -> Tensor:
        return states * torch.tensor([1.0, 0.0, 0.0]).view(3, 1, 1)


def test_errors_of_smoke_are_of_velocities_and_turn_with_the_films() -> None:
    states = torch.ones(1, 3, 4, 4)
    changes = states * torch.tensor([1.0, 0.0, 5.0]).view(3, 1, 1)
    pair = states, changes
    found = training.scores(
        Right(), data.Data(*[pair] * 4, data.fields_turned, torch.tensor([1.0, 1.0, 1.0]).view(3, 1, 1)), "C4"
    )
    # Truth is (2, 1); turned by 90° it is (−1, 2) of (−1, 1), for which (−2, 1) is predicted.
    assert found["score"] == 0
    assert found["turned"] == pytest.approx(100 * (2 * (2 / 5) ** 0.5 + 0) / 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["test", "--tasks", "nope"], "there is no 'nope', but digits upright; digits within 60°"),
        (["choose", "--ways", "strict;blah"], "there is no 'blah', but strict; free head"),
        (["test", "--seeds", "0"], "there is no '0', but 1000; 1001"),
        (["test", "--processes", "0"], "must be a whole number above 0, got '0'"),
        (["tests"], "invalid choice: 'tests' (choose from"),
        (["layer", "--layer", "escnn.nn:R2Conv", "--head", "blah"], "argument --head: invalid choice: 'blah'"),
        (["layer", "--layer", "escnn.nn:Nothing"], "'escnn.nn:Nothing' is no package.module:Layer"),
        (["layer"], "needs --layer"),
        (["test", "--layer", "escnn.nn:R2Conv"], "and no other, needs --layer"),
    ],
)
def test_names_that_do_not_exist_are_refused_before_any_run(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        command.main(words)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_the_plan_has_at_most_450_runs_each_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = list(runs.planned())
    assert len(set(cells)) == len(cells) <= 450
    assert f"| **{len(cells)}** |" in (Path(command.__file__).parent / "protocol.md").read_text(encoding="utf-8")
    assert {cell.seed for cell in cells} == set(TEST_SEEDS) == set(range(1000, 1010))
    command.main(["plan", "--log", str(tmp_path / "log"), "--tasks", "smoke level 0", "--seeds", "1000"])
    assert capsys.readouterr().out == "3 runs of the test, 0 in the log\n"
    assert sum(cell.way == "annealed" and cell.seed == 1000 for cell in cells) == 4
    assert len([cell for cell in cells if cell.task == WITH_FLAG]) == 8 * 5


@pytest.mark.skipif(not pages.PAGES[1].exists(), reason="no docs beside the tests")
def test_the_pages_have_what_the_log_says() -> None:
    """The command writes them."""
    blocks, texts = pages.blocks_of(Log(command.LOG)), [page.read_text(encoding="utf-8") for page in pages.PAGES]
    assert [with_blocks(text, pages.NAME, blocks) for text in texts] == texts, "python -m benchmarks.accuracy pages"
    assert sorted(re.findall("<!-- accuracy: (.*) -->", "".join(texts))) == sorted(blocks)


def test_the_page_shows_the_seeds_that_every_planned_way_has(tmp_path: Path) -> None:
    task, images = "digits any angle", 300
    scores = {"strict": (80.0, 82.0, 50.0), "soft": (90.0, 93.0), "annealed": (1.0, 2.0)}
    log = logged(tmp_path / "log.jsonl", scores, task, images, 1000)
    part = report.complete(report.runs_of_the_test(log))[task, images]
    assert {way: list(runs) for way, runs in part.items()} == {way: [1000, 1001] for way in scores}
    (row,) = pages.blocks_of(log)["tasks"].splitlines()[2:]
    assert row == "| digits any angle, 300 images: accuracy, % (2) | 81.0 ▲ | – | – | – | 91.5 |"
    # A seed of one way alone is no seed of a table.
    log = logged(tmp_path / "other", {"strict": (80.0, 82.0)}, task, images, 1000)
    assert not report.complete(report.runs_of_the_test(log))


def test_pages_and_picture_are_written_from_the_log(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "picture.png"
    scores = {"strict": (80.0, 82.0), "soft": (90.0, 93.0), "annealed": (1.0, 2.0)}
    log = logged(tmp_path / "log.jsonl", scores, "digits any angle", 300, 1000)
    page.write_text("before\n<!-- accuracy: tasks -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    pages.write(log, [page], picture)
    text = page.read_text(encoding="utf-8")
    assert re.fullmatch(r"before\n<!-- accuracy: tasks -->\n(\|.*\n){3}<!-- end -->\nafter\n", text)
    assert picture.stat().st_size > 10_000
    with pytest.raises(KeyError, match="other"):
        with_blocks("<!-- accuracy: other -->\n<!-- end -->", pages.NAME, {"tasks": ""})


def test_gains_are_paired_and_marked_after_the_correction(tmp_path: Path) -> None:
    soft = (90.0, 92.0, 94.0)
    scores = {"soft": soft, "strict": (80.0, 82.1, 84.0), "free head": (89.0, 91.5, 91.0)}
    log = logged(tmp_path / "log", scores)
    (row,) = report.gain_table(report.runs_of_the_test(log), "score").splitlines()[2:]
    # Half of an interval is 4.303 standard errors.
    assert row == "| digits upright, 100 images | 92.00 ± 1.15 (3) | +9.97 ± 0.14 ▲ | +1.50 ± 3.29 ○ | – | – |"
    (row,) = report.gain_table(report.runs_of_the_test(log), "turned").splitlines()[2:]
    assert row.endswith("| −9.97 ± 0.14 ▼ | −1.50 ± 3.29 ○ | – | – |")
    log = logged(tmp_path / "errors", {"soft": (5.0, 5.1), "strict": (6.0, 6.2)}, "smoke level 9", 5)
    assert "| +1.05 ± 0.64 ▲ |" in report.gain_table(report.runs_of_the_test(log), "score")


def test_holm_multiplies_the_smallest_most() -> None:
    assert gains.holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert gains.p_value([1.0, 2.0, 3.0]) == pytest.approx(0.0742, abs=1e-4)
    assert (gains.p_value([0.0, 0.0]), gains.p_value([1.0, 1.0])) == (1.0, 0.0)


def test_the_frontier_has_what_nothing_beats_in_both_scores() -> None:
    points = [(90.0, 40.0), (80.0, 80.0), (85.0, 30.0), (70.0, 80.0)]
    assert report.frontier(points, is_error=False) == [(80.0, 80.0), (90.0, 40.0)]
    assert report.frontier(points, is_error=True) == [(70.0, 80.0), (85.0, 30.0)]


def test_a_layer_of_ones_own_is_drawn(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, picture = tmp_path / "log.jsonl", tmp_path / "picture.png"
    logged(log, {"strict": (80.0, 81.0), "soft": (90.0, 91.0)}, "digits within 60°", 100)
    task = replace(place.tasks["digits within 60°"], steps={100: 1})
    monkeypatch.setattr(command, "TEST_SEEDS", (1000,))
    monkeypatch.setattr(
        command, "Place", lambda *arguments: Place(*arguments, tasks={"digits within 60°": task}, choosing=CHOICE)
    )
    command.main(
        ["layer", "--layer", "escnn.nn:R2Conv", "--head", "free", "--log", str(log), "--picture", str(picture)]
    )
    assert "| `own layer` |" in capsys.readouterr().out
    assert picture.stat().st_size > 10_000


CHOICE = {"digits": Choosing("digits within 60°", 64, 1, (1,))}


def test_free_biases_of_shifts_are_waves_along_the_rows() -> None:
    bias = FreeBias(networks._regular(networks.group_of("T1"), 2), 1)
    torch.nn.init.normal_(bias.bias)
    found = bias(bias.in_type(torch.zeros(1, 2, 3, 8))).tensor
    assert torch.equal(found[:, :, 0], found[:, :, 2])
    torch.testing.assert_close(turned(found, Element(0, is_shifted=True)), -found)
