"""Common properties of all other ways to relax: a strict limit, a small soft start, and the layer's interface."""

from __future__ import annotations

import copy
import io
import pickle

import battery
import pytest
import torch
from baseline_layers import EVERY_STRICT_KERNEL, EVERY_WAY, WAYS, baseline, strict_layer, strict_weights
from escnn import nn as enn
from forms import answer, answer_in_eval, features_of, train_a_step
from group_average import acted, energy, subgroup_elements
from tolerances import ROUNDING
from torch import nn
from transformations import largest_error, relative_error, shift_error

from escnn_relaxed import ContinuousKernel, export_network
from escnn_relaxed.baselines import LAYERS
from escnn_relaxed.layer.convolution import RelaxedConvolution

# Symmetry and fields on which every way is defined.
CASES = [
    ("C4", "trivial -> regular"),
    ("C4", "two regular -> regular"),
    ("C8", "quotient -> regular"),
    ("D4", "regular -> two regular"),
    ("D4", "regular -> quotient"),
    ("D4 axis 45°", "trivial -> reordered regular"),
    ("D6", "trivial -> regular"),
    ("flip axis 0", "regular -> regular"),
]
EVERY_CASE = pytest.mark.parametrize(("space", "pair"), CASES)


@EVERY_WAY
@EVERY_CASE
@EVERY_STRICT_KERNEL
def test_strict_limit_is_equivariant_and_the_relaxed_layer_is_not(
    way: str, space: str, pair: str, kernel: ContinuousKernel | None
) -> None:
    layer = baseline(way, space, pair, kernel=kernel)
    features = features_of(layer, side=5)
    assert largest_error(layer, features) > 0.05
    assert shift_error(layer, features) <= ROUNDING
    layer.make_strict()
    assert largest_error(layer, features) <= ROUNDING


@EVERY_WAY
@EVERY_CASE
def test_strict_limit_is_the_strict_layer(way: str, space: str, pair: str) -> None:
    layer = baseline(way, space, pair)
    layer.make_strict()
    strict = strict_layer(layer)
    # One kernel counts fully; of several, each by its weight.
    factors = layer.group_weights[:, 0] if way == "weighted" else torch.ones(1)
    with torch.no_grad():
        strict.weights.copy_(sum(f * weights for f, weights in zip(factors, strict_weights(layer), strict=True)))
        if layer.bias is not None:
            strict.bias.copy_(layer.bias)
    assert relative_error(answer(layer), answer(strict)) <= ROUNDING


@EVERY_WAY
def test_strict_limit_is_r2conv(way: str) -> None:
    """Against escnn itself, whose basis is in float32."""
    layer = baseline(way, "D4", "two regular -> regular", kernel_size=5, padding=2).float()
    layer.make_strict()
    convolution = enn.R2Conv(layer.in_type, layer.out_type, 5, padding=2, padding_mode="circular")
    factors = layer.group_weights[:, 0] if way == "weighted" else torch.ones(1)
    with torch.no_grad():
        convolution.weights.copy_(sum(f * weights for f, weights in zip(factors, strict_weights(layer), strict=True)))
        convolution.bias.copy_(layer.bias)
    assert relative_error(answer(layer), answer(convolution)) < 1e-5


@EVERY_WAY
@pytest.mark.parametrize(("space", "softness"), [("C4", 0.01), ("D4", 0.2)])
def test_layer_starts_as_soft_as_it_is_told(way: str, space: str, softness: float) -> None:
    """s = ‖K − PK‖² / ‖K‖² with P by the explicit average over the group."""
    types = battery.types(space, "two regular -> two regular")
    layer = LAYERS[way](*types, 5, initial_softness=softness)
    with torch.no_grad():
        bank = layer.double().filter_bank()
        strict = acted(layer, bank, subgroup_elements(layer.space)).mean(dim=0)
    # It starts in float32.
    assert float(energy(layer, bank - strict) / energy(layer, bank)) == pytest.approx(softness, rel=1e-5)


@EVERY_WAY
def test_layer_starts_with_the_energy_of_r2conv(way: str) -> None:
    types = battery.types("C8", "two regular -> two regular")
    energies: dict[str, float] = {}
    for name in ("r2conv", way):
        torch.manual_seed(1)
        layers = [LAYERS[way](*types, 5) if name == way else enn.R2Conv(*types, 5) for _ in range(6)]
        energies[name] = sum(float(layer.expand_parameters()[0].detach().square().sum()) for layer in layers)
    assert energies[way] == pytest.approx(energies["r2conv"], rel=0.2)


@EVERY_WAY
def test_layer_is_exported_as_a_convolution(way: str) -> None:
    arguments = {"padding_mode": "reflect", "stride": 2, "groups": 2}
    layer = baseline(way, "C4", "two regular -> two regular", **arguments)
    exported = layer.export()
    assert type(exported) is nn.Conv2d
    features = features_of(layer, side=7)
    assert relative_error(exported(features).detach(), answer(layer, features)) <= ROUNDING
    before = answer(layer, features)
    with torch.no_grad():
        exported.weight.zero_()
    assert torch.equal(answer(layer, features), before)


@EVERY_WAY
def test_network_is_exported(way: str) -> None:
    first, second = baseline(way, "D4", "trivial -> regular"), baseline(way, "D4", "regular -> regular")
    network = enn.SequentialModule(first, enn.ReLU(first.out_type), second)
    features = features_of(first)
    assert relative_error(export_network(network)(features).detach(), answer(network.eval(), features)) <= ROUNDING


@EVERY_WAY
def test_state_has_the_same_keys_in_both_modes_and_loads(way: str) -> None:
    layer, other = (baseline(way, "C4", "regular -> regular") for _ in range(2))
    state = layer.state_dict()
    answer(layer.eval())
    assert layer.state_dict().keys() == state.keys()
    assert relative_error(answer(other), answer(layer)) > 0.1
    other.load_state_dict(layer.state_dict())
    assert torch.equal(answer(other), answer(layer))


@EVERY_WAY
def test_copies_and_pickles_compute_the_same(way: str) -> None:
    layer = baseline(way, "C4", "regular -> regular").eval()
    expected = answer(layer)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(file, weights_only=False)):
        assert torch.equal(answer(copied), expected)
        train_a_step(copied)
        assert torch.equal(answer(layer), expected)


@EVERY_WAY
def test_bank_is_built_once_in_evaluation_and_never_stale(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = baseline(way, "C4", "regular -> regular").eval()
    built = []
    build = type(layer.kernel).forward
    monkeypatch.setattr(type(layer.kernel), "forward", lambda *arguments: built.append(1) or build(*arguments))
    first = answer(layer)
    assert torch.equal(answer(layer), first)
    assert len(built) == 1
    layer.make_strict()
    assert not torch.allclose(answer(layer), first)
    assert relative_error(answer_in_eval(layer), answer(copy.deepcopy(layer).train())) <= ROUNDING
    train_a_step(layer)
    assert relative_error(answer_in_eval(layer), answer(copy.deepcopy(layer).train())) <= ROUNDING


@EVERY_WAY
def test_every_parameter_learns_in_every_precision(way: str) -> None:
    layer = baseline(way, "C4", "regular -> regular")
    layer(layer.in_type(features_of(layer))).tensor.square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name
    expected = answer(layer)
    assert relative_error(answer(layer.float()).double(), expected) < 1e-5
    assert relative_error(answer(layer.double()), expected) < 1e-5


@EVERY_WAY
@EVERY_STRICT_KERNEL
def test_gradients_are_those_of_finite_differences(way: str, kernel: ContinuousKernel | None) -> None:
    layer = baseline(way, "C4", "regular -> regular", kernel=kernel)
    features = features_of(layer, side=3, batch=1)
    names = [name for name, _ in layer.named_parameters()]

    def function(*values: torch.Tensor) -> torch.Tensor:
        called = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (layer.in_type(features),))
        return called.tensor.square().mean()

    assert torch.autograd.gradcheck(function, [p.detach().requires_grad_() for p in layer.parameters()], fast_mode=True)


@EVERY_WAY
def test_a_relaxed_layer_of_this_way_learns_to_leave_the_strict_limit(way: str) -> None:
    layer = baseline(way, "C4", "regular -> regular")
    layer.make_strict()
    features = features_of(layer, side=5)
    # Answers at the identity alone count: what no strict layer can prefer.
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.01)
    layer(layer.in_type(features)).tensor[:, 1:].square().mean().backward()
    optimiser.step()
    assert largest_error(layer, features) > 1e-5


BAD_ARGUMENTS = [
    ({"kernel_size": 0}, ValueError, "kernel_size must be >= 1, got 0"),
    ({"padding_mode": "mirror"}, ValueError, "padding_mode must be one of .*'mirror'"),
    ({"initial_softness": 1.0}, ValueError, r"initial_softness must be in \[0, 1\), got 1.0"),
    ({"initial_softness": "much"}, TypeError, "initial_softness must be a number, got 'much'"),
    ({"frame": "image"}, TypeError, "has no argument 'frame' .='image'.*beside its own it takes .*sigma"),
    ({"kernel": "free"}, TypeError, "kernel must be an .*ContinuousKernel or a subclass of .*Kernel, got str: 'free'"),
]


@EVERY_WAY
@pytest.mark.parametrize(("arguments", "error", "message"), BAD_ARGUMENTS)
def test_bad_arguments_are_named(way: str, arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LAYERS[way](*battery.types("C4", "regular -> regular"), **{"kernel_size": 3, **arguments})


@EVERY_WAY
def test_input_is_checked(way: str) -> None:
    layer = baseline(way, "C4", "regular -> regular")
    with pytest.raises(TypeError, match="input must be a GeometricTensor"):
        layer(features_of(layer))


def test_every_way_is_a_layer_with_one_interface() -> None:
    types = battery.types("C4", "trivial -> regular")
    for way in WAYS:
        layer = LAYERS[way](*types, 5, 2, stride=2, bias=False)
        assert isinstance(layer, RelaxedConvolution)
        assert layer.evaluate_output_shape((2, 1, 9, 9)) == answer(layer, features_of(layer, side=9)).shape
        assert repr(layer).startswith(type(layer).__name__)
