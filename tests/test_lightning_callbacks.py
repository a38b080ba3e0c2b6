"""The Lightning callbacks against plain loops with the rules that they wrap; what is logged is what the layers say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tolerances import ROUNDING
from torch import nn

from escnn_relaxed import HardeningSchedule, SoftnessBound
from escnn_relaxed.measure import relaxation_scalars

pytest.importorskip("lightning")

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from lightning_runs import BATCHES, Classifier, SaveAfterEpoch, loader, trainer

from escnn_relaxed.learning.lightning_callbacks import BoundSoftness, HardenInTraining, LogRelaxation, _images

pytestmark = [
    # Lightning's own: what it uses of torch, and advice on loaders and logging that is none for 12 images
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging interval"),
]
SOFT, STRICT = [(), ()], [("rotation", "reflection", "translation")] * 2
ACCUMULATE = pytest.mark.parametrize("accumulate", [1, 2])


class Watch(Callback):
    """After each batch: steps of the optimiser, and whether the network is hardened. Stops training at a step."""

    def __init__(self, stop: int | None = None) -> None:
        self.seen: list[tuple[int, bool]] = []
        self.stop = stop

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        assert pl_module.hardened in (SOFT, STRICT)
        self.seen.append((trainer.global_step, pl_module.hardened == STRICT))
        trainer.should_stop = trainer.global_step == self.stop


def plain_loop(
    rule_of: Callable[[Classifier], HardeningSchedule | SoftnessBound], accumulate: int
) -> tuple[Classifier, HardeningSchedule | SoftnessBound]:
    """A plain loop: the penalty once in a step, however many batches it takes."""
    module = Classifier()
    optimiser, rule = module.configure_optimizers(), rule_of(module)
    for _ in range(4):
        batches = list(loader())
        for chunk in (batches[start : start + accumulate] for start in range(0, len(batches), accumulate)):
            optimiser.zero_grad()
            for batch in chunk:
                (module.loss(batch) / accumulate).backward()
            (rule.penalty() + 0 * module.head.bias.sum()).backward()
            optimiser.step()
            rule.step()
    return module, rule


def assert_same_state(found: nn.Module, expected: nn.Module) -> None:
    state, wanted = found.state_dict(), expected.state_dict()
    assert state.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.allclose(state[name], value, rtol=ROUNDING, atol=ROUNDING), name


@ACCUMULATE
def test_schedule_is_that_of_a_plain_loop(accumulate: int) -> None:
    module, watch = Classifier(), Watch()
    trainer(HardenInTraining(2 / 3, 0.5), watch, accumulate_grad_batches=accumulate).fit(module, loader())
    steps = 4 * BATCHES if accumulate == 1 else 4 * 2  # an epoch ends with a step of one batch
    assert watch.seen[-1] == (steps, True)
    assert watch.seen == [(step, step >= round(steps * 2 / 3)) for step, _ in watch.seen]
    expected, rule = plain_loop(lambda m: HardeningSchedule(m, steps, 2 / 3, 0.5), accumulate)
    assert rule.is_hardened
    assert_same_state(module, expected)
    without, _ = plain_loop(lambda m: HardeningSchedule(m, steps, 2 / 3), accumulate)
    assert not torch.allclose(module.head.weight, without.head.weight)  # the penalty has an effect


@ACCUMULATE
@pytest.mark.parametrize("bound", [0.02, {"network.3": 0.01}], ids=["one", "by name"])
def test_bound_is_that_of_a_plain_loop(bound: float | dict[str, float], accumulate: int) -> None:
    module, callback = Classifier(), BoundSoftness(bound, rate=2.0)
    run = trainer(callback, accumulate_grad_batches=accumulate)
    run.fit(module, loader())
    expected, rule = plain_loop(lambda m: SoftnessBound(m, bound, rate=2.0), accumulate)
    assert_same_state(module, expected)
    assert max(rule.multipliers.values()) > 0.1
    logged = {name: value.item() for name, value in run.callback_metrics.items()}
    assert logged == pytest.approx({f"multiplier/{n}": m for n, m in rule.multipliers.items()}, rel=1e-6)  # in float32


def test_training_without_an_end_is_refused_and_one_that_ends_early_says_that_the_network_is_soft() -> None:
    with pytest.raises(ValueError, match="HardenInTraining needs max_epochs or max_steps"):
        trainer(HardenInTraining(), max_epochs=-1).fit(Classifier(), loader())
    module = Classifier()
    with pytest.warns(UserWarning, match="ended before its step, the network is soft"):
        trainer(HardenInTraining(), Watch(stop=3)).fit(module, loader())
    assert module.hardened == SOFT
    watch = Watch()
    trainer(HardenInTraining(0.5), watch, max_epochs=-1, max_steps=8).fit(Classifier(), loader())
    assert watch.seen == [(step, step >= 4) for step in range(1, 9)]


@pytest.mark.parametrize("callback", [HardenInTraining(1.5), BoundSoftness(2.0), BoundSoftness({"head": 0.1})])
def test_arguments_are_those_of_the_rules(callback: Callback) -> None:
    with pytest.raises(ValueError, match=r"harden_at must be|must be bounded|are not relaxed layers"):
        trainer(callback, max_epochs=1).fit(Classifier(), loader())


CALLBACKS = {
    "before hardening": lambda: HardenInTraining(3 / 4, 0.5),
    "after hardening": lambda: HardenInTraining(1 / 4, 0.5),
    "bound": lambda: BoundSoftness(0.02, rate=2.0),
}


@pytest.mark.parametrize("name", CALLBACKS)
@ACCUMULATE
def test_run_resumed_from_a_checkpoint_ends_as_the_run_that_went_on(accumulate: int, name: str, tmp_path: Path) -> None:
    path = tmp_path / "middle.ckpt"
    module, callback = Classifier(), CALLBACKS[name]()
    trainer(callback, SaveAfterEpoch(path, 1), accumulate_grad_batches=accumulate).fit(module, loader())
    resumed, other, watch = Classifier(), CALLBACKS[name](), Watch()
    trainer(other, watch, accumulate_grad_batches=accumulate).fit(resumed, loader(), ckpt_path=path)
    assert len(watch.seen) == 2 * BATCHES
    assert resumed.hardened == module.hardened == (SOFT if name == "bound" else STRICT)
    assert watch.seen[0][1] == (name == "after hardening")
    assert_same_state(resumed, module)
    assert other.rule.state_dict() == callback.rule.state_dict()


def test_finished_run_goes_on_is_tested_and_saved_again_as_it_is(tmp_path: Path) -> None:
    """In a process of its own, where nothing was trained; the step that hardened was the last."""
    first, second = tmp_path / "first.ckpt", tmp_path / "second.ckpt"
    module, trained = Classifier(), trainer(HardenInTraining(1))
    trained.fit(module, loader())
    trained.save_checkpoint(first)
    (expected,) = trained.test(module, loader(), verbose=False)
    resumed, fresh, tested = Classifier(), Classifier(), trainer(HardenInTraining(1))
    trainer(HardenInTraining(1)).fit(resumed, loader(), ckpt_path=first)
    assert_same_state(resumed, module)
    (found,) = tested.test(fresh, loader(), ckpt_path=first, verbose=False)
    assert fresh.hardened == STRICT
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)  # logged in float32
    tested.save_checkpoint(second)
    states = [torch.load(path, weights_only=False)["callbacks"] for path in (first, second)]
    assert states[1] == states[0] == {"HardenInTraining": {"step": 4 * BATCHES, "is_hardened": True}}


# Logging.


class Keep(DummyLogger):
    """A logger that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: dict[str, list[float]] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        for tag, value in metrics.items():
            self.logged.setdefault(tag, []).append(value)


def test_softness_of_a_run_is_logged_at_the_start_and_after_each_epoch_and_changes_nothing() -> None:
    module, callback, logger = Classifier(), LogRelaxation(), Keep()
    first_images = next(iter(loader()))[0]
    before = relaxation_scalars(module, first_images)
    trainer(callback, max_epochs=2, logger=logger).fit(module, loader())
    after = relaxation_scalars(module, first_images)
    assert before.keys() == after.keys() == callback.history.keys() == logger.logged.keys() - {"epoch"}
    for tag, value in before.items():
        assert callback.history[tag][0] == (0, value)
        assert callback.history[tag][2] == (2 * BATCHES, after[tag])
        assert [step for step, _ in callback.history[tag]] == [0, BATCHES, 2 * BATCHES]
        assert logger.logged[tag] == pytest.approx([of for _, of in callback.history[tag]], rel=1e-6)  # in float32
    assert after["softness/network.0"] != before["softness/network.0"]
    # 4 images of 5×5 pixels in C4 fields, all of whose turns are exact: the layers are soft.
    assert after["equivariance_error/network.3"] > 0.01
    plain = Classifier()
    trainer(max_epochs=2).fit(plain, loader())
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in module.state_dict().items())


IMAGES = torch.ones(2, 4, 5, 5)


@pytest.mark.parametrize(
    "batch",
    [
        IMAGES,
        [torch.zeros(2, dtype=torch.long), IMAGES],
        {"label": torch.zeros(2), "more": ({"image": IMAGES}, "name")},
    ],
)
def test_images_are_found_in_a_batch(batch: Any) -> None:
    (found,) = _images(batch)
    assert found is IMAGES


def test_history_goes_on_from_a_checkpoint_without_errors_if_not_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "middle.ckpt"
    whole, resumed = LogRelaxation(measure=False), LogRelaxation(measure=False)
    trainer(whole, SaveAfterEpoch(path, 1)).fit(Classifier(), loader())
    trainer(resumed).fit(Classifier(), loader(), ckpt_path=path)
    assert "softness/network.0" in whole.history
    for tag, values in whole.history.items():
        assert not tag.startswith("equivariance_error")
        assert [step for step, _ in resumed.history[tag]] == [BATCHES * epoch for epoch in range(5)]
        assert dict(resumed.history[tag]) == pytest.approx(dict(values), rel=1e-9)
