"""The relaxed layers of a network, by name and in order, the size of their ω′, and eval mode for a while."""

from __future__ import annotations

import pytest
import small
from small import build
from torch import nn

from escnn_relaxed.network.relaxed_layers import in_eval_mode, named_relaxed_layers, relaxed_layers


def layer_of(**relax: float) -> nn.Module:
    return build(*small.types("D4", "regular -> regular"), relax=relax or None)


def test_relaxed_layers_are_found_by_name_and_in_order() -> None:
    first, second, third = (layer_of(rotation=0.2) for _ in range(3))
    network = nn.ModuleDict({"body": nn.Sequential(first, nn.ReLU(), second), "head": third, "plain": nn.Linear(2, 2)})
    assert list(named_relaxed_layers(network)) == [("body.0", first), ("body.2", second), ("head", third)]
    assert relaxed_layers(network) == {"body.0": first, "body.2": second, "head": third}
    assert relaxed_layers(first) == {"": first}
    with pytest.raises(ValueError, match="no relaxed layer"):
        relaxed_layers(nn.Linear(2, 2))


def test_every_module_gets_its_own_mode_back_also_after_an_error() -> None:
    """A frozen block in a network that trains, with a module that trains inside."""
    network = nn.Sequential(nn.Sequential(nn.BatchNorm2d(2), nn.ReLU()), nn.ReLU())
    network[0].eval()
    network[0][1].train()
    before = [module.training for module in network.modules()]
    with in_eval_mode(network):
        assert not any(module.training for module in network.modules())
    assert [module.training for module in network.modules()] == before
    with pytest.raises(RuntimeError, match="inside"), in_eval_mode(network):
        raise RuntimeError("inside")
    assert [module.training for module in network.modules()] == before


def test_module_in_two_parents_gets_its_own_mode_back() -> None:
    """A frozen encoder whose batch norm the network lists on its own, too, first and last."""
    encoder = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
    for parts in ([encoder, nn.Sequential(encoder[1], nn.ReLU())], [nn.Sequential(encoder[1], nn.ReLU()), encoder]):
        network = nn.Sequential(*parts)
        network.train()
        encoder.eval()
        with in_eval_mode(network):
            pass
        assert not encoder[1].training
        assert network.training
