"""The Lightning callbacks against plain loops with the rules that they wrap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import battery
import pytest
import torch
from tolerances import ROUNDING
from torch import nn
from transformations import largest_error

from escnn_relaxed import HardeningSchedule, SoftnessBound

pytest.importorskip("lightning")

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning_runs import BATCHES, Classifier, SaveAfterEpoch, loader, trainer

from escnn_relaxed.learning.lightning_callbacks import BoundSoftness, HardenInTraining

pytestmark = [
    # Lightning's own: what it uses of torch, and advice on loaders and logging that is none for 12 images
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging interval"),
]


SOFT, STRICT = [(), ()], [("rotation", "reflection", "translation")] * 2


class Watch(Callback):
    """After each batch: steps of the optimiser, what is hardened, batches that batch norm has seen."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bool]] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        assert pl_module.hardened in (SOFT, STRICT)
        self.seen.append((trainer.global_step, pl_module.hardened == STRICT))


def chunks(batches: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(batches), size):
        yield batches[start : start + size]


def plain_loop(
    rule_of: Callable[[Classifier], HardeningSchedule | SoftnessBound], epochs: int = 4, accumulate: int = 1
) -> tuple[Classifier, HardeningSchedule | SoftnessBound]:
    """A plain loop: the penalty once in a step, however many batches it takes."""
    module = Classifier()
    optimiser, rule = module.configure_optimizers(), rule_of(module)
    for _ in range(epochs):
        for chunk in chunks(list(loader()), accumulate):
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


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("harden_at", [1 / 4, 2 / 3])
def test_network_is_hardened_at_its_step_and_ends_strict(harden_at: float, accumulate: int) -> None:
    module, watch = Classifier(), Watch()
    callbacks = HardenInTraining(harden_at), watch
    trainer(*callbacks, accumulate_grad_batches=accumulate).fit(module, loader())
    steps = 4 * BATCHES if accumulate == 1 else 4 * 2  # an epoch ends with a step of one batch
    assert watch.seen[-1] == (steps, True)
    assert watch.seen == [(step, step >= round(steps * harden_at)) for step, _ in watch.seen]
    assert module.hardened == STRICT
    features = battery.random_input(module.network.in_type, 5, 5)
    assert largest_error(module.network.eval(), features) <= ROUNDING
    # Estimated in every step, the strict ones last; not anew at the end.
    assert module.statistics.num_batches_tracked == 4 * BATCHES


@pytest.mark.parametrize("accumulate", [1, 2])
def test_schedule_is_that_of_a_plain_loop(accumulate: int) -> None:
    module = Classifier()
    trainer(HardenInTraining(2 / 3, 0.5), accumulate_grad_batches=accumulate).fit(module, loader())
    steps = 4 * BATCHES if accumulate == 1 else 4 * 2
    expected, rule = plain_loop(lambda m: HardeningSchedule(m, steps, 2 / 3, 0.5), accumulate=accumulate)
    assert rule.is_hardened
    assert_same_state(module, expected)
    without, _ = plain_loop(lambda m: HardeningSchedule(m, steps, 2 / 3), accumulate=accumulate)
    assert not torch.allclose(module.head.weight, without.head.weight)  # the penalty has an effect


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("bound", [0.02, {"network.3": 0.01}], ids=["one", "by name"])
def test_bound_is_that_of_a_plain_loop(bound: float | dict[str, float], accumulate: int) -> None:
    module, callback = Classifier(), BoundSoftness(bound, rate=2.0)
    run = trainer(callback, accumulate_grad_batches=accumulate)
    run.fit(module, loader())
    expected, rule = plain_loop(lambda m: SoftnessBound(m, bound, rate=2.0), accumulate=accumulate)
    assert_same_state(module, expected)
    assert callback.rule.multipliers == pytest.approx(rule.multipliers, rel=ROUNDING)
    assert max(callback.rule.multipliers.values()) > 0.1
    logged = {name: value.item() for name, value in run.callback_metrics.items()}
    assert logged == pytest.approx({f"multiplier/{n}": m for n, m in rule.multipliers.items()}, rel=1e-6)  # in float32


def test_training_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="HardenInTraining needs max_epochs or max_steps"):
        trainer(HardenInTraining(), max_epochs=-1).fit(Classifier(), loader())


def test_training_that_ends_early_says_that_the_network_is_soft() -> None:
    class Stop(Callback):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            trainer.should_stop = True

    module = Classifier()
    with pytest.warns(UserWarning, match="ended before its step, the network is soft"):
        trainer(HardenInTraining(), Stop()).fit(module, loader())
    assert module.hardened == [(), ()]


def test_steps_may_be_given_in_place_of_epochs() -> None:
    module, watch = Classifier(), Watch()
    trainer(HardenInTraining(0.5), watch, max_epochs=-1, max_steps=8).fit(module, loader())
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
@pytest.mark.parametrize("accumulate", [1, 2])
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


def test_callback_that_trained_nothing_keeps_the_state_of_its_checkpoint(tmp_path: Path) -> None:
    """As where a finished run is tested and saved again."""
    first, second = tmp_path / "first.ckpt", tmp_path / "second.ckpt"
    trained = trainer(HardenInTraining(1 / 2))
    trained.fit(Classifier(), loader())
    trained.save_checkpoint(first)
    tested = trainer(HardenInTraining(1 / 2))
    tested.test(Classifier(), loader(), ckpt_path=first, verbose=False)
    tested.save_checkpoint(second)
    states = [torch.load(path, weights_only=False)["callbacks"] for path in (first, second)]
    assert states[1] == states[0] == {"HardenInTraining": {"step": 4 * BATCHES, "is_hardened": True}}


def test_network_of_a_hardened_checkpoint_is_tested_strict(tmp_path: Path) -> None:
    """In a process of its own, where nothing was trained."""
    path = tmp_path / "end.ckpt"
    module = Classifier()
    trained = trainer(HardenInTraining(1 / 2))
    trained.fit(module, loader())
    trained.save_checkpoint(path)
    (expected,) = trained.test(module, loader(), verbose=False)
    fresh = Classifier()
    (found,) = trainer(HardenInTraining(1 / 2)).test(fresh, loader(), ckpt_path=path, verbose=False)
    assert fresh.hardened == STRICT
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)  # logged in float32
