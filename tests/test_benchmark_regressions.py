"""The evidence in benchmarks of regressions: when it is updated, what is read off a network, and the table of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import small as battery
import torch
from torch import Tensor, nn

from benchmarks.shared.regressions import FIRST_EPOCH, Learner, softness_table
from benchmarks.shared.run_log import Log, rates_of
from benchmarks.smoke import levels
from benchmarks.smoke.smoke_section import LABELS, results_of, section
from benchmarks.volumes import buoyancy
from escnn_relaxed import RelaxedR2Conv

READ = {"rows", "history", "weight of outputs", "trials, train", "trials, held out", "error, hardened by held out"}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        image = battery.field_type("C4", "trivial")
        self.layer = RelaxedR2Conv(image, image, 3, padding=1, initial_softness=1e-6)

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.layer(self.layer.in_type(images)).tensor
        return output


def test_learner_updates_from_the_third_epoch_and_leaves_the_network_as_it_was() -> None:
    network, inputs = Network(), torch.randn(40, 1, 5, 5)
    targets = network(inputs).detach() + 0.1 * torch.randn(40, 1, 5, 5)
    learner = Learner(network, torch.tensor(10.0), (inputs, targets))
    for epoch in range(FIRST_EPOCH):
        learner.after_epoch(epoch)
    assert learner.evidence.penalty() == 0
    learner.after_epoch(FIRST_EPOCH)
    assert learner.evidence.penalty() > 0
    seen: list[tuple[str, ...]] = []

    def measure() -> dict[str, float]:
        seen.append(network.layer.hardened)
        return {"error": 1.0}

    found = learner.read((inputs, targets), measure)
    # Softness that nothing asks for goes, and comes back after the errors are measured.
    assert seen == [("rotation",)] * 2
    assert network.layer.hardened == ()
    assert found.keys() >= READ
    assert len(found["history"]) == 1
    header, _, row = softness_table("task", {"first": [found], "nothing": []}).splitlines()
    assert header.startswith("| task | γ/n by layer |")
    assert row.startswith("| first | 0.")
    assert row.endswith("| 0 of 1 |")


def test_section_on_smoke_is_that_of_the_lines() -> None:
    folder = Path(__file__).parents[1] / "benchmarks" / "results" / "smoke"
    assert (folder / "section.md").read_text(encoding="utf-8") == section(Log(folder / "rotation.jsonl"))


def test_runs_of_another_task_are_no_runs_of_smoke(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    log.add("translation, level 0, strict, rate 0.03, seed 0", {"error": 0.1})
    with pytest.raises(ValueError, match=r"'translation, level 0, .*' is no run of smoke"):
        section(log)


def test_runs_of_smoke_are_those_at_the_rate_that_was_chosen(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    for rate, validation in zip(levels.RATES, (0.2, 0.1, 0.3), strict=True):
        for run in levels.trials("rotation", "strict", rate):
            log.add(str(run), {"validation": validation, "error": rate})
    # The trials of this way are not done.
    log.add("rotation, level 0, plain, rate 0.03, seed 0", {"validation": 0.1, "error": 0.1})
    lowest, highest = min(levels.LEVELS), max(levels.LEVELS)
    chosen = {"strict": {0: {"validation": 0.1, "error": levels.RATES[1]}}}
    rates = rates_of(list(LABELS), partial(levels.chosen_rate, "rotation"), log)
    assert rates == {"strict": levels.RATES[1]}
    assert results_of(log, rates) == {lowest: chosen, highest: chosen}


@pytest.mark.slow
def test_the_evidence_is_a_way_of_smoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(levels, "simulated", lambda puffs, cache: torch.rand(8, 4, 3, 3, 12, 12))
    monkeypatch.setattr(levels, "FRAMES_AHEAD", 2)
    # Three epochs of 40 pairs.
    monkeypatch.setattr(levels, "STEPS", 15)
    result = levels.train(levels.Run("rotation", 9, "evidence", 1e-2, 0), tmp_path)
    assert result.keys() >= READ | {"error", "rollout", "softness"}
    assert len(result["history"]) == 1


@pytest.mark.slow
def test_the_evidence_is_a_way_of_buoyant_flow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(buoyancy, "simulated", lambda flow, cache: torch.rand(14, 2, 4, 6, 6, 6))
    monkeypatch.setattr(buoyancy, "TRAINING", 12)
    # Three epochs of 12 pairs.
    result = buoyancy.train(buoyancy.Run(0.5, "evidence", 9, 0), tmp_path)
    assert result.keys() >= READ | {"error", "rollout", "softness"}
    assert len(result["history"]) == 1
