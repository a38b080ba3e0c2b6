"""Eval mode for a while."""

from __future__ import annotations

import pytest
from torch import nn

from escnn_relaxed.network.relaxed_layers import in_eval_mode


@pytest.fixture
def network() -> nn.Sequential:
    """A frozen block in a network that trains, with a module that trains inside."""
    network = nn.Sequential(nn.Sequential(nn.BatchNorm2d(2), nn.ReLU()), nn.ReLU())
    network[0].eval()
    network[0][1].train()
    return network


def modes(network: nn.Module) -> list[bool]:
    return [module.training for module in network.modules()]


def test_every_module_gets_its_own_mode_back(network: nn.Sequential) -> None:
    before = modes(network)
    assert sorted(set(before)) == [False, True]
    with in_eval_mode(network):
        assert not any(modes(network))
    assert modes(network) == before


def test_modes_come_back_after_an_error(network: nn.Sequential) -> None:
    before = modes(network)
    with pytest.raises(RuntimeError, match="inside"), in_eval_mode(network):
        raise RuntimeError("inside")
    assert modes(network) == before
