"""One ω′ for several layers: one parameter, wherever the network goes."""

from __future__ import annotations

import copy
import pickle

import battery
import pytest
import torch
from escnn.nn import R2Conv
from soft_networks import network_of, soft_regular_layer
from torch import Tensor, nn

from escnn_relaxed import (
    RelaxedR2Conv,
    export_network,
    harden_network,
    parameter_groups,
    relax_network,
    relaxation_summary,
)
from escnn_relaxed.learning import share_domain_frequency
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

BOTH = {"rotation": 0.2, "translation": (0.1, 0.3)}


def learning(*starts: dict[str, object], **arguments: object) -> nn.Module:
    return network_of(*(soft_regular_layer(relax=start, learn_relaxation=True, **arguments) for start in starts))


def layers_of(network: nn.Module) -> list[RelaxedR2Conv]:
    return [layer for _, layer in named_relaxed_layers(network)]


def frequencies_of(network: nn.Module) -> list[nn.Parameter]:
    """Every parameter of ω′, once, as an optimiser sees them."""
    return [value for name, value in network.named_parameters() if "_domain_frequency" in name]


def answer(network: nn.Module) -> Tensor:
    torch.manual_seed(3)
    in_type = layers_of(network)[0].in_type
    return network(in_type(battery.random_input(in_type, 8, 8))).tensor


def test_layers_share_the_mean_of_what_they_had_in_common() -> None:
    network = learning({"rotation": 0.1}, {"rotation": 0.3, "translation": (0.1, 0.5)}, {"translation": 0.2})
    share_domain_frequency(network)
    first, second, third = (layer.domain_frequency for layer in layers_of(network))
    assert first["rotation"] is second["rotation"]
    assert second["translation"] is third["translation"]
    assert first["rotation"].tolist() == pytest.approx([0.2])
    assert second["translation"].tolist() == pytest.approx([0.15, 0.35])
    assert len(frequencies_of(network)) == 2


def test_signs_that_learning_gave_do_not_cancel() -> None:
    network = learning({"translation": (-0.1, 0.2), "rotation": -0.1}, {"translation": (0.3, -0.4), "rotation": 0.1})
    share_domain_frequency(network)
    first, second = (layer.domain_frequency for layer in layers_of(network))
    assert first["rotation"].tolist() == pytest.approx([0.1])
    assert second["translation"].tolist() == pytest.approx([0.2, 0.3])


def test_gradient_of_a_shared_frequency_is_the_sum_of_the_layers() -> None:
    network = learning({"rotation": 0.2}, {"rotation": 0.2})
    answer(network).square().sum().backward()
    apart = [value.grad for value in frequencies_of(network)]
    network.zero_grad()
    share_domain_frequency(network)
    answer(network).square().sum().backward()
    (shared,) = frequencies_of(network)
    assert torch.allclose(shared.grad, sum(apart), rtol=1e-10)
    assert all(gradient.abs().item() > 1e-6 for gradient in apart)


def test_an_optimiser_moves_what_is_shared_for_all() -> None:
    network = learning(BOTH, BOTH)
    share_domain_frequency(network)
    frequencies, rest = (group["params"] for group in parameter_groups(network, 0.1))
    assert sorted(len(value) for value in frequencies) == [1, 2]
    assert len(frequencies) + len(rest) == len(list(network.parameters()))
    optimiser = torch.optim.SGD(parameter_groups(network, 0.1), lr=1e-3)
    answer(network).square().sum().backward()
    optimiser.step()
    first, second = (layer.domain_frequency for layer in layers_of(network))
    assert first["rotation"].item() == second["rotation"].item() != pytest.approx(0.2)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network)), lambda network: network.double().float()],
    ids=["deepcopy", "pickle", "to another type and back"],
)
def test_copies_share_too_and_not_with_the_original(copied) -> None:
    network = learning(BOTH, BOTH).float()
    share_domain_frequency(network)
    other = copied(network)
    assert len(frequencies_of(other)) == 2
    layers_of(other)[0].set_domain_frequency(rotation=0.25, translation=0.5)
    assert layers_of(other)[1].domain_frequency["rotation"].item() == 0.25
    assert layers_of(other)[1].domain_frequency["translation"].tolist() == [0.5, 0.5]
    if other is not network:
        assert layers_of(network)[1].domain_frequency["rotation"].item() == pytest.approx(0.2)


def test_state_dicts_have_the_keys_of_before_and_load() -> None:
    network, other = (learning(BOTH, BOTH) for _ in range(2))
    keys = network.state_dict().keys()
    for each in (network, other):
        share_domain_frequency(each)
    layers_of(network)[1].set_domain_frequency(rotation=0.3, translation=0.7)
    assert network.state_dict().keys() == keys
    other.load_state_dict(network.state_dict())
    assert len(frequencies_of(other)) == 2
    assert torch.equal(answer(other), answer(network))
    assert layers_of(other)[0].domain_frequency["translation"].tolist() == pytest.approx([0.7, 0.7])


def test_state_of_layers_that_share_loads_where_they_do_not() -> None:
    network, other = (learning(BOTH, BOTH) for _ in range(2))
    share_domain_frequency(network)
    other.load_state_dict(network.state_dict())
    assert len(frequencies_of(other)) == 4
    assert torch.equal(answer(other), answer(network))


def test_networks_that_share_can_be_hardened_relaxed_exported_and_summed_up() -> None:
    network = learning(BOTH, BOTH).eval()
    share_domain_frequency(network)
    assert harden_network(network)[0].softness().item() == 0
    assert len(frequencies_of(harden_network(network, ("reflection",)))) == 2
    in_type, _ = battery.types("C4", "regular -> regular")
    mixed = nn.ModuleList([network, R2Conv(in_type, in_type, 3, padding=1).double()])
    assert len(frequencies_of(relax_network(mixed, relax={"rotation": 0.1}))) == 2
    image = battery.random_input(in_type, 8, 8)
    assert torch.allclose(export_network(network)(image), network(in_type(image)).tensor)
    frequency = relaxation_summary(network).rows[1].domain_frequency
    assert frequency["translation"] == pytest.approx((0.1, 0.3))


def test_fixed_frequencies_and_frozen_ones_stay_so() -> None:
    network = network_of(
        soft_regular_layer(),
        *(soft_regular_layer(learn_relaxation=True, relax={"rotation": value}) for value in (0.05, 0.15)),
    )
    for value in frequencies_of(network):
        value.requires_grad_(False)
    share_domain_frequency(network)
    values = [layer.domain_frequency["rotation"] for layer in layers_of(network)]
    assert [value.item() for value in values] == pytest.approx([0.2, 0.1, 0.1])
    assert not any(value.requires_grad for value in values)


@pytest.mark.parametrize(
    ("network", "kind", "message"),
    [
        (soft_regular_layer, ValueError, "no layer that learns .*learn_relaxation=True"),
        (lambda: "net", TypeError, "network must be a torch.nn.Module, got str: 'net'"),
        (lambda: nn.Linear(2, 2), ValueError, "no layer that learns"),
        (lambda: learning({}), ValueError, "no layer that learns"),
    ],
)
def test_what_cannot_be_shared_is_said(network, kind, message: str) -> None:
    with pytest.raises(kind, match=message):
        share_domain_frequency(network())
