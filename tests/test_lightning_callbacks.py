"""The Lightning callbacks against plain loops with the rules that they wrap; what is logged is what the layers say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tolerances import ROUNDING
from torch import nn

from escnn_relaxed import SoftnessBound
from escnn_relaxed.measure import relaxation_scalars

pytest.importorskip("lightning")

from lightning.pytorch import Callback
from lightning.pytorch.loggers.logger import DummyLogger
from lightning_runs import BATCHES, Classifier, SaveAfterEpoch, loader, trainer

from escnn_relaxed.learning.lightning_callbacks import BoundSoftness, LogRelaxation, _images

pytestmark = [
    # Lightning's own: what it uses of torch, and advice on loaders and logging that is none for 12 images
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging interval"),
]
SOFT, STRICT = [(), ()], [("rotation", "reflection", "translation")] * 2
ACCUMULATE = pytest.mark.parametrize("accumulate", [1, 2])


def plain_loop(rule_of: Callable[[Classifier], SoftnessBound], accumulate: int) -> tuple[Classifier, SoftnessBound]:
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


@pytest.mark.parametrize("callback", [BoundSoftness(2.0), BoundSoftness({"head": 0.1})])
def test_arguments_are_those_of_the_rules(callback: Callback) -> None:
    with pytest.raises(ValueError, match=r"must be bounded|are not relaxed layers"):
        trainer(callback, max_epochs=1).fit(Classifier(), loader())


@ACCUMULATE
def test_run_resumed_from_a_checkpoint_ends_as_the_run_that_went_on(accumulate: int, tmp_path: Path) -> None:
    path = tmp_path / "middle.ckpt"
    module, callback = Classifier(), BoundSoftness(0.02, rate=2.0)
    trainer(callback, SaveAfterEpoch(path, 1), accumulate_grad_batches=accumulate).fit(module, loader())
    resumed, other = Classifier(), BoundSoftness(0.02, rate=2.0)
    trainer(other, accumulate_grad_batches=accumulate).fit(resumed, loader(), ckpt_path=path)
    assert_same_state(resumed, module)
    assert other.rule.state_dict() == callback.rule.state_dict()


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
