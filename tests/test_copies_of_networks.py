"""Relaxed copies of networks: objects that they share with their source, and among their modules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import small
import torch
from errors import SINGLE, relative_error
from escnn import gspaces, nn
from escnn.nn import FieldType, R2Conv
from trained_networks import answer, convolution, network, train_a_step

from escnn_relaxed import RelaxedR2Conv, export_network, harden_network, relax_network
from escnn_relaxed.network import to_escnn

SOFT = {"rotation": 0.2}


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_source_is_left_as_it_is_and_shares_nothing(mode: str) -> None:
    trained = network().train(mode == "train")
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    relaxed = relax_network(trained, relax=SOFT)
    shared = {tensor.data_ptr() for tensor in [*trained.parameters(), *trained.buffers()] if tensor.numel()}
    assert not shared & {tensor.data_ptr() for tensor in [*relaxed.parameters(), *relaxed.buffers()]}
    assert not any(a is b or a.out_type != b.out_type for a, b in zip(trained, relaxed, strict=True))
    train_a_step(relaxed.train())
    after = trained.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(module.training == (mode == "train") for module in trained.modules())
    kinds = [RelaxedR2Conv if type(module) is R2Conv else type(module) for module in trained]
    assert [type(module) for module in relaxed] == kinds
    assert kinds.count(RelaxedR2Conv) == 3


class Holding(torch.nn.Module):
    """One layer used twice and in a list, one that shares its weights, and an attribute beside the layers."""

    def __init__(self, held: object = None) -> None:
        super().__init__()
        self.first = self.second = convolution("C4", "regular -> regular", padding=1)
        self.known, self.held = [self.first], held
        self.third = convolution("C4", "regular -> regular", padding=1)
        self.third.weights = self.first.weights
        self.in_type = self.first.in_type

    def forward(self, features: nn.GeometricTensor) -> nn.GeometricTensor:
        return self.third(self.second(self.first(features)))


def test_module_that_appears_twice_stays_one_and_shared_weights_shared() -> None:
    relaxed = relax_network(Holding(), relax=SOFT)
    assert isinstance(relaxed.first, RelaxedR2Conv)
    assert relaxed.first is relaxed.second is relaxed.known[0] is not relaxed.third
    assert relaxed.third.weights is relaxed.first.weights


@pytest.mark.filterwarnings("ignore:relax_network leaves Linear strict")
def test_other_modules_of_escnn_do_not_hinder() -> None:
    """In evaluation they keep tensors with a history, as R2Conv does."""
    regular = small.field_type("C4", "regular")
    c4 = regular.fibergroup
    vectors = FieldType(gspaces.no_base_space(c4), [c4.regular_representation])
    for other in (nn.R2ConvTransposed(regular, regular, 3), nn.Linear(vectors, vectors)):
        module = torch.nn.ModuleDict({"layer": convolution("C4", "regular -> regular"), "other": other}).eval()
        relaxed = relax_network(module, lambda name, layer: name == "layer", relax=SOFT)
        assert isinstance(relaxed["layer"], RelaxedR2Conv)
        assert type(harden_network(relaxed)["other"]) is type(other)


def to_and_from_escnn(network: torch.nn.Module) -> torch.nn.Module:
    return to_escnn(harden_network(relax_network(network, relax=SOFT)))


@pytest.mark.filterwarnings("ignore:export_network keeps the forward:UserWarning")
@pytest.mark.parametrize("copied", [relax_network, export_network, to_and_from_escnn])
def test_python_modules_that_a_network_keeps_are_shared(copied: Callable[[torch.nn.Module], torch.nn.Module]) -> None:
    network = Holding({"escnn": [nn], "torch": torch})
    copy = copied(network)
    assert copy.held == network.held
    assert copy.held["escnn"] is not network.held["escnn"]
    assert relative_error(answer(copy), answer(network)) <= SINGLE
