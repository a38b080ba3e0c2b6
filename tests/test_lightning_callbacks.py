"""The Lightning callback learns how soft as a plain loop does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from errors import ROUNDING
from escnn import nn as enn
from small import soft_regular_layer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from escnn_relaxed import SoftnessEvidence

pytest.importorskip("lightning")

from lightning.pytorch import Callback, LightningModule, Trainer

from escnn_relaxed.learning.lightning_callbacks import LearnSoftness, _is_image, _tensors

# Lightning's own: what it uses of torch, and advice on loaders and logging that is none for a few images.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging interval"),
]

BATCH, IMAGES, EPOCHS = 8, 24, 4


class Classifier(LightningModule):
    """Two soft layers with batch norm between them, and a linear one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        first, second = soft_regular_layer(), soft_regular_layer()
        norm = enn.InnerBatchNorm(first.out_type).double()
        self.network = enn.SequentialModule(first, norm, enn.ReLU(first.out_type), second)
        self.head = nn.Linear(second.out_type.size, 2).double()

    def forward(self, features: Tensor) -> Tensor:
        return self.head(self.network(self.network.in_type(features)).tensor.mean(dim=(2, 3)))

    def loss(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def data(targets: Tensor | None = None) -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(IMAGES, 4, 5, 5, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 2, (IMAGES,), generator=generator) if targets is None else targets
    return TensorDataset(features, labels)


def loader(targets: Tensor | None = None) -> DataLoader:
    return DataLoader(data(targets), batch_size=BATCH)


def trainer(*callbacks: Callback, max_epochs: int = EPOCHS, **arguments: Any) -> Trainer:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return Trainer(max_epochs=max_epochs, callbacks=list(callbacks), accelerator="cpu", **quiet, **arguments)


class SaveAfterEpoch(Callback):
    """A checkpoint in the middle of a run that goes on."""

    def __init__(self, path: Path, epoch: int) -> None:
        self.path, self.epoch = path, epoch

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == self.epoch:
            trainer.save_checkpoint(self.path)


PLANE, VOLUMES = torch.ones(2, 4, 5, 5), torch.ones(2, 4, 5, 5, 5)


@pytest.mark.parametrize(
    ("batch", "images"),
    [
        ([torch.zeros(2, dtype=torch.long), PLANE], PLANE),
        ({"label": torch.zeros(2), "more": ({"image": PLANE}, "name")}, PLANE),
        ([VOLUMES, torch.zeros(2)], VOLUMES),
    ],
)
def test_images_are_found_in_a_batch(batch: Any, images: Tensor) -> None:
    (found,) = filter(_is_image, _tensors(batch))
    assert found is images


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
                evidence.decay(optimiser)
            else:
                evidence.penalty().backward()
            optimiser.step()
        if epoch >= 2:
            evidence.update(data().tensors[0][:inputs], targets if likelihood == "gaussian" else None)
    return evidence


class OfTargets(Classifier):
    """A module whose loss is of the targets that it is given."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.of_targets = loss

    def loss(self, batch: list[Tensor]) -> Tensor:
        return self.of_targets(self(batch[0]), batch[1])


# A module, its targets, arguments of the callback and of the loop.
LOOPS: dict[str, tuple[Callable[[], Classifier], Tensor | None, dict[str, Any], int]] = {
    "few inputs": (Classifier, None, {"likelihood": "categorical", "inputs": 12}, 1),
    "accumulated": (Classifier, None, {"likelihood": "categorical"}, 3),
    "decay": (Classifier, None, {"likelihood": "categorical", "decoupled": True}, 3),
    "binary": (
        lambda: OfTargets(nn.BCEWithLogitsLoss()),
        torch.randint(0, 2, (IMAGES, 2)).double(),
        {"likelihood": "binary"},
        1,
    ),
    "gaussian": (
        lambda: OfTargets(nn.MSELoss()),
        torch.randn(IMAGES, 2, dtype=torch.float64),
        {"likelihood": "gaussian"},
        1,
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_callback_is_a_plain_loop_with_an_update_after_each_epoch(name: str) -> None:
    """Soft weights decay once in a step; an update of a regression takes the targets of its images."""
    make, targets, arguments, accumulate = LOOPS[name]
    module, expected, callback = make(), make(), LearnSoftness(**arguments)
    run = trainer(callback, accumulate_grad_batches=accumulate)
    run.fit(module, loader(targets))
    evidence = plain_loop(expected, accumulate, targets=targets, **arguments)
    for key, value in expected.state_dict().items():
        assert torch.allclose(module.state_dict()[key], value, rtol=ROUNDING, atol=ROUNDING), key
    assert (callback.evidence.observations, callback.evidence.likelihood) == (IMAGES, arguments["likelihood"])
    rows, wanted = callback.evidence.table(), evidence.table()
    assert [row.determined for row in rows] == pytest.approx([row.determined for row in wanted], rel=1e-9)
    logged = {tag: value.item() for tag, value in run.callback_metrics.items()}
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
@pytest.mark.parametrize(("epoch", "batch"), [(0, 1), (0, 2), (2, 2)])
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


class TwoOptimisers(Classifier):
    """Each of two optimisers steps on some of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.zero_grad()
        self.manual_backward(self.loss(batch))
        for optimiser in self.optimizers():
            optimiser.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(part.parameters(), lr=1e-2) for part in (self.head, self.network)]


def test_penalty_counts_once_however_many_optimisers_there_are() -> None:
    one, two = Classifier(), TwoOptimisers()
    for module in (one, two):
        trainer(LearnSoftness("categorical")).fit(module, loader())
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    assert all(torch.allclose(*pair, rtol=ROUNDING, atol=ROUNDING) for pair in pairs)


def test_layers_that_are_frozen_at_first_are_learned_later() -> None:
    class Unfreeze(Callback):
        def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            pl_module.network.requires_grad_(trainer.current_epoch >= 3)

    callback = LearnSoftness("categorical")
    trainer(callback, Unfreeze()).fit(Classifier(), loader())
    assert callback.evidence.penalty() > 0


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


class WithoutTargets(Classifier):
    def loss(self, batch: list[Tensor]) -> Tensor:
        return self(batch[0]).square().mean()


LABELS = torch.zeros(IMAGES, dtype=torch.long)


@pytest.mark.parametrize(
    ("module", "arguments", "tensors", "message"),
    [
        (WithoutTargets, {"likelihood": "gaussian"}, data().tensors[:1], "targets must be given where likelihood="),
        (Classifier, {}, (LABELS, LABELS), "LearnSoftness: a training batch has no floating-point tensor"),
        (Classifier, {"likelihood": "poisson"}, (), "likelihood must be one of"),
        (Classifier, {"first_epoch": -1}, (), "first_epoch must be >= 0"),
        (Classifier, {"inputs": 9}, (), "inputs must be >= 10"),
    ],
)
def test_what_it_cannot_learn_from_is_refused(module: type, arguments: dict, tensors: tuple, message: str) -> None:
    def fit() -> None:
        callback = LearnSoftness(**{"likelihood": "categorical", **arguments})
        trainer(callback).fit(module(), DataLoader(TensorDataset(*tensors), batch_size=BATCH))

    with pytest.raises(ValueError, match=message):
        fit()


def test_another_likelihood_than_in_the_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "middle.ckpt"
    trainer(LearnSoftness("categorical"), SaveAfterEpoch(path, 2)).fit(Classifier(), loader())
    with pytest.raises(ValueError, match="likelihood must be 'categorical', as in the checkpoint, got 'binary'"):
        trainer(LearnSoftness("binary")).fit(Classifier(), loader(), ckpt_path=path)
