"""The Lightning callback anneals softness, and ends at a strict network."""

import copy
from typing import Any

import pytest
import torch
from errors import ROUNDING, relative_error
from small_networks import answer, features_of

from escnn_relaxed import harden_network
from escnn_relaxed.learning import annealed_gate
from escnn_relaxed.learning.annealing import SCHEDULES

pytest.importorskip("lightning")

from lightning.pytorch import Callback
from test_lightning_callbacks import Classifier, loader, trainer
from test_lightning_callbacks import pytestmark as pytestmark  # what Lightning warns of

from escnn_relaxed.learning.lightning_callbacks import AnnealSoftness


class Gates(Callback):
    """The gates of the first layer and its softness in each epoch."""

    def __init__(self) -> None:
        self.gates: list[list[Any]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.gates.append([gate.value for gate in pl_module.network[0].gates])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_callback_anneals_a_network_that_is_strict_at_its_end(schedule: str) -> None:
    module, seen = Classifier(), Gates()
    before = copy.deepcopy(module.state_dict())
    trainer(AnnealSoftness(schedule), seen, max_epochs=5).fit(module, loader())
    assert seen.gates == [[annealed_gate(epoch / 4, schedule)] for epoch in range(4)] + [[]]
    assert not any(torch.equal(before[name], value) for name, value in module.named_parameters())
    module.eval()
    features = features_of(module.network)
    assert (
        relative_error(answer(module.network, features), answer(harden_network(module.network), features)) <= ROUNDING
    )
    assert all(module.network[number].hardened for number in (0, 3))
    assert all(module.network[number].softness().item() == 0 for number in (0, 3))
    # What loads the state is strict, too.
    other = Classifier()
    other.load_state_dict(module.state_dict())
    assert torch.equal(answer(other.network.eval(), features), answer(module.network, features))


def test_epochs_at_the_end_and_single_subgroups_can_be_chosen() -> None:
    module, seen = Classifier(), Gates()
    trainer(AnnealSoftness("linear", "rotation", strict_epochs=3), seen, max_epochs=5).fit(module, loader())
    assert seen.gates == [[1.0], [0.5], [], [], []]
    assert module.network[0].hardened == ("rotation",)


def test_a_run_that_goes_on_has_the_gate_of_its_epoch(tmp_path: Any) -> None:
    module, seen = Classifier(), Gates()

    class Save(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                trainer.save_checkpoint(tmp_path / "last.ckpt")

    trainer(AnnealSoftness("linear"), Save(), max_epochs=5).fit(module, loader())
    again = Classifier()
    trainer(AnnealSoftness("linear"), seen, max_epochs=5).fit(again, loader(), ckpt_path=tmp_path / "last.ckpt")
    assert seen.gates == [[0.5], [0.25], []]
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in module.state_dict().items())


class Stop(Callback):
    """What ends a training too early, by an exception or not."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.fails:
            raise RuntimeError("of the user")
        trainer.should_stop = True


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_a_training_that_stops_early_leaves_no_gate_and_says_so() -> None:
    module = Classifier()
    with pytest.warns(UserWarning, match="stopped before its strict epochs, so the network is still soft"):
        trainer(AnnealSoftness(), Stop(fails=False), max_epochs=5).fit(module, loader())
    assert module.network[0].gates == ()
    with pytest.raises(RuntimeError, match="of the user"):
        trainer(AnnealSoftness(), Stop(fails=True), max_epochs=5).fit(module, loader())
    assert module.network[0].gates == ()
    assert module.network[0].hardened == ()


def test_callback_refuses_what_it_cannot_anneal() -> None:
    for arguments, message in (
        (("cosines",), "schedule must be one of"),
        (("cosine", "turn"), "subgroups must be of"),
    ):
        with pytest.raises(ValueError, match=message):
            AnnealSoftness(*arguments)
    with pytest.raises(ValueError, match="strict_epochs must be"):
        AnnealSoftness(strict_epochs=0)
    for epochs in (1, -1):
        with pytest.raises(ValueError, match=f"max_epochs must be above 1, got {epochs}"):
            trainer(AnnealSoftness(), max_epochs=epochs).fit(Classifier(), loader())


class Logged(Callback):
    """The gate that is logged in each epoch, and the subgroups of those on the first layer."""

    def __init__(self) -> None:
        self.found: list[tuple[float, list[tuple[str, ...]]]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        subgroups = [gate.subgroups for gate in pl_module.network[0].gates]
        self.found.append((trainer.callback_metrics["gate"].item(), subgroups))


def test_gates_are_logged_and_are_on_the_subgroups_and_the_last_is_zero_whatever_the_schedule() -> None:
    logged = Logged()
    trainer(AnnealSoftness(lambda progress: 0.5, "rotation"), logged, max_epochs=3).fit(Classifier(), loader())
    assert logged.found == [(0.5, [("rotation",)]), (0.5, [("rotation",)]), (0.0, [])]
