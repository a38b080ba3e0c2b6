"""``to_escnn``: a hardened network as escnn's own modules, equal to rounding, whose state escnn's code loads.

Networks with a forward of their own are tested in test_drop_in_networks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import small
import torch
from errors import ROUNDING, SINGLE, answer_to, relative_error
from escnn import nn as enn
from escnn.nn import FieldType, R2Conv, R2ConvTransposed
from small_networks import C4, EVERY_MODE, settled
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, harden_network, relax_network
from escnn_relaxed.baselines import ResidualR2Conv
from escnn_relaxed.network import to_escnn

SOFT = {"relax": {"rotation": 0.25}, "initial_softness": 0.3}
FIELDS = small.field_type("D4", "regular + trivial + regular + quotient")
PAIRS = {
    "C4": small.types("C4", "regular -> irreps"),
    "D4": (FIELDS, FIELDS),
    "SO(2)": small.types("SO(2)", "irreps -> band-limited"),
    "O(2)": small.types("O(2)", "irreps -> irreps"),
}
GEOMETRIES: dict[str, dict[str, object]] = {
    "plain": {},
    "reflect": {"padding": (2, 1), "padding_mode": "reflect"},
    "stride": {"kernel_size": 5, "stride": 2, "padding": 2, "padding_mode": "circular"},
    "dilation": {"dilation": 2, "bias": False},
    "transposed": {"kernel_size": 5, "padding": 2, "output_padding": 1, "stride": 2},
}


def random_input(fields: FieldType, dtype: torch.dtype = torch.float64) -> Tensor:
    return small.random_input(fields, 9, 10, dtype=dtype)


@EVERY_MODE
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("space", PAIRS)
def test_layer_computes_the_same_in_double_precision(space: str, geometry: str, mode: str) -> None:
    kinds = (RelaxedR2ConvTransposed, R2ConvTransposed) if geometry == "transposed" else (RelaxedR2Conv, R2Conv)
    soft = settled(kinds[0](*PAIRS[space], **{"kernel_size": 3, **GEOMETRIES[geometry]}, **SOFT))
    hardened = harden_network(soft.double()).train(mode == "train")
    strict = to_escnn(hardened)
    assert type(strict) is kinds[1]
    assert strict.training == (mode == "train")
    features = random_input(strict.in_type)
    expected = answer_to(hardened, features)
    assert relative_error(answer_to(strict, features), expected) <= ROUNDING
    # escnn's own change of mode keeps it.
    assert relative_error(answer_to(strict.train(mode != "train"), features), expected) <= ROUNDING


def test_state_of_a_relaxed_network_loads_into_what_escnn_builds() -> None:
    """The line of docs/how-to/export.md, for a network with two cutoffs."""

    def build() -> enn.SequentialModule:
        kept = R2Conv(C4, C4, 5, frequencies_cutoff=low, sigma=[0.4, 0.5, 0.6])
        return enn.SequentialModule(kept, R2Conv(C4, C4, 3), R2ConvTransposed(C4, C4, 3, groups=2))

    hardened = harden_network(relax_network(settled(build())))
    for fresh in (build(), build().eval()):
        fresh.train().load_state_dict({**fresh.state_dict(), **hardened.state_dict()})
        features = random_input(C4, torch.float32)
        assert relative_error(answer_to(fresh.eval(), features), answer_to(hardened.eval(), features)) <= SINGLE


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
    assert answer_to(R2Conv(C4, C4, 3), torch.zeros(1, C4.size, 5, 5)).dtype == torch.float32


@EVERY_MODE
@pytest.mark.parametrize("kinds", [(RelaxedR2Conv, R2Conv), (RelaxedR2ConvTransposed, R2ConvTransposed)])
def test_groups_with_a_bias_are_those_of_escnn(kinds: tuple[type, type], mode: str) -> None:
    layer = settled(kinds[0](C4, C4, 3, groups=2, relax=None)).train(mode == "train")
    features, strict = random_input(C4, torch.float32), to_escnn(layer)
    fresh = kinds[1](C4, C4, 3, groups=2)
    fresh = fresh if mode == "train" else fresh.eval()
    fresh.load_state_dict(to_escnn(layer).state_dict())
    for each in (strict, fresh):
        assert each.groups == 2
        assert relative_error(answer_to(each.eval(), features), answer_to(layer, features)) <= SINGLE


def original() -> enn.SequentialModule:
    convolutions = [R2Conv(C4, C4, 3, padding=1), R2Conv(C4, C4, 5, padding=2, bias=False)]
    return enn.SequentialModule(convolutions[0], enn.InnerBatchNorm(C4), enn.ReLU(C4), convolutions[1])


@EVERY_MODE
def test_network_goes_there_and_back_and_training_goes_on_in_the_same_way(mode: str) -> None:
    """Relaxed and hardened, it is what it was to the last bit, and what escnn builds anew loads its state."""
    trained = settled(original()).train(mode == "train")
    hardened = harden_network(relax_network(trained, relax={"rotation": 0.25}))
    strict = to_escnn(hardened)
    assert [type(module) for module in strict] == [type(module) for module in trained]
    fresh = original() if mode == "train" else original().eval()
    fresh.load_state_dict(strict.state_dict())
    features = random_input(C4, torch.float32)
    # In eval mode first: a pass in training mode changes statistics.
    expected = answer_to(copy.deepcopy(trained).eval() if mode == "train" else trained, features)
    for module in (strict, fresh):
        assert module.training == (mode == "train")
        assert torch.equal(module[0].weights, trained[0].weights)
        assert torch.equal(answer_to(module.eval(), features), expected)
        assert torch.equal(answer_to(module.train(), features), answer_to(trained.train(), features))
    # In double precision; copies, since escnn keeps bases for all layers.
    hardened, strict, fresh = hardened.double(), to_escnn(hardened.double()), copy.deepcopy(original()).double()
    fresh.load_state_dict(strict.state_dict())
    features = random_input(C4)
    for network in (hardened, strict, fresh):
        network.train()(C4(features)).tensor.square().sum().backward()
    for other in (strict, fresh):
        slopes = dict(other.named_parameters())
        for name, parameter in hardened.named_parameters():
            assert relative_error(slopes.pop(name).grad, parameter.grad) <= ROUNDING
        assert not slopes


def low(radius: float) -> float:
    return 1.0 if radius else 0.0


def test_basis_of_other_arguments_is_asked_for() -> None:
    other = settled(enn.SequentialModule(R2Conv(C4, C4, 5, frequencies_cutoff=low, sigma=[0.4, 0.5, 0.6])))
    hardened = harden_network(relax_network(enn.SequentialModule(other, R2Conv(C4, C4, 3))))
    for given in ({}, {"frequencies_cutoff": low}):
        with pytest.raises(ValueError, match=r"0\.0: escnn's R2Conv has another basis with (its default|freq)"):
            to_escnn(hardened, **given)
    with pytest.raises(TypeError, match="to_escnn has no argument 'padding'"):
        to_escnn(hardened, padding=1)
    strict = to_escnn(hardened, frequencies_cutoff=low, sigma=[0.4, 0.5, 0.6])
    features = random_input(C4, torch.float32)
    assert relative_error(answer_to(strict, features), answer_to(hardened, features)) <= SINGLE


def hooked(register: str) -> nn.Module:
    layer = RelaxedR2Conv(C4, C4, 3, relax=None)
    getattr(layer, register)(lambda *_: None)
    return layer


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: enn.SequentialModule(enn.ReLU(C4), RelaxedR2Conv(C4, C4, 3)), "1 is not hardened, and escnn has no soft"),
    (lambda: harden_network(RelaxedR2Conv(*PAIRS["D4"], 3), ("rotation",)), "network is not hardened"),
    (
        lambda: harden_network(ResidualR2Conv(C4, C4, 3)),
        "network is a ResidualR2Conv, which has no form in escnn: make",
    ),
    (lambda: RelaxedR2Conv(C4, C4, 2, relax=None), r"network: escnn's R2Conv has an empty basis .*rings=\[0.707\] and"),
    (lambda: hooked("register_forward_hook"), "network has forward_hooks, which would be lost"),
    (lambda: hooked("register_forward_pre_hook"), "network has forward_pre_hooks, which would be lost"),
    (lambda: nn.Linear(2, 2), "network has no relaxed layer"),
    (lambda: "net", r"network must be a torch\.nn\.Module, got str: 'net'"),
]


@pytest.mark.parametrize(("build", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_no_layer_of_escnn_is_refused(build: Callable[[], object], message: str) -> None:
    network = build()
    with pytest.raises((TypeError, ValueError), match=message):
        to_escnn(network)
