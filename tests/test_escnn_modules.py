"""``to_escnn``: a hardened network as escnn's own modules, equal to rounding, whose state escnn's code loads."""

from __future__ import annotations

import copy
from collections.abc import Callable

import battery
import pytest
import torch
from escnn import nn as enn
from escnn.nn import FieldType, R2Conv, R2ConvTransposed
from forms import EVERY_MODE, tensors_of
from networks_to_export import C4, settled
from networks_with_forwards import NARROW, NETWORKS, images
from tolerances import ROUNDING, SINGLE
from torch import Tensor, nn
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, harden_network, relax_network
from escnn_relaxed.baselines import ResidualR2Conv
from escnn_relaxed.layer.convolution import Convolution
from escnn_relaxed.network import to_escnn

PAIRS = {
    "C4": "regular -> irreps",
    "D4": "regular + trivial + regular + quotient -> same",
    "SO(2)": "irreps -> band-limited",
    "O(2)": "irreps -> irreps",
}
GEOMETRIES: dict[str, dict[str, object]] = {
    "plain": {},
    "reflect": {"padding": (2, 1), "padding_mode": "reflect"},
    "stride": {"kernel_size": 5, "stride": 2, "padding": 2, "padding_mode": "circular"},
    "dilation": {"dilation": 2, "bias": False},
}


def answer(module: nn.Module, features: Tensor) -> Tensor:
    with torch.no_grad():
        return module(module.in_type(features)).tensor


def types(space: str) -> tuple[FieldType, FieldType]:
    pair = PAIRS[space]
    if pair.endswith("same"):
        fields = battery.field_type(space, pair.removesuffix(" -> same"))
        return fields, fields
    return battery.types(space, pair)


def soft(space: str, **arguments: object) -> RelaxedR2Conv:
    arguments = {"kernel_size": 3, **arguments}
    return settled(RelaxedR2Conv(*types(space), relax={"rotation": 0.25}, initial_softness=0.3, **arguments))


@EVERY_MODE
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("space", PAIRS)
def test_layer_computes_the_same_in_double_precision(space: str, geometry: str, mode: str) -> None:
    hardened = harden_network(soft(space, **GEOMETRIES[geometry]).double()).train(mode == "train")
    strict = to_escnn(hardened)
    assert type(strict) is R2Conv
    assert strict.training == (mode == "train")
    features = battery.random_input(strict.in_type, 9, 10, dtype=torch.float64)
    assert relative_error(answer(strict, features), answer(hardened, features)) <= ROUNDING
    # escnn's own change of mode keeps it.
    expected = answer(strict, features)
    assert relative_error(answer(strict.train(mode != "train"), features), expected) <= ROUNDING


@EVERY_MODE
@pytest.mark.parametrize("space", PAIRS)
def test_transposed_layer_computes_the_same_in_double_precision(space: str, mode: str) -> None:
    layer = RelaxedR2ConvTransposed(
        *types(space), 5, padding=2, output_padding=1, stride=2, relax={"rotation": 0.25}, initial_softness=0.3
    )
    hardened = harden_network(layer.double()).train(mode == "train")
    strict = to_escnn(hardened)
    assert type(strict) is R2ConvTransposed
    features = battery.random_input(strict.in_type, 5, 6, dtype=torch.float64)
    assert relative_error(answer(strict, features), answer(hardened, features)) <= ROUNDING


def test_groups_are_those_of_escnn() -> None:
    fields = C4
    hardened = harden_network(settled(RelaxedR2Conv(fields, fields, 3, groups=2)).double())
    features = battery.random_input(fields, 7, 7, dtype=torch.float64)
    strict = to_escnn(hardened)
    assert strict.groups == 2
    assert relative_error(answer(strict, features), answer(hardened, features)) <= ROUNDING


def original() -> enn.SequentialModule:
    convolutions = [R2Conv(C4, C4, 3, padding=1), R2Conv(C4, C4, 5, padding=2, bias=False)]
    return enn.SequentialModule(convolutions[0], enn.InnerBatchNorm(C4), enn.ReLU(C4), convolutions[1])


@EVERY_MODE
def test_network_goes_there_and_back(mode: str) -> None:
    """Relaxed and hardened, it is what it was to the last bit, and what escnn builds anew loads its state."""
    trained = settled(original()).train(mode == "train")
    strict = to_escnn(harden_network(relax_network(trained, relax={"rotation": 0.25})))
    assert [type(module) for module in strict] == [type(module) for module in trained]
    fresh = original() if mode == "train" else original().eval()
    fresh.load_state_dict(strict.state_dict())
    features = battery.random_input(C4, 9, 9, dtype=torch.float32)
    # In eval mode first: a pass in training mode changes statistics.
    expected = answer(copy.deepcopy(trained).eval() if mode == "train" else trained, features)
    for module in (strict, fresh):
        assert module.training == (mode == "train")
        assert torch.equal(module[0].weights, trained[0].weights)
        assert torch.equal(answer(module.eval(), features), expected)
        assert torch.equal(answer(module.train(), features), answer(trained.train(), features))


def test_state_in_double_precision_loads_into_what_escnn_builds() -> None:
    hardened = harden_network(relax_network(settled(original()), relax={"rotation": 0.25})).double()
    # A copy, since escnn keeps bases for all layers.
    fresh = copy.deepcopy(original()).double()
    fresh.load_state_dict(to_escnn(hardened).state_dict())
    features = battery.random_input(C4, 9, 9, dtype=torch.float64)
    for mode in (False, True):
        expected = answer(hardened.train(mode), features)
        assert relative_error(answer(fresh.train(mode), features), expected) <= ROUNDING


def test_training_goes_on_in_the_same_way() -> None:
    hardened = harden_network(relax_network(settled(original()), relax={"rotation": 0.25})).double().train()
    strict = to_escnn(hardened)
    features = battery.random_input(C4, 9, 9, dtype=torch.float64)
    slopes = []
    for network in (hardened, strict):
        network(C4(features)).tensor.square().sum().backward()
        slopes.append(dict(network.named_parameters()))
    assert set(slopes[0]) == set(slopes[1])
    for name, parameter in slopes[0].items():
        assert relative_error(slopes[1][name].grad, parameter.grad) <= ROUNDING


@pytest.mark.parametrize("name", ["residual", "concatenation"])
def test_network_with_a_forward_of_its_own_keeps_it(name: str) -> None:
    hardened = harden_network(settled(NETWORKS[name]())).double().eval()
    strict = to_escnn(hardened)
    assert not any(isinstance(module, Convolution) for module in strict.modules())
    assert not {t.data_ptr() for t in tensors_of(hardened)} & {t.data_ptr() for t in tensors_of(strict)}
    with torch.no_grad():
        assert relative_error(strict(images().double()), hardened(images().double())) <= ROUNDING


def test_what_is_shared_stays_shared_and_what_is_frozen_frozen() -> None:
    layers = [RelaxedR2Conv(C4, C4, 3, relax=None) for _ in range(2)]
    layers[1].weights = layers[0].weights
    layers[0].bias.requires_grad_(False)
    strict = to_escnn(nn.Sequential(*layers, layers[0]))
    assert strict[0] is strict[2]
    assert strict[0].weights is strict[1].weights
    assert strict[0].weights.requires_grad
    assert not strict[0].bias.requires_grad
    # Nor do casts of one change the bases of others.
    strict[0].double()
    assert answer(R2Conv(C4, C4, 3), torch.zeros(1, C4.size, 5, 5)).dtype == torch.float32


def low(radius: float) -> float:
    return 1.0 if radius else 0.0


def test_basis_of_other_arguments_is_asked_for() -> None:
    other = settled(enn.SequentialModule(R2Conv(C4, C4, 5, frequencies_cutoff=low, sigma=[0.4, 0.5, 0.6])))
    hardened = harden_network(relax_network(enn.SequentialModule(other, R2Conv(C4, C4, 3))))
    for given in ({}, {"frequencies_cutoff": low}):
        with pytest.raises(ValueError, match=r"0\.0 has another basis than escnn's with (its default|freq)"):
            to_escnn(hardened, **given)
    strict = to_escnn(hardened, frequencies_cutoff=low, sigma=[0.4, 0.5, 0.6])
    features = battery.random_input(C4, 9, 9, dtype=torch.float32)
    assert relative_error(answer(strict, features), answer(hardened, features)) <= SINGLE


def test_layer_that_is_hardened_in_place_is_taken() -> None:
    layer = soft("C4")
    layer.harden()
    features = battery.random_input(layer.in_type, 9, 9, dtype=torch.float32)
    assert relative_error(answer(to_escnn(layer), features), answer(layer, features)) <= SINGLE


def hooked(register: str) -> nn.Module:
    layer = RelaxedR2Conv(C4, C4, 3, relax=None)
    getattr(layer, register)(lambda *_: None)
    return layer


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "soft": (
        lambda: enn.SequentialModule(enn.ReLU(NARROW), RelaxedR2Conv(NARROW, NARROW, 3)),
        ValueError,
        r"1 is not hardened, and escnn has no soft layer: harden_network",
    ),
    "hardened in part": (
        lambda: harden_network(RelaxedR2Conv(NARROW, NARROW, 3), ("rotation",)),
        ValueError,
        r"network is not hardened",
    ),
    "continuous": (
        lambda: harden_network(nn.Sequential(RelaxedR2Conv(C4, C4, 3, strict_kernel="continuous"))),
        ValueError,
        r"0 has a continuous strict part \(strict_kernel='continuous'\)",
    ),
    "other way": (
        lambda: harden_network(ResidualR2Conv(C4, C4, 3)),
        ValueError,
        r"network is a ResidualR2Conv, which has no form in escnn: make it one of RelaxedR2Conv",
    ),
    "even": (lambda: RelaxedR2Conv(C4, C4, 2, relax=None), ValueError, r"network has another basis than escnn's"),
    "hook": (lambda: hooked("register_forward_hook"), ValueError, "network has forward_hooks, which would be lost"),
    "hook before": (
        lambda: hooked("register_forward_pre_hook"),
        ValueError,
        "network has forward_pre_hooks, which would be lost",
    ),
    "nothing": (lambda: nn.Linear(2, 2), ValueError, "network has no relaxed layer"),
    "no module": (lambda: "net", TypeError, r"network must be a torch\.nn\.Module, got str: 'net'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_layer_of_escnn_is_refused(case: str) -> None:
    build, error, message = REFUSED[case]
    network = build()
    with pytest.raises(error, match=message):
        to_escnn(network)


def test_keyword_that_is_not_of_the_basis_is_refused() -> None:
    with pytest.raises(TypeError, match="to_escnn has no argument 'padding'"):
        to_escnn(RelaxedR2Conv(C4, C4, 3, relax=None), padding=1)
