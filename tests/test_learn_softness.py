"""The Lightning callback that learns how soft, against a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from errors import ROUNDING
from escnn import nn as enn
from torch import Tensor, nn

from escnn_relaxed import SoftnessEvidence

pytest.importorskip("lightning")

from lightning.pytorch import Callback, Trainer
from lightning_runs import QUIET, Classifier, SaveAfterEpoch, trainer
from torch.utils.data import DataLoader, TensorDataset

from escnn_relaxed.learning.lightning_callbacks import LearnSoftness

pytestmark = QUIET

BATCH, IMAGES, EPOCHS = 8, 24, 4


def data(targets: Tensor | None = None) -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(IMAGES, 4, 5, 5, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 2, (IMAGES,), generator=generator) if targets is None else targets
    return TensorDataset(features, labels)


def loader(targets: Tensor | None = None) -> DataLoader:
    return DataLoader(data(targets), batch_size=BATCH)


def plain_loop(
    module: Classifier,
    accumulate: int = 1,
    inputs: int = 128,
    likelihood: str = "categorical",
    targets: Tensor | None = None,
    decoupled: bool = False,
) -> SoftnessEvidence:
    """The penalty once in a step, however many batches it takes, and an update after each epoch from the third on."""
    optimiser, evidence = module.configure_optimizers(), SoftnessEvidence(module, IMAGES, likelihood)
    batches = list(loader(targets))
    for epoch in range(EPOCHS):
        for start in range(0, len(batches), accumulate):
            chunk = batches[start : start + accumulate]
            optimiser.zero_grad()
            for batch in chunk:
                (module.loss(batch) / accumulate).backward()
            if decoupled:
                evidence.decay(optimiser.param_groups[0]["lr"])
            else:
                evidence.penalty().backward()
            optimiser.step()
        if epoch >= 2:
            evidence.update(data().tensors[0][:inputs], targets if likelihood == "gaussian" else None)
    return evidence


@pytest.mark.parametrize(
    ("accumulate", "inputs", "decoupled"), [(1, 128, False), (1, 12, False), (3, 128, False), (3, 128, True)]
)
def test_callback_is_a_plain_loop_with_an_update_after_each_epoch(
    accumulate: int, inputs: int, decoupled: bool
) -> None:
    module, callback = Classifier(), LearnSoftness("categorical", inputs=inputs, decoupled=decoupled)
    run = trainer(callback, accumulate_grad_batches=accumulate)
    run.fit(module, loader())
    expected = Classifier()
    evidence = plain_loop(expected, accumulate, inputs, decoupled=decoupled)
    for name, value in expected.state_dict().items():
        assert torch.allclose(module.state_dict()[name], value, rtol=ROUNDING, atol=ROUNDING), name
    assert callback.evidence is not None
    assert callback.evidence.observations == IMAGES
    rows, wanted = callback.evidence.table(), evidence.table()
    assert [row.determined for row in rows] == pytest.approx([row.determined for row in wanted], rel=1e-9)
    logged = {name: value.item() for name, value in run.callback_metrics.items()}
    shares = {f"determined/{row.layer}/{row.subgroup}": row.gamma_per_weight for row in wanted}
    assert logged == pytest.approx(shares, rel=1e-6)  # in float32


def test_run_resumed_from_a_checkpoint_ends_as_the_run_that_went_on(tmp_path: Path) -> None:
    path = tmp_path / "middle.ckpt"
    module, callback = Classifier(), LearnSoftness("categorical")
    trainer(callback, SaveAfterEpoch(path, 2)).fit(module, loader())
    resumed, other = Classifier(), LearnSoftness("categorical")
    trainer(other).fit(resumed, loader(), ckpt_path=path)
    for name, value in module.state_dict().items():
        assert torch.allclose(resumed.state_dict()[name], value, rtol=ROUNDING, atol=ROUNDING), name
    assert other.evidence is not None
    assert list(other.evidence.table()) == list(callback.evidence.table())


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
@pytest.mark.parametrize(("epoch", "batch"), [(0, 0), (0, 1), (0, 2), (2, 1), (2, 2)])
def test_run_resumed_inside_an_epoch_counts_all_images(epoch: int, batch: int, tmp_path: Path) -> None:
    """Also after the last batch of an epoch, and where fewer are left of it than an update takes."""
    path = tmp_path / "middle.ckpt"

    class Save(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, data: Any, batch_idx: int) -> None:
            if (trainer.current_epoch, batch_idx) == (epoch, batch):
                trainer.save_checkpoint(path)

    trainer(LearnSoftness("categorical"), Save()).fit(Classifier(), loader())
    other = LearnSoftness("categorical")
    trainer(other).fit(Classifier(), loader(), ckpt_path=path)
    assert other.evidence is not None
    assert other.evidence.observations == IMAGES
    assert other.evidence.penalty() > 0


class OfTargets(Classifier):
    """A module whose loss is of the targets that it is given."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.of_targets = loss

    def loss(self, batch: list[Tensor]) -> Tensor:
        return self.of_targets(self(batch[0]), batch[1])


class OneLogit(OfTargets):
    """Without batch norm, so that a batch may be parted; of one logit, for whose curvature nothing is drawn."""

    def __init__(self) -> None:
        super().__init__(nn.BCEWithLogitsLoss())
        first, _, nonlinearity, second = self.network
        self.network = enn.SequentialModule(first, nonlinearity, second)
        self.head = nn.Linear(second.out_type.size, 1).double()


@pytest.mark.slow
def test_two_processes_are_a_plain_loop_over_the_images_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    targets = torch.randint(0, 2, (IMAGES, 1)).double()
    module, expected = OneLogit(), OneLogit()
    run = trainer(LearnSoftness("binary"), devices=2, strategy="ddp_spawn")
    # A step takes all images, since Lightning shuffles them before it parts them.
    run.fit(module, DataLoader(data(targets), batch_size=IMAGES // 2))
    evidence = plain_loop(expected, IMAGES // BATCH, likelihood="binary", targets=targets)
    # Sums are in another order, and Adam divides by gradients, of which some are small.
    difference = max((module.state_dict()[name] - value).abs().max() for name, value in expected.state_dict().items())
    assert difference < 1e-9
    shares = {f"determined/{row.layer}/{row.subgroup}": row.gamma_per_weight for row in evidence.table()}
    assert {name: value.item() for name, value in run.callback_metrics.items()} == pytest.approx(shares, rel=1e-6)


@pytest.mark.parametrize(
    ("likelihood", "targets", "loss"),
    [
        ("binary", torch.randint(0, 2, (IMAGES, 2)).double(), nn.BCEWithLogitsLoss()),
        ("gaussian", torch.randn(IMAGES, 2, dtype=torch.float64), nn.MSELoss()),
    ],
)
def test_other_likelihoods_are_a_plain_loop_too(likelihood: str, targets: Tensor, loss: nn.Module) -> None:
    """An update of a regression takes the targets of its images."""
    module, expected, callback = OfTargets(loss), OfTargets(loss), LearnSoftness(likelihood)
    trainer(callback).fit(module, loader(targets))
    evidence = plain_loop(expected, likelihood=likelihood, targets=targets)
    for name, value in expected.state_dict().items():
        assert torch.allclose(module.state_dict()[name], value, rtol=ROUNDING, atol=ROUNDING), name
    assert callback.evidence is not None
    assert callback.evidence.likelihood == likelihood
    rows, wanted = callback.evidence.table(), evidence.table()
    assert [row.determined for row in rows] == pytest.approx([row.determined for row in wanted], rel=1e-9)


def test_a_regression_without_targets_is_refused() -> None:
    class Alone(Classifier):
        def loss(self, batch: list[Tensor]) -> Tensor:
            return self(batch[0]).square().mean()

    with pytest.raises(ValueError, match="targets must be given where likelihood='gaussian'"):
        trainer(LearnSoftness("gaussian")).fit(Alone(), DataLoader(TensorDataset(data().tensors[0]), batch_size=BATCH))


def test_another_likelihood_than_in_the_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "middle.ckpt"
    trainer(LearnSoftness("categorical"), SaveAfterEpoch(path, 2)).fit(Classifier(), loader())
    with pytest.raises(ValueError, match="likelihood must be 'categorical', as in the checkpoint, got 'binary'"):
        trainer(LearnSoftness("binary")).fit(Classifier(), loader(), ckpt_path=path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"likelihood": "poisson"}, "likelihood must be one of"),
        ({"likelihood": None}, "likelihood must be one of"),
        ({"first_epoch": -1}, "first_epoch must be >= 0"),
        ({"inputs": 9}, "inputs must be >= 10"),
        ({"prior_weights": -1.0}, "prior_weights must be"),
        ({"prior_deviation": 0.0}, "prior_deviation must be"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LearnSoftness(**{"likelihood": "categorical", **arguments})


def test_batches_without_images_are_refused() -> None:
    labels = TensorDataset(torch.zeros(12, dtype=torch.long), torch.zeros(12, dtype=torch.long))
    with pytest.raises(ValueError, match="LearnSoftness: a training batch has no floating-point tensor"):
        trainer(LearnSoftness("categorical")).fit(Classifier(), DataLoader(labels, batch_size=4))
