"""Digits with a flag: their data, their networks, and the tables of them and of relaxed training."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from small_accuracy_runs import cut, few_fields, logged, without_zeros

from benchmarks.accuracy import data, networks, report, runs
from benchmarks.accuracy.layers import LearnedGate
from benchmarks.accuracy.runs import Cell, Place
from benchmarks.accuracy.tasks import TASKS, WITH_FLAG, Choosing
from benchmarks.accuracy.ways import ALL_WAYS, FLAG_WAYS
from benchmarks.shared.run_log import Log
from benchmarks.shared.turns import ELEMENTS, turned
from escnn_relaxed import RelaxedR2Conv


@pytest.fixture(autouse=True)
def _few_fields(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from few_fields(monkeypatch)


def flagged(is_test: bool, images: int = 64, seed: int = 0) -> data.Data:
    return data.load_flagged_digits("", images, seed, None, is_test)


def test_a_flag_says_whether_the_way_up_is_of_the_class() -> None:
    few, many = flagged(True), flagged(True, 200)
    assert torch.equal(few.train[0], many.train[0][:64])
    inputs, labels = many.scored
    flags = data.flags_of(inputs)
    assert torch.equal(inputs[:, 1], flags.float().view(-1, 1, 1).expand(-1, 25, 25))
    assert 0.4 < flags.float().mean() < 0.6
    assert set(labels[~flags].tolist()) == set(range(10))
    assert set(labels[flags].tolist()) == set(range(17))
    assert torch.equal(many.parts["flag 0"][0], inputs[~flags])
    assert torch.equal(many.copied[0], inputs[~flags])
    # Turned back, an image of the flag 1 whose class is past 9 is an upright digit that leans.
    _, digit = data.mnist(None, "test")
    is_down = labels > 9
    assert torch.equal(digit[is_down], torch.tensor(data.TWO_WAYS_UP)[labels[is_down] - 10])
    assert torch.equal(digit[~is_down], labels[~is_down])
    # Pixels of an upright seven are brightest in the upper half, of one upside down in the lower.
    halves = [inputs[flags & (labels == label), 0].mean(0) for label in (7, 10 + data.TWO_WAYS_UP.index(7))]
    assert [half[:12].sum() > half[13:].sum() for half in halves] == [True, False]


@torch.no_grad()
@pytest.mark.parametrize("way", ["strict", "free head", "soft", *FLAG_WAYS])
def test_networks_with_a_flag_are_invariant_where_their_way_is(way: str) -> None:
    torch.manual_seed(0)
    network = without_zeros(networks.flagged_network(ALL_WAYS[way], "C4", 2))
    images = torch.randn(4, 1, 25, 25)
    changes = []
    for flag in (0.0, 1.0):
        inputs = torch.cat([images, torch.full_like(images, flag)], 1)
        logits = network(inputs)
        assert logits.shape == (4, 17)
        changes.append(max((network(turned(inputs, element)) - logits).norm() / logits.norm() for element in QUARTERS))
    invariant = {"strict": (True, True), "free head": (False, False), "soft": (False, False)}
    # Neither layers nor the head are of the flag 0 what they are of 1.
    invariant |= dict.fromkeys(FLAG_WAYS, (True, False)) | {"soft, learned gate": (False, False)}
    assert tuple(change < 1e-4 for change in changes) == invariant[way]
    assert tuple(change < 1e-3 for change in changes) == invariant[way]


QUARTERS = ELEMENTS["C4"][1:]


@torch.no_grad()
def test_every_way_sees_the_flag_of_each_image_alone() -> None:
    inputs = flagged(False).train[0][:6]
    for way in ("strict", "free head", "soft", *FLAG_WAYS):
        network = without_zeros(networks.flagged_network(ALL_WAYS[way], "C4", 2))
        one_by_one = torch.cat([network(image.unsqueeze(0)) for image in inputs])
        torch.testing.assert_close(network(inputs), one_by_one, rtol=1e-3, atol=1e-4)
        other = inputs.clone()
        other[:, 1] = 1 - other[:, 1]
        assert not torch.isclose(network(other), network(inputs), rtol=0.01).any(1).all()


def test_a_learned_gate_is_no_function_of_the_pose_and_learns() -> None:
    gate = LearnedGate()
    inputs = flagged(False).train[0]
    gates = gate(inputs)
    assert gates.shape == (64,)
    assert 0.8 < gates.mean() < 0.95
    torch.testing.assert_close(gate(turned(inputs, QUARTERS[0])), gates)
    # Rings cover the disc within the image, each with the mean weight 1.
    torch.testing.assert_close(gate.rings.sum(1), torch.ones(6))
    network = networks.flagged_network(FLAG_WAYS["soft, learned gate"], "C4", 1)
    for layer in network.modules():
        if isinstance(layer, RelaxedR2Conv):
            layer.set_softness(0.1)
    network(inputs).square().sum().backward()
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in network.gate.parameters())
    assert not any(layer.gates for layer in network.modules() if isinstance(layer, RelaxedR2Conv))


@pytest.fixture
def place_with_flag(tmp_path: Path) -> Place:
    task = replace(TASKS[WITH_FLAG], group="C4", steps={64: 2}, load=lambda *arguments: cut(flagged(*arguments[4:])))
    return Place(None, Log(tmp_path / "log"), {WITH_FLAG: task}, choosing={"flag": Choosing(WITH_FLAG, 64, 1, (1,))})


@pytest.mark.parametrize("way", ["strict", *FLAG_WAYS])
def test_a_run_with_a_flag_has_the_scores_of_both_flags(way: str, place_with_flag: Place) -> None:
    runs.test_once(Cell(WITH_FLAG, 64, way, 1000), place_with_flag)
    (found,) = [found for run, found in place_with_flag.log.runs.items() if '"test"' in run]
    assert {"score", "turned", "flag 0", "flag 1"} <= found.keys()
    assert {"gate, flag 0", "gate, flag 1"} <= found.keys() or "gate" not in way
    if way == "soft, gate is the flag":
        assert (found["gate, flag 0"], found["gate, flag 1"]) == (0, 1)


def test_tables_of_the_flag_and_of_relaxed_training(tmp_path: Path) -> None:
    log = logged(tmp_path / "log", {"strict": (80.0, 81.0), "annealed": (81.0, 82.05)}, "digits any angle", 300)
    (table,) = [text for text in report.tables(log) if "ends strict" in text]
    assert table.endswith("| 80.50 ± 0.50 (2) | 81.53 ± 0.52 (2) | +1.02 ± 0.32 ▲ | −1.02 ± 0.32 ▼ |")
    log = logged(tmp_path / "errors", {"strict": (6.0, 6.125), "annealed": (5.0, 5.1)}, "smoke level 0", 5)
    assert "| +1.01 ± 0.16 ▲ |" in report.relaxed_training_table(report.runs_of_the_test(log))
    log = Log(tmp_path / "flag")
    costs = {"parameters": 1000, "width": 6, "rate": 0.01, "seconds": 2.0}
    for seed, (way, plus) in product((1000, 1001, 1002), {"strict": 0.0, report.GATED: 20.0}.items()):
        scores = {"score": 70 + plus, "flag 0": 80.0, "flag 1": 60 + 2 * plus + seed % 2, "turned": 80.0}
        gates = {"gate, flag 0": 0.0, "gate, flag 1": 1.0} if plus else {}
        log.add(Cell(WITH_FLAG, 1000, way, seed).key("test"), {**scores, **gates, **costs})
    # No table of the other tasks has them.
    scores_of, gains = report.tables(log)
    assert "| `soft, gate is the flag` | 90.00 ± 0.00 (3) | 80.00 ± 0.00 (3) |" in scores_of
    assert "| 0.00 and 1.00 | 1,000 | 6 | 0.01 | 2 |" in scores_of
    assert gains.splitlines()[2] == "| `strict` | +20.00 ± 0.00 ▲ | +0.00 ± 0.00 ○ | +40.00 ± 0.00 ▲ | +0.00 ± 0.00 ○ |"
    with pytest.raises(ValueError, match="nothing to draw"):
        report.draw(report.runs_of_the_test(log), tmp_path / "picture.png")
