"""A run on digits: killed in the middle of an epoch it goes on to what it would have given; what it writes; errors."""

from __future__ import annotations

import csv
import json
import math
import multiprocessing
import os
import signal
import socket
import sys
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning")
pytest.importorskip("kornia")

from run_processes import killed_at_step, one_of_several

from escnn_relaxed import equivariance_penalty
from experiments.configuration import Configuration, read_row
from experiments.module import ImageClassifier, build_network, learning_rate_factor
from experiments.tasks import load_task
from experiments.training import Machine, run, run_folder

pytestmark = [
    # Lightning's own: what it uses of torch
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
]

TRIAL = read_row("digits-soft").configuration
# Two learned layers deep enough to train, small enough for seconds: 4 steps an epoch.
SMALL = replace(TRIAL, images=64, evaluation_images=32, batch_size=16, fields=(1, 1))
LEARNED = replace(SMALL, learn_relaxation=True, penalty_weight=0.1)
CPU = Machine("cpu", progress_bar=False)


@pytest.fixture(scope="module")
def processes() -> Any:
    """Starts processes that are forked from one that has imported everything and run nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["run_processes"])
    with pytest.MonkeyPatch.context() as patch:
        # It looks for what it imports in the environment's path alone.
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
    return context


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    epochs = [{name: value for name, value in epoch.items() if name != "seconds"} for epoch in result["epochs"]]
    return {**result, "epochs": epochs}


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_with_the_same_metrics(tmp_path: Path, processes: Any) -> None:
    process = processes.Process(target=killed_at_step, args=(6, LEARNED, tmp_path / "killed"))
    process.start()
    process.join(timeout=100)
    assert process.exitcode == -signal.SIGKILL
    folder = run_folder(tmp_path / "killed", "digits-soft", LEARNED, 0)
    assert not (folder / "result.json").exists()
    with (folder / "metrics.csv").open() as file:
        (first,) = csv.DictReader(file)
    assert first["epoch"] == "1"
    resumed = run("digits-soft", LEARNED, 0, None, tmp_path / "killed", CPU)
    # The first epoch was not run again: it took the time that it took then.
    assert resumed["epochs"][0]["seconds"] == float(first["seconds"])
    whole = run("digits-soft", LEARNED, 0, None, tmp_path / "whole", CPU)
    assert without_time(resumed) == without_time(whole)
    assert [epoch["epoch"] for epoch in resumed["epochs"]] == [1, 2, 3]
    other = run("digits-soft", LEARNED, 1, None, tmp_path / "whole", CPU)
    assert without_time(other)["epochs"] != without_time(whole)["epochs"]


@pytest.mark.slow
def test_two_machines_of_one_device_give_what_one_of_two_devices_does(tmp_path: Path, processes: Any) -> None:
    def result(name: str, nodes: int, devices: int) -> dict[str, Any]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        arguments = [
            *f"train digits-soft --output {tmp_path / name} --accelerator cpu --no-progress-bar".split(),
            *f"--devices {devices} --num-nodes {nodes}".split(),
            *["--set", "images=64", "evaluation_images=32", "batch_size=16", "fields=[1,1]", "epochs=2"],
        ]
        both = [
            processes.Process(target=one_of_several, args=(rank, rank % devices, 2, port, arguments)) for rank in (0, 1)
        ]
        for process in both:
            process.start()
        for process in both:
            process.join(timeout=100)
            assert process.exitcode == 0
        # One process of all writes it.
        (path,) = (tmp_path / name).rglob("result.json")
        return without_time(json.loads(path.read_text()))

    machines, machine = result("machines", nodes=2, devices=1), result("machine", nodes=1, devices=2)
    assert machines == machine
    # Too few images to say that it falls.
    assert machine["epochs"][1]["train/loss"] != machine["epochs"][0]["train/loss"]


def test_a_run_writes_its_log_and_is_not_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("digits-soft", SMALL, 0, None, tmp_path, CPU)
    folder = run_folder(tmp_path, "digits-soft", SMALL, 0)
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(result))
    with (folder / "metrics.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [float(line["train/loss"]) for line in lines] == [epoch["train/loss"] for epoch in result["epochs"]]
    assert 100 * float(lines[-1]["validation/accuracy"]) == result["validation_accuracy"]
    assert result["images"] == {"train": 64, "validation": 32, "test": 32}
    assert any((folder / "tensorboard").iterdir())
    monkeypatch.setattr("experiments.training.load_task", None)
    assert run("digits-soft", SMALL, 0, None, tmp_path, CPU) == json.loads(json.dumps(result))


def test_a_run_whose_last_checkpoint_is_damaged_goes_on_from_the_one_before(tmp_path: Path) -> None:
    whole = run("digits-soft", SMALL, 0, None, tmp_path, CPU)
    folder = run_folder(tmp_path, "digits-soft", SMALL, 0)
    (folder / "result.json").unlink()
    checkpoint = folder / "last.ckpt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1000])
    with pytest.warns(UserWarning, match=f"{checkpoint} is damaged"):
        resumed = run("digits-soft", SMALL, 0, None, tmp_path, CPU)
    assert without_time(resumed) == without_time(whole)
    times, times_before = ([epoch["seconds"] for epoch in result["epochs"]] for result in (resumed, whole))
    assert times[:2] == times_before[:2]  # not run again
    assert times[2] != times_before[2]
    assert not list(folder.glob("*.part"))


@pytest.mark.slow
def test_test_images_do_not_change_what_is_trained_or_validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_task(SMALL, None)
    other = replace(task, test=replace(task.test, labels=(task.test.labels + 1) % 10))
    results = []
    for name, loaded in (("plain", task), ("other", other)):
        monkeypatch.setattr("experiments.training.load_task", lambda *_, loaded=loaded: loaded)
        results.append(without_time(run("digits-soft", SMALL, 0, None, tmp_path / name, CPU)))
    assert results[0]["epochs"] == results[1]["epochs"]
    assert results[0]["validation_accuracy"] == results[1]["validation_accuracy"]


def test_the_loss_is_the_cross_entropy_and_the_weighted_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = replace(LEARNED, penalty_weight=0.5)
    module = ImageClassifier(configuration, load_task(configuration, None), 0)
    monkeypatch.setattr(module, "log", lambda *_, **__: None)
    images, labels = torch.rand(4, 1, 28, 28), torch.arange(4)
    loss = module.training_step((images, labels), 0)
    entropy = -module(images).log_softmax(1)[torch.arange(4), labels].mean()
    torch.testing.assert_close(loss, entropy + 0.5 * equivariance_penalty(module.network, "frequency"))


def test_networks_of_one_seed_start_alike() -> None:
    task = load_task(SMALL, None)
    first, again, other = (ImageClassifier(SMALL, task, seed).network.classifier.weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_rows_build_the_networks_that_they_name() -> None:
    strict = build_network(replace(SMALL, relax={"rotation": 0.0}), 10, 1).eval()
    images = torch.rand(2, 1, 28, 28)
    assert torch.equal(strict(images).argmax(1), strict(images.rot90(2, (2, 3))).argmax(1))
    torch.testing.assert_close(strict(images), strict(images.rot90(2, (2, 3))), atol=1e-4, rtol=1e-4)
    partial = build_network(replace(SMALL, layer="partial", relax="default", lifting_kernel_size=1), 10, 1)
    assert partial.features[0].kernel_size == 1
    assert type(partial.features[3].body[0]).__name__ == "PartialR2Conv"


def test_the_learning_rate_rises_linearly_then_falls_as_a_cosine() -> None:
    factors = [learning_rate_factor(step, 5, 105) for step in range(105)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[55] == pytest.approx(0.5)
    assert factors[5:] == sorted(factors[5:], reverse=True)
    assert 0 < factors[-1] < math.pi**2 / 4 / 100**2 * 1.01


@pytest.mark.parametrize(
    ("devices", "num_nodes", "message"), [(0, 1, "devices must be >= 1"), (1, 0, "num_nodes must")]
)
def test_numbers_of_devices_are_checked(devices: int, num_nodes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Machine("cpu", devices, num_nodes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_devices_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="accelerator='gpu' with devices=1 cannot be had on this machine: No"):
        run("digits-soft", SMALL, 0, None, tmp_path, Machine("gpu"))


@pytest.mark.parametrize(
    ("configuration", "machine", "message"),
    [
        (SMALL, Machine("cpu", devices=3), "divisible by 3 devices, got 16"),
        (replace(SMALL, batch_size=128), CPU, "at most 64 images, got 128"),
    ],
)
def test_batches_that_cannot_be_are_refused(
    tmp_path: Path, configuration: Configuration, machine: Machine, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run("digits-soft", configuration, 0, None, tmp_path, machine)
