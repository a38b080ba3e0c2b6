"""ω′ in a group of its own, and what optimisers do with it."""

from __future__ import annotations

import pytest
import torch
from soft_networks import network_of, soft_regular_layer
from torch import nn

from escnn_relaxed import parameter_groups


def learned(count: int = 2) -> nn.Module:
    return network_of(*(soft_regular_layer(learn_relaxation=True, relax={"rotation": 0.2}) for _ in range(count)))


def test_every_parameter_is_in_one_group() -> None:
    network = learned()
    frequencies, rest = (group["params"] for group in parameter_groups(network))
    assert [id(p) for p in frequencies] == [id(network[i].domain_frequency["rotation"]) for i in (0, 2)]
    together = [id(p) for p in (*frequencies, *rest)]
    assert len(set(together)) == len(together)
    assert set(together) == {id(p) for p in network.parameters()}


def test_weight_decay_pulls_weights_and_not_frequencies() -> None:
    network = learned()
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    optimiser = torch.optim.SGD(parameter_groups(network), lr=0.5, weight_decay=0.2)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    for name, parameter in network.named_parameters():
        factor = 1.0 if "domain_frequency" in name else 1 - 0.5 * 0.2
        assert torch.allclose(parameter, factor * before[name]), name


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_frequencies_have_the_rate_that_is_given(kind: type[torch.optim.Optimizer]) -> None:
    network = learned()
    optimiser = kind(parameter_groups(network, 0.5), lr=1e-3, weight_decay=0.1)
    assert [(group["lr"], group["weight_decay"]) for group in optimiser.param_groups] == [(0.5, 0.0), (1e-3, 0.1)]
    plain = kind(parameter_groups(network), lr=1e-3)
    assert [group["lr"] for group in plain.param_groups] == [1e-3, 1e-3]


def test_what_layers_share_is_there_once() -> None:
    network = learned()
    network[2]._domain_frequency = network[0]._domain_frequency
    frequencies, rest = parameter_groups(network)
    assert len(frequencies["params"]) == 1
    assert len(rest["params"]) == len(list(network.parameters())) - 1


@pytest.mark.parametrize("network", [nn.Linear(2, 2), soft_regular_layer()], ids=["no layer", "fixed"])
def test_without_learned_frequencies_there_is_one_group(network: nn.Module) -> None:
    (group,) = parameter_groups(network)
    assert list(group) == ["params"]
    assert len(group["params"]) == len(list(network.parameters()))


@pytest.mark.parametrize(
    ("rate", "kind", "message"),
    [
        (0.0, ValueError, "frequency_rate must be finite and > 0, got 0.0"),
        (float("nan"), ValueError, "frequency_rate must be finite"),
        ("1e-2", TypeError, "frequency_rate must be a number, got '1e-2'"),
        (True, TypeError, "frequency_rate must be a number"),
    ],
)
def test_bad_rates_are_named(rate: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        parameter_groups(learned(1), rate)
