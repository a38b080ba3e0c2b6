"""The tasks of the benchmark of discovery have the symmetries that they are said to have, and one runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmark_runs import run_here
from torch import Tensor

from benchmarks.symmetry import discovery
from benchmarks.symmetry.discovery import CASES, FIBER_SUBGROUPS
from benchmarks.symmetry.turns import Element, turned

SHIFTS = [(down, right) for down in range(-3, 4) for right in range(-3, 4)]
# The largest of some 400 standard normal numbers is above 5 once in 4,000 times.
ALIKE = 5.0
# Which way they turn is in no statistic of these, and digits are as people write them.
NOT_SEEN = ("letters L and J, turned", "handed spirals", "digits")


def statistics(images: Tensor) -> Tensor:
    """Return each image, and its mean products of second and third order of pixels that are near."""
    products = [(images**power * images.roll(shift, (2, 3))).mean((2, 3)) for power in (1, 2) for shift in SHIFTS]
    return torch.cat([images.flatten(1), *products], 1)


def distance(images: Tensor, others: Tensor) -> float:
    """Return how far the statistic that differs most is apart, in units of chance."""
    one, other = statistics(images), statistics(others)
    chance = (one.var(0) / len(one) + other.var(0) / len(other)).sqrt()
    return ((one.mean(0) - other.mean(0)) / (chance + 1e-6)).abs().max().item()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(NOT_SEEN)])
def test_a_case_breaks_what_it_is_said_to_break(name: str) -> None:
    if "gravel" in name or "faces" in name:
        pytest.importorskip("skimage")
    case = CASES[name]
    images, labels = case.draw(3000, torch.Generator().manual_seed(0), None)
    classes = [images[labels == label] for label in labels.unique()]
    for subgroup in case.subgroups:
        turn = Element(180 if case.group == "C2" else 90)
        moved = [turned(some, turn if subgroup == "rotation" else Element(0, True)) for some in classes]
        far = [[distance(some, other) for other in classes] for some in moved]
        # Moved images that are like no class are poses that the data do not have.
        assert (max(map(min, far)) > ALIKE) == (subgroup in case.poses), far
        # Those of another class, or of none, are not like their own.
        assert (max(row[label] for label, row in enumerate(far)) > ALIKE) == (
            subgroup in (*case.broken, *case.poses)
        ), far


def test_a_later_case_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "HELD_OUT", 64)
    monkeypatch.setattr(discovery, "EPOCHS", 3)
    monkeypatch.setattr(discovery, "FURTHER", 1)
    log = ["--output", str(tmp_path / "log.jsonl"), "--cases", "half turns"]
    run_here("symmetry.discovery", *log, "--images", "64", "--seeds", "7")
    row = run_here("symmetry.discovery", *log, "--table").splitlines()[-1]
    assert row.startswith("| gratings, half turns | none | 64 | ")
    assert row.count("of 1") == 2
    assert row.count("–") == len(FIBER_SUBGROUPS)
