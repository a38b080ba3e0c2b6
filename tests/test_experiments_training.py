"""A run on digits: after an error in an epoch it goes on as if nothing had been; its loss, its rate, its log."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning")
pytest.importorskip("kornia")


from benchmarks.shared.run_log import Log
from escnn_relaxed.learning import frequency_penalty
from experiments.module import ImageClassifier, learning_rate_factor
from experiments.rows import find_row
from experiments.tasks import load_task
from experiments.training import Machine, run, run_folder

# Lightning's own: what it uses of torch
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")

TRIAL = find_row("digits-soft").configuration
# Two learned layers deep enough to train, small enough for seconds: 4 steps an epoch.
SMALL = replace(TRIAL, images=64, evaluation_images=32, batch_size=16, fields=(1, 1))
LEARNED = replace(SMALL, learn_relaxation=True, penalty_weight=0.1, kernel={"sampling": "random"})
CPU = Machine("cpu", progress_bar=False)


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    epochs = [{name: value for name, value in epoch.items() if name != "seconds"} for epoch in result["epochs"]]
    return {**result, "epochs": epochs}


@pytest.mark.slow
def test_a_run_that_ends_in_an_epoch_goes_on_and_ends_with_the_same_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ImageClassifier.training_step

    def training_step(self: ImageClassifier, batch: Any, number: int) -> Any:
        if self.global_step == 6:
            raise SystemError("killed")
        return plain(self, batch, number)

    with monkeypatch.context() as patch:
        patch.setattr(ImageClassifier, "training_step", training_step)
        with pytest.raises(SystemError, match="killed"):
            run("digits-soft", LEARNED, 0, None, tmp_path / "killed", CPU)
    folder = run_folder(tmp_path / "killed", "digits-soft", LEARNED, 0)
    assert not Log(tmp_path / "killed" / "paper.jsonl").runs
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


def test_the_loss_is_the_cross_entropy_and_the_weighted_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = replace(SMALL, learn_relaxation=True, penalty_weight=0.5)
    module = ImageClassifier(configuration, load_task(configuration, None), 0)
    monkeypatch.setattr(module, "log", lambda *_, **__: None)
    images, labels = torch.rand(4, 1, 28, 28), torch.arange(4)
    loss = module.training_step((images, labels), 0)
    entropy = -module(images).log_softmax(1)[torch.arange(4), labels].mean()
    torch.testing.assert_close(loss, entropy + 0.5 * frequency_penalty(module.network))


def test_the_learning_rate_rises_linearly_then_falls_as_a_cosine() -> None:
    factors = [learning_rate_factor(step, 5, 105) for step in range(105)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[55] == pytest.approx(0.5)
    assert factors[5:] == sorted(factors[5:], reverse=True)
    assert 0 < factors[-1] < math.pi**2 / 4 / 100**2 * 1.01


def test_a_run_waits_writes_its_log_sees_no_test_image_and_is_not_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause, slept = tmp_path / "PAUSE", []
    pause.touch()

    def sleep(seconds: float) -> None:
        # Nothing was trained yet.
        assert not list(tmp_path.rglob("*.ckpt"))
        slept.append(seconds)
        if len(slept) == 2:
            pause.unlink()

    monkeypatch.setattr("benchmarks.shared.pause.time.sleep", sleep)
    result = run("digits-soft", SMALL, 0, None, tmp_path, CPU, pause=pause)
    assert slept == [1, 1]
    folder = run_folder(tmp_path, "digits-soft", SMALL, 0)
    kept = Log(tmp_path / "paper.jsonl").runs
    assert kept == {folder.relative_to(tmp_path).as_posix(): json.loads(json.dumps(result))}
    with (folder / "metrics.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [float(line["train/loss"]) for line in lines] == [epoch["train/loss"] for epoch in result["epochs"]]
    assert 100 * float(lines[-1]["validation/accuracy"]) == result["validation_accuracy"]
    assert result["images"] == {"train": 64, "validation": 32, "test": 32}
    assert any((folder / "tensorboard").iterdir())
    # Of the code, where it is a repository.
    assert result["commit"] is None or len(result["commit"].removesuffix("-dirty")) >= 7
    task = load_task(SMALL, None)
    other_labels = replace(task, test=replace(task.test, labels=(task.test.labels + 1) % 10))
    monkeypatch.setattr("experiments.training.load_task", lambda *_: other_labels)
    other = run("digits-soft", SMALL, 0, None, tmp_path / "other", CPU)
    assert without_time(other)["epochs"] == without_time(result)["epochs"]
    assert other["validation_accuracy"] == result["validation_accuracy"]
    monkeypatch.setattr("experiments.training.load_task", None)
    assert run("digits-soft", SMALL, 0, None, tmp_path, CPU) == json.loads(json.dumps(result))
