"""Runs of the accuracy benchmark have the names and the numbers they had, in one process and in several."""

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from small_accuracy_runs import few_fields

from benchmarks.accuracy import __main__ as command
from benchmarks.accuracy import networks, runs, training
from benchmarks.accuracy.runs import Cell, Choice, Place
from benchmarks.accuracy.tasks import TASKS, Choosing
from benchmarks.shared import flow, processes
from benchmarks.shared.run_log import Log


@pytest.fixture(autouse=True)
def _few_fields(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from few_fields(monkeypatch)


# Mean square of the logits of 50 images and their loss, of 3 steps with the seed 100.
KNOWN = {
    "strict": (0.014169, 2.307094),
    "free head": (0.027183, 2.287281),
    "reference vector": (0.013362, 2.305176),
    "annealed": (0.009084, 2.290311),
    "penalty": (0.010368, 2.290280),
    "soft": (0.009011, 2.289952),
}


@pytest.mark.parametrize("way", KNOWN)
def test_numbers_of_a_seed_stay_what_they_were(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "LAST", 32)
    cell, choice = Cell("digits within 60°", 100, way, 100), Choice(2, 0.01, 0.1 * (way == "penalty"))
    trainer = runs._trainer(cell, choice, Place(None, Log(tmp_path / "log")))
    training.train(trainer, 3)
    images, labels = (part[:50] for part in trainer.data.scored)
    logits = training.outputs_of(trainer.network, images)
    assert images.sum().item() == pytest.approx(11022.196, rel=1e-5)
    found = logits.square().mean().item(), trainer.objective.loss(logits, labels).item()
    # Other versions of the libraries round float32 in another way.
    assert found == pytest.approx(KNOWN[way], rel=1e-3)


def test_runs_are_called_in_the_log_what_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Cell("digits upright", 100, "soft", 100).key("study", rule="fixed length") == (
        '{"stage": "study", "task": "digits upright", "images": 100, "way": "soft", "seed": 100, '
        '"rule": "fixed length"}'
    )
    asked: list[str] = []
    monkeypatch.setattr(Place, "once", lambda place, run, make: (asked.append(run), {"score": 1.0})[1])
    runs.choose("smoke", "free head", Place(None, Log(tmp_path / "log")))
    assert asked[0] == (
        '{"stage": "choose", "task": "smoke level 9", "images": 5, "way": "free head", "seed": 100, "width": 6, '
        '"rate": 0.01, "penalty": 0.0}'
    )


def test_films_that_are_in_the_folder_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smoke").mkdir()
    films = np.random.default_rng(0).standard_normal((36, 4, 3, 3, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "smoke" / "rotation-9-432e079c02d5.npz", films=films)
    monkeypatch.setattr(flow, "_simulated_puffs", None)
    task = TASKS["smoke level 9"]
    assert task.load(task.pose, 5, 100, tmp_path, True).scored[0].shape == (12 * 4 * 2, 3, 4, 4)


def small_place(path: Path) -> Place:
    """A place that another process can have."""
    task = replace(TASKS["digits within 60°"], group="C4", steps={64: 1})
    choosing = {"digits": Choosing("digits within 60°", 64, 1, (1,))}
    return Place(None, Log(path), {"digits within 60°": task}, choosing=choosing)


def _tell_threads(place: Place) -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    place.once("threads", lambda: {"torch": torch.get_num_threads(), **{name: os.environ[name] for name in names}})


def test_processes_write_what_one_would_to_the_same_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "LAST", 32)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "3")
    torch.set_num_threads(1)
    cells = [Cell("digits within 60°", 64, "strict", seed) for seed in (1000, 1001)]
    found = []
    for path, count in ((tmp_path / "one", 1), (tmp_path / "two", 2)):
        place = small_place(path)
        *choices, tests = command._tests(cells, place)
        for jobs in (*choices, [*tests, _tell_threads]):
            assert processes.do(jobs, place, count)
        assert place.log.runs == Log(path).runs
        assert len(path.read_bytes().splitlines()) == len(place.log.runs) == 9
        threads = place.log.runs.pop("threads")
        found.append({run: result | {"seconds": 0} for run, result in place.log.runs.items()})
    assert found[0] == found[1]
    assert threads.items() >= {"torch": 1, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}.items()


def test_no_run_starts_after_the_last_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "_trainer", None)
    for stage in ("study", "choose", "test"):
        command.main([stage, "--log", str(tmp_path / "log"), "--minutes", "0"])
        assert capsys.readouterr().out == "The time is up. Another call goes on.\n"
    assert not (tmp_path / "log").exists()
    # What the log holds takes no time, and no process.
    place = replace(small_place(tmp_path / "log"), end=0.0)
    cell = Cell("digits within 60°", 64, "strict", 1000)
    place.log.add(cell.key("test"), {"score": 1.0})
    monkeypatch.setattr(processes, "ProcessPoolExecutor", None)
    assert processes.do([partial(runs.test_once, cell)] * 2, place, 2)
    assert not processes.do([partial(runs.test_once, replace(cell, seed=1001))], place, 2)


class ThisOneFailedError(Exception):
    """A run failed."""


def _fail(place: Place) -> None:
    if place.end == math.inf:
        raise ThisOneFailedError
    raise processes.TimeIsUpError


def test_a_run_that_fails_beside_others_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in processes.THREADS:
        monkeypatch.setenv(name, "1")
    # Threads have errors of jobs as processes do, and start sooner.
    monkeypatch.setattr(processes, "ProcessPoolExecutor", lambda count, *_: ThreadPoolExecutor(count))
    with pytest.raises(ThisOneFailedError):
        processes.do([_fail, _fail], small_place(tmp_path / "log"), 2)


def test_penalties_are_chosen_after_the_soft_layers_whose_width_they_have(tmp_path: Path) -> None:
    place = Place(None, Log(tmp_path / "log"))
    cells = [Cell("digits within 60°", 100, way, 1000) for way in ("strict", "penalty", "strict, equal parameters")]
    first, second, third = command._tests(cells, place)
    assert [job.args for job in first] == [("digits", "soft"), ("digits", "strict")]
    assert [job.args for job in second] == [("digits", "penalty")]
    assert [job.args[0] for job in third] == cells
