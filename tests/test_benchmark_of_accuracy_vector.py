"""The study of the reference vector: what its ways are, and that its runs are apart from choices and tests."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_accuracy_runs import cut, few_fields

from benchmarks.accuracy import __main__ as command
from benchmarks.accuracy import networks, runs, training, vector_study
from benchmarks.accuracy.runs import Cell, Choice, Place
from benchmarks.accuracy.tasks import CHOOSING, PLAN, STUDY_SEEDS, TASKS
from benchmarks.accuracy.ways import ALL_WAYS, VECTOR_WAYS
from benchmarks.shared.run_log import Log
from benchmarks.shared.turns import ELEMENTS, turned
from escnn_relaxed import ReferenceField, RelaxedR2Conv


@pytest.fixture(autouse=True)
def _few_fields(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from few_fields(monkeypatch)


def place_of(path: Path) -> Place:
    known = TASKS["digits within 60°"]
    small = replace(known, group="C4", steps={100: 2}, load=lambda *arguments: cut(known.load(*arguments)))
    return Place(None, Log(path), tasks={"digits within 60°": small})


def test_soft_layers_share_one_set_of_coefficients_and_learn_it(tmp_path: Path) -> None:
    cell = Cell("digits within 60°", 100, "soft, shared", 100)
    trainer = runs._trainer(cell, Choice(2, 0.03), place_of(tmp_path / "log"))
    layers = [layer for layer in trainer.network.modules() if isinstance(layer, RelaxedR2Conv)]

    def sets() -> torch.Tensor:
        return torch.cat([layer.kernel.modulation.weights.view(len(layer.out_type), -1) for layer in layers])

    before = sets().detach()
    assert before.shape[0] == 2 * 3 + 3
    assert torch.equal(before, before[:1].expand_as(before))
    assert layers[0].softness().item() == pytest.approx(1e-3, rel=1e-3)
    own = runs.parameters(networks.digits_network(ALL_WAYS["soft"], "C4", 2))
    assert runs.parameters(trainer.network) == own - before[1:].numel()
    training.train(trainer, 2)
    after = sets().detach()
    assert torch.equal(after, after[:1].expand_as(after))
    assert not torch.isclose(after[0], before[0]).any()


@torch.no_grad()
def test_each_layer_has_a_vector_that_breaks_the_symmetry() -> None:
    torch.manual_seed(0)
    network = networks.digits_network(VECTOR_WAYS["vector in each layer"], "C4", 2).eval()
    fields = [module for module in network.modules() if isinstance(module, ReferenceField)]
    images = torch.randn(4, 1, 25, 25)

    def change() -> float:
        moved, still = network(turned(images, ELEMENTS["C4"][1])), network(images)
        return float((moved - still).norm() / still.norm())

    assert [field.in_type.size for field in fields] == [1, 8, 8, 8]
    # Of float32, in which escnn pools.
    assert change() < 1e-4
    for field in fields:
        field.vector.fill_(2.0)
        assert change() > 1e-3
        field.vector.zero_()


def test_runs_are_on_validation_and_apart_from_choices_and_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = list(vector_study.vector_runs())
    assert {cell.seed for cell, _ in planned} == set(STUDY_SEEDS)
    assert len({vector_study._key(*run) for run in planned}) == len(planned)
    # No run of the test and no choice has one of the ways of this study alone.
    assert not VECTOR_WAYS.keys() & {way for row in PLAN for way in row.ways}
    assert not VECTOR_WAYS.keys() & {way for choosing in CHOOSING.values() for way in choosing.only}
    place = place_of(tmp_path / "log")
    asked: list[bool] = []
    trainer_of = runs._trainer
    monkeypatch.setattr(
        vector_study,
        "_trainer",
        lambda *arguments, **more: (asked.append(bool(more)), trainer_of(*arguments, **more))[1],
    )
    monkeypatch.setattr(vector_study, "WIDTH", 1)
    for _ in range(2):
        vector_study.vector_once(*planned[0], place)
    (name,) = Log(tmp_path / "log").runs
    assert json.loads(name) == {
        **{"stage": "vector", "task": "digits within 60°", "images": 100, "way": "soft", "seed": 100},
        **{"width": 1, "rate": 0.01},
    }
    assert asked == [False]


def test_table_has_differences_of_equal_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = Log(tmp_path / "log")
    assert vector_study.vector_table(log) == ""
    scores = {("soft", 0.01): (80.0, 82.0), ("reference vector", 0.01): (81.0, 85.0, 99.0), ("soft", 0.03): (79.5,)}
    for (way, rate), found in scores.items():
        for seed, score in zip(STUDY_SEEDS, found, strict=False):
            log.add(vector_study._key(Cell("digits within 60°", 100, way, seed), rate), {"score": score})
    command.main(["report", "--log", str(tmp_path / "log")])
    printed = capsys.readouterr().out.strip().splitlines()
    assert printed[2:] == [
        "| `soft` | 0.01 | 81.00 |  | 2 |",
        "| `reference vector` | 0.01 | 88.33 | +2.00, 1.41 | 3 |",
        "| `soft` | 0.03 | 79.50 |  | 1 |",
    ]
