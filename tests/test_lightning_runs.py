"""LearnSoftness in fine-tuning, after hardening and in second fits; mistakes that end a run at its start."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from escnn import nn as enn
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence
from escnn_relaxed.measure import relaxation_scalars
from escnn_relaxed.network.relaxed_layers import relaxed_layers

pytest.importorskip("lightning")

from lightning.pytorch import Callback, LightningModule, Trainer
from test_lightning_callbacks import BATCH, EPOCHS, IMAGES, Classifier, SaveAfterEpoch, data, loader, trainer

from escnn_relaxed.learning.lightning_callbacks import LearnSoftness, LogSoftness

# Lightning's own: what it uses of torch, and advice on loaders and logging that is none for a few images.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging interval"),
]


class Penalties(Callback):
    """The penalty at the start of each step, of the evidence that a callback has."""

    def __init__(self, learned: LearnSoftness) -> None:
        self.learned, self.seen, self.observations = learned, list[float](), list[int]()

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        evidence = self.learned.evidence
        self.seen.append(0.0 if evidence is None else evidence.penalty().item())
        self.observations.append(0 if evidence is None else evidence.observations)


def harden_all(module: nn.Module) -> None:
    for layer in relaxed_layers(module).values():
        layer.harden()


@pytest.mark.parametrize("frozen", ["head", "norm", "first"])
@pytest.mark.parametrize("decoupled", [False, True])
def test_frozen_parameters_in_the_optimiser_stay_and_the_others_learn(frozen: str, decoupled: bool) -> None:
    module, callback = Classifier(), LearnSoftness("categorical", decoupled=decoupled)
    parts = {"head": module.head, "norm": module.network[1], "first": module.network[0]}
    parts[frozen].requires_grad_(False)
    before = [value.clone() for value in parts[frozen].parameters()]
    trainer(callback).fit(module, loader())
    assert all(map(torch.equal, before, parts[frozen].parameters()))
    assert callback.evidence.penalty() > 0


def test_an_optimiser_of_frozen_parameters_alone_has_no_penalty() -> None:
    class Both(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.stem = nn.Linear(2, 2).requires_grad_(False)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
            self.zero_grad()
            self.manual_backward(self.loss(batch))
            for optimiser in self.optimizers():
                optimiser.step()

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            learning = [value for value in self.parameters() if value.requires_grad]
            return [torch.optim.SGD(values, lr=1e-2) for values in (self.stem.parameters(), learning)]

    callback = LearnSoftness("categorical")
    trainer(callback).fit(Both(), loader())
    assert callback.evidence.penalty() > 0


def test_a_network_is_trained_on_after_all_of_it_is_hardened(tmp_path: Path) -> None:
    path = tmp_path / "hardened.ckpt"
    module, callback = Classifier(), LearnSoftness("categorical")
    run = trainer(callback)
    run.fit(module, loader())
    harden_all(module)
    run.save_checkpoint(path)
    before = module.head.weight.detach().clone()
    trainer(callback, max_epochs=1).fit(module, loader())
    assert not torch.equal(module.head.weight, before)
    other, resumed = LearnSoftness("categorical"), Classifier()
    harden_all(resumed)
    longer = trainer(other, max_epochs=EPOCHS + 1)
    longer.fit(resumed, loader(), ckpt_path=path)
    assert other.evidence is None
    # What was learned stays in the checkpoints, for layers that are made soft again.
    longer.save_checkpoint(path)
    soft, third = Classifier(), LearnSoftness("categorical")

    class Soften(Callback):
        def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
            for layer in relaxed_layers(module).values():
                layer.hardened = ()

    seen = Penalties(third)
    trainer(Soften(), third, seen, max_epochs=EPOCHS + 2).fit(soft, loader(), ckpt_path=path)
    assert min(seen.seen) > 0


def test_a_network_that_was_built_strict_is_refused_before_training() -> None:
    strict = Classifier()
    fields = strict.network.in_type
    strict.network = enn.SequentialModule(RelaxedR2Conv(fields, fields, 3, relax=None).double())
    harden_all(strict)
    with pytest.raises(ValueError, match="no soft weights that learn"):
        trainer(LearnSoftness("categorical")).fit(strict, loader())


def test_a_second_fit_goes_on_with_what_was_learned(tmp_path: Path) -> None:
    """From its first step on, and not from a checkpoint that an earlier fit was resumed from."""
    path = tmp_path / "middle.ckpt"
    module, callback = Classifier(), LearnSoftness("categorical")
    trainer(callback, SaveAfterEpoch(path, 2)).fit(module, loader())
    resumed, other = Classifier(), LearnSoftness("categorical")
    trainer(other).fit(resumed, loader(), ckpt_path=path)
    for learned, network in ((callback, module), (other, resumed)):
        evidence, rows = learned.evidence, list(learned.evidence.table())
        seen = Penalties(learned)
        trainer(learned, seen, max_epochs=1).fit(network, loader())
        assert min(seen.seen) > 0
        assert learned.evidence is evidence
        # Its first epoch is before the first update.
        assert [row.precision for row in evidence.table()] == [row.precision for row in rows]
    trainer(callback, max_epochs=1).fit(Classifier(), loader())
    assert callback.evidence is None  # that of another module


def more(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(count, 4, 5, 5, dtype=torch.float64, generator=generator)
    return TensorDataset(features, torch.randint(0, 2, (count,), generator=generator))


@pytest.mark.parametrize("inputs", [128, 12])
@pytest.mark.parametrize("from_checkpoint", [False, True])
@pytest.mark.parametrize("count", [40, 19])
def test_another_number_of_images_counts_from_the_first_step_on(
    inputs: int, from_checkpoint: bool, count: int, tmp_path: Path
) -> None:
    path = tmp_path / "run.ckpt"
    module, callback = Classifier(), LearnSoftness("categorical", inputs=inputs)
    run = trainer(callback)
    run.fit(module, loader())
    run.save_checkpoint(path)
    if from_checkpoint:
        module, callback = Classifier(), LearnSoftness("categorical", inputs=inputs)
    seen = Penalties(callback)
    longer = trainer(callback, seen, max_epochs=EPOCHS + 3)
    longer.fit(module, DataLoader(more(count), batch_size=BATCH), ckpt_path=path if from_checkpoint else None)
    # The last batch of 19 images is smaller, which the first batch cannot say.
    assert abs(seen.observations[0] - count) < BATCH
    assert seen.observations[-1] == callback.evidence.observations == count


def test_evidence_after_more_data_is_that_of_a_loop_with_their_number() -> None:
    module, callback = Classifier(), LearnSoftness("categorical", inputs=12)
    trainer(callback).fit(module, loader())
    expected = SoftnessEvidence(module, IMAGES)
    expected.load_state_dict(callback.evidence.state_dict())
    expected.observations = 40
    first = 12

    class Update(Callback):
        def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
            if trainer.current_epoch == 2:
                expected.update(more(40).tensors[0][:first])

    trainer(callback, Update(), max_epochs=3).fit(module, DataLoader(more(40), batch_size=BATCH))
    found = [(row.precision, row.determined) for row in callback.evidence.table()]
    assert found == [(pytest.approx(row.precision), pytest.approx(row.determined)) for row in expected.table()]


class ReturnsDict(Classifier):
    def forward(self, features: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"logits": super().forward(features)}

    def loss(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0])["logits"], batch[1])


class TwoArguments(Classifier):
    """The second number of an input is added to its logits; a third argument belongs to no input."""

    def forward(self, features: Tensor, offsets: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        assert len(offsets) == len(features)
        return scale * (super().forward(features) + offsets[:, None])

    def loss(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0], batch[0].mean((1, 2, 3)), torch.tensor(0.5)), batch[1])


class OneLogit(Classifier):
    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features)[:, :1]

    def loss(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self(batch[0])[:, 0], batch[1].double())


class WithoutTargets(Classifier):
    def loss(self, batch: list[Tensor]) -> Tensor:
        return self(batch[0]).square().mean()


class Counted(Dataset):
    """Images without targets, which counts how many were asked for."""

    def __init__(self, images: Tensor) -> None:
        self.images, self.asked = images, 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[Tensor, ...]:
        self.asked += 1
        return (self.images[number],)


MISTAKES: dict[str, tuple[Callable[[], Classifier], dict[str, Any], type[Exception], str]] = {
    "dict": (ReturnsDict, {}, TypeError, "its output must be a tensor or a GeometricTensor, got dict.*output="),
    "two arguments": (TwoArguments, {}, TypeError, "must be all arguments of the forward of TwoArguments.*from_batch="),
    "another likelihood": (OneLogit, {}, ValueError, "likelihood='categorical' is of outputs"),
    "no targets": (WithoutTargets, {"likelihood": "gaussian"}, ValueError, "targets must be given where"),
    "no pair": (Classifier, {"from_batch": lambda batch: batch[0]}, TypeError, r"must return \(inputs, targets\)"),
    "no images": (
        Classifier,
        {"from_batch": lambda batch: ("images", None)},
        TypeError,
        "from_batch: the inputs must be a tensor",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_a_run_before_its_first_step(name: str) -> None:
    make, arguments, error, message = MISTAKES[name]
    module, given = make(), {"likelihood": "categorical", **arguments}
    dataset = Counted(data().tensors[0]) if name == "no targets" else data()
    steps: list[int] = []
    module.on_before_zero_grad = lambda optimiser: steps.append(1)  # type: ignore[method-assign]
    with pytest.raises(error, match=re.compile(message, re.DOTALL)):
        trainer(LearnSoftness(**given)).fit(module, DataLoader(dataset, batch_size=BATCH))
    assert not steps


@pytest.mark.parametrize("name", ["endless", "images"])
def test_fewer_than_ten_images_end_a_run_in_its_first_epoch(name: str) -> None:
    images = Counted(data().tensors[0][:9])

    class Endless(torch.utils.data.IterableDataset):
        """Images whose number Lightning does not know."""

        def __iter__(self) -> Any:
            return (images[number] for number in range(len(images)))

    dataset = images if name == "images" else Endless()
    with pytest.raises(ValueError, match=r"an epoch must have 10 images or more, got 9"):
        trainer(LearnSoftness("categorical")).fit(WithoutTargets(), DataLoader(dataset, batch_size=3))
    assert images.asked <= 9


def test_the_trial_changes_nothing_of_a_run() -> None:
    """The states of torch's generator and of batch norm, and the draws of the updates."""
    runs = []
    for tried in (True, False):
        torch.manual_seed(4)
        module, callback = Classifier(), LearnSoftness("categorical")
        if not tried:
            callback._try = lambda module: None  # type: ignore[method-assign]
        torch.manual_seed(5)
        trainer(callback).fit(module, loader())
        runs.append((module.state_dict(), torch.rand(3), list(callback.evidence.table())))
    assert all(map(torch.equal, runs[0][0].values(), runs[1][0].values()))
    assert torch.equal(runs[0][1], runs[1][1])
    assert runs[0][2] == runs[1][2]


def test_networks_that_return_dicts_or_take_several_inputs_are_learned() -> None:
    plain, named = Classifier(), ReturnsDict()
    expected = LearnSoftness("categorical")
    trainer(expected).fit(plain, loader())
    callback = LearnSoftness("categorical", output=lambda returned: returned["logits"])
    trainer(callback).fit(named, loader())
    assert list(callback.evidence.table()) == list(expected.evidence.table())
    module = TwoArguments()

    def from_batch(batch: list[Tensor]) -> tuple[Any, None]:
        return (batch[0], batch[0].mean((1, 2, 3)), torch.tensor(0.5)), None

    several = LearnSoftness("categorical", inputs=12, from_batch=from_batch)
    images = data().tensors[0]
    before = SoftnessEvidence(module, IMAGES)

    class Update(Callback):
        def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
            if trainer.current_epoch >= 2:
                before.update(from_batch([images[:12]])[0])

    trainer(several, Update()).fit(module, loader())
    assert list(several.evidence.table()) == list(before.table())


def test_softness_is_logged_after_each_epoch_and_kept_in_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    images = data().tensors[0]
    module, log = Classifier(), LogSoftness(images[:4], shifts=[(1, 0)])
    run = trainer(log, max_epochs=2)
    run.fit(module, loader())
    expected = relaxation_scalars(module, images[:4], shifts=[(1, 0)])
    assert len(log.history) == 2
    assert log.history[-1] == pytest.approx(expected)
    assert {name: value.item() for name, value in run.callback_metrics.items()} == pytest.approx(expected, rel=1e-6)
    assert "equivariance_error/network" in log.history[0]
    run.save_checkpoint(path)
    other = LogSoftness()
    trainer(other, max_epochs=3).fit(Classifier(), loader(), ckpt_path=path)
    assert other.history[:2] == log.history
    assert len(other.history) == 3
    with pytest.raises(ValueError, match="no relaxed layer"):
        trainer(LogSoftness(), max_epochs=1).fit(Strict(), loader())


class Strict(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(100, 2).double()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.head(batch[0].flatten(1)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-2)


class Pixels(Classifier):
    """Classes of pixels, of which many are void."""

    def forward(self, images: Tensor) -> Tensor:
        return self.network(self.network.in_type(images)).tensor[:, :2]

    def loss(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1], ignore_index=self.void)


@pytest.mark.parametrize("void", [-100, 255])
def test_void_pixels_of_the_training_batches_count_nowhere(void: int) -> None:
    labels = torch.arange(2).repeat(IMAGES * 13)[: IMAGES * 25].view(IMAGES, 5, 5)
    labels = labels.masked_fill(torch.rand(labels.shape, generator=torch.Generator().manual_seed(0)) < 0.8, void)
    module, callback = Pixels(), LearnSoftness("categorical", ignore_index=void)
    module.void = void
    trainer(callback, max_epochs=3).fit(module, loader(labels))
    by_hand = SoftnessEvidence(module, IMAGES, ignore_index=void)
    by_hand.update(data().tensors[0], labels)
    found = [(row.precision, row.determined) for row in callback.evidence.table()]
    assert found == [(row.precision, row.determined) for row in by_hand.table()]
    assert callback.evidence.penalty() == by_hand.penalty() > 0


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_classes_that_a_loss_leaves_out_are_never_counted_without_a_word() -> None:
    labels = torch.full((IMAGES, 5, 5), -100)
    module = Pixels()
    module.void = -100
    with pytest.warns(UserWarning, match="has -100, which cross_entropy leaves out.*give ignore_index=-100"):
        trainer(LearnSoftness("categorical"), max_epochs=1).fit(module, loader(labels))
    alone = DataLoader(TensorDataset(data().tensors[0]), batch_size=BATCH)
    with pytest.raises(ValueError, match="updates need classes where ignore_index=255, the tensor after the images"):
        trainer(LearnSoftness("categorical", ignore_index=255)).fit(Pixels(), alone)
    with pytest.raises(ValueError, match="ignore_index must be -100 where likelihood='binary'"):
        LearnSoftness("binary", ignore_index=255)
    with pytest.raises(ValueError, match="targets must be given where ignore_index=255: they say which outputs count"):
        SoftnessEvidence(module, IMAGES, ignore_index=255).update(data().tensors[0])
