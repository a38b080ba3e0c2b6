"""The gate on softness, K_g = PK + g (K − PK): by a number, for each input, and for each pixel."""

import math
from typing import Any

import pytest
import small
import small_networks as forms
import torch
from errors import BROKEN, ROUNDING, SINGLE_REORDERED, relative_error
from small_networks import answer, features_of, layer_of
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from escnn_relaxed import RelaxedR2Conv, gate_softness, harden_network

# What the table of forms has not: groups that share a convolution, strides, softness in translation at a stride.
MORE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "groups": ("C4", "two regular -> two regular", {"relax": {"rotation": 0.2}, "groups": 2}),
    "groups, in translation": (
        "C4",
        "two regular -> two regular",
        {"relax": {"rotation": 0.2, "translation": 0.3}, "groups": 2, "stride": 2},
    ),
    "strided": ("D4", "regular -> regular", {"relax": {"rotation": 0.2, "reflection": 0.3}, "stride": 2}),
    "on the torus": ("C4", "regular -> regular", {"relax": {"translation": 0.3}, "padding_mode": "circular"}),
    "without a bias": ("C4", "regular -> irreps", {"bias": False}),
}
EVERY_GATED = pytest.mark.parametrize("form", [*forms.ALL, *MORE])
EVERY_SOFT = pytest.mark.parametrize("form", [form for form in [*forms.ALL, *MORE] if "strict" not in form])
A_FEW = pytest.mark.parametrize("form", ["soft", "soft in translation", "soft, continuous", "residual", "linear"])


def gated_layer(form: str) -> Any:
    if form not in MORE:
        return layer_of(form)
    space, pair, arguments = MORE[form]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return small.soft_layer(space, pair, **{"padding": 1, **arguments})


def maps_of(layer: Any, count: int, side: int = 6) -> Tensor:
    """A gate for each pixel of each input, of another size than the feature maps."""
    return torch.rand(count, 1, *[side] * (layer.in_type.gspace.dimensionality or 2), dtype=torch.float64)


@EVERY_GATED
@forms.EVERY_MODE
def test_gate_is_the_line_between_the_layer_and_its_nearest_strict_one(form: str, mode: str) -> None:
    layer = gated_layer(form).train(mode == "train")
    features = features_of(layer, batch=3)
    whole, strict = answer(layer, features), answer(harden_network(layer), features)
    assert "strict" in form or relative_error(whole, strict) > BROKEN
    gates = torch.tensor([0.0, 1.0, -0.7], dtype=torch.float64)
    keys = list(layer.state_dict())
    for gate in (0.0, 1, 0.3, 2.0, torch.tensor(0.4, dtype=torch.float64)):
        with gate_softness(layer, gate):
            found = answer(layer, features)
            assert list(layer.state_dict()) == keys
        assert relative_error(found, strict + gate * (whole - strict)) <= ROUNDING
    with gate_softness(layer, gates):
        found = answer(layer, features)
    each = gates.view(-1, *[1] * (found.dim() - 1))
    assert relative_error(found, strict + each * (whole - strict)) <= ROUNDING
    # An input alone, with its own gate.
    with gate_softness(layer, gates[2:]):
        assert relative_error(answer(layer, features[2:]), found[2:]) <= ROUNDING
    maps = maps_of(layer, 3)
    with gate_softness(layer, maps):
        found = answer(layer, features)
    if form == "linear":
        maps = maps.flatten(1).mean(1, keepdim=True)
    elif maps.shape[2:] != found.shape[2:]:
        kind = "bilinear" if found.dim() == 4 else "trilinear"
        maps = functional.interpolate(maps, found.shape[2:], mode=kind, align_corners=False)
    assert relative_error(found, strict + maps * (whole - strict)) <= ROUNDING
    assert layer.gates == ()
    assert torch.equal(answer(layer, features), whole)


@EVERY_SOFT
def test_gradients_to_the_gate_and_the_weights_are_those_of_finite_differences(form: str) -> None:
    layer = gated_layer(form)
    features = features_of(layer, side=9 if "translation" in form else 3)
    number, each, maps = 0.3, torch.rand(2, dtype=torch.float64), maps_of(layer, 2, 2)

    def call(gate: Tensor, *weights: Tensor) -> Tensor:
        with gate_softness(layer, gate):
            found: Tensor = layer(layer.in_type(features)).tensor
        return found

    for gate in (torch.tensor(number, dtype=torch.float64), each, maps):
        assert torch.autograd.gradcheck(call, gate.clone().requires_grad_(), fast_mode=True)
    # Weights get what they get of the line between the two outputs.
    gate = each.clone().requires_grad_()
    direction = torch.randn_like(call(gate))
    names, parameters = zip(*layer.named_parameters(), strict=True)
    found = torch.autograd.grad(call(gate), parameters, direction, allow_unused=True)
    layer_gate = each.view(-1, *[1] * (direction.dim() - 1))
    whole = torch.autograd.grad(call(torch.ones_like(each)), parameters, direction * layer_gate, allow_unused=True)
    strict = torch.autograd.grad(
        call(torch.zeros_like(each)), parameters, direction * (1 - layer_gate), allow_unused=True
    )
    for name, *values in zip(names, found, whole, strict, strict=True):
        gradient, a, b = (torch.zeros(1) if value is None else value for value in values)
        if not name.endswith("scale"):
            assert (gradient - a - b).norm() <= ROUNDING * max(1, gradient.norm()), name


@EVERY_SOFT
def test_softness_under_a_gate_follows_from_that_without(form: str) -> None:
    layer = gated_layer(form)
    # Where the parts are not orthogonal on the grid the layer's own measure is of a sum of squares, too.
    s, strict = layer.softness().item(), harden_network(layer)
    assert 0 < s < 1
    for gate in (0.3, 2.0):
        with gate_softness(layer, gate):
            assert layer.softness().item() == pytest.approx(gate**2 * s / (1 - s + gate**2 * s), rel=1e-9)
    with gate_softness(layer, torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)):
        found = layer.softness()
    assert found.tolist() == pytest.approx([0, 0.25 * s / (1 - 0.75 * s), s], rel=1e-9, abs=1e-15)
    with gate_softness(layer, 0.0):
        assert layer.softness().item() == 0 == strict.softness().item()


EVERYTHING = {"rotation": 0.2, "reflection": 0.5, "translation": 0.3}


def layer_soft_in_everything(**arguments: Any) -> RelaxedR2Conv:
    return small.soft_layer("D4", "regular -> irreps", padding=1, **{"relax": EVERYTHING, **arguments})


@small.EVERY_KERNEL
def test_named_subgroups_are_gated_alone_and_nested_gates_multiply(soft_part: str) -> None:
    layer = layer_soft_in_everything(soft_part=soft_part)
    features = features_of(layer)

    def hardened(*names: str) -> Tensor:
        return answer(harden_network(layer, names), features)

    whole, turned, shifted = answer(layer), hardened("rotation"), hardened("translation")
    both = hardened("rotation", "translation")
    with gate_softness(layer, 0.3, "rotation"):
        assert relative_error(answer(layer), turned + 0.3 * (whole - turned)) <= ROUNDING
        assert layer.softness("translation").item() > 0
        outer = gate_softness(layer, torch.tensor([0.5, 1.0], dtype=torch.float64), "translation")
        each = torch.tensor([0.5, 1.0], dtype=torch.float64).view(2, 1, 1, 1)
        of_whole, of_shifted = (b + 0.3 * (a - b) for a, b in ((whole, turned), (shifted, both)))
        assert relative_error(answer(layer), of_shifted + each * (of_whole - of_shifted)) <= ROUNDING
    # The first gate is gone, the second is there until it is removed.
    assert relative_error(answer(layer), shifted + each * (whole - shifted)) <= ROUNDING
    outer.remove()
    outer.remove()
    assert layer.gates == ()
    strict = hardened()
    with gate_softness(layer, 0.5), gate_softness(layer, 0.4):
        assert relative_error(answer(layer), strict + 0.2 * (whole - strict)) <= ROUNDING
    layer.harden("rotation")
    with gate_softness(layer, 0.5, "rotation", "translation"):
        assert relative_error(answer(layer), 0.5 * (turned + both)) <= ROUNDING


@small.EVERY_KERNEL
def test_softness_of_gated_subgroups_is_measured_on_the_kernel(soft_part: str) -> None:
    """Of a layer without translation, from its filter banks."""
    layer = layer_soft_in_everything(soft_part=soft_part, relax={"rotation": 0.2, "reflection": 0.5})
    strict = harden_network(layer).filter_bank()
    with gate_softness(layer, 0.6, "reflection"), gate_softness(layer, 0.5, "rotation"):
        gated, found = layer.filter_bank(), layer.softness().item()
        soft = (gated - strict).square().sum()
        assert found == pytest.approx((soft / (soft + strict.square().sum())).item(), rel=1e-9)


def test_gates_by_the_name_of_a_layer_leave_other_layers_alone() -> None:
    network = forms.Network()
    before = dict(network.named_modules())
    soft = answer_of(network)
    with gate_softness(network, {"first": 0.0, "body.3": torch.rand(2, dtype=torch.float64)}):
        assert [name for name, layer in before.items() if getattr(layer, "gates", ())] == ["first", "body.3"]
        found = answer_of(network)
        assert before["first"].softness().item() == 0
    assert relative_error(found, soft) > BROKEN
    with gate_softness(network, 0.0):
        assert relative_error(answer_of(network), answer_of(harden_network(network))) <= ROUNDING
    with gate_softness(network, 1.0):
        assert relative_error(answer_of(network), soft) <= ROUNDING


@torch.no_grad()
def answer_of(network: nn.Module) -> Tensor:
    found: Tensor = network.eval()(network.features)
    return found


def test_an_exception_leaves_nothing_behind() -> None:
    layer = layer_of("soft")
    with pytest.raises(RuntimeError, match="of the user"), gate_softness(layer, 0.5), gate_softness(layer, 0.1):
        raise RuntimeError("of the user")
    assert layer.gates == ()
    for gate in (math.nan, torch.rand(3), {"": 0.5, "third": 0.2}):
        with pytest.raises(ValueError, match="gate must"), gate_softness(layer, gate):
            answer(layer)
        assert layer.gates == ()


NUMBERS = torch.rand(2, 2)


@pytest.mark.parametrize(
    ("gate", "error", "message"),
    [
        ("half", TypeError, "gate must be a number, got 'half'"),
        (None, TypeError, "gate must be a number, got None"),
        (True, TypeError, "gate must be a number, got True"),
        (math.inf, ValueError, "gate must be finite, got inf"),
        (torch.tensor([0.5, math.nan]), ValueError, r"gate must be finite, got a tensor of shape \(2,\)"),
        (torch.tensor([0, 1]), TypeError, "gate must be a floating-point tensor, got one of torch.int64"),
        (NUMBERS, ValueError, r"gate must be .* with one channel, got a tensor of shape \(2, 2\)"),
        (torch.rand(2, 3, 4, 4), ValueError, r"with one channel, got a tensor of shape \(2, 3, 4, 4\)"),
        ({"third": 0.5}, ValueError, r"names of relaxed layers, of \['0', '2'\], got 'third'"),
        ({"0": "half"}, TypeError, "gate must be a number, got 'half'"),
    ],
)
def test_a_gate_of_another_kind_is_refused(gate: object, error: type[Exception], message: str) -> None:
    network = forms.network_of(*[small.soft_regular_layer() for _ in range(2)])
    with pytest.raises(error, match=message):
        gate_softness(network, gate)  # type: ignore[arg-type]
    assert not network[0].gates


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (torch.rand(3), r"one for each of the 2 inputs of a layer, got a tensor of shape \(3,\)"),
        (torch.rand(3, 1, 8, 8), r"one for each of the 2 inputs of a layer, got a tensor of shape \(3, 1, 8, 8\)"),
        (torch.rand(2, 1, 8, 8, 8), r"with 2 axes of pixels for this layer, got a tensor of shape \(2, 1, 8, 8, 8\)"),
    ],
)
def test_a_gate_for_another_batch_or_space_is_refused_by_the_call(gate: Tensor, message: str) -> None:
    layer = layer_of("soft")
    with gate_softness(layer, gate), pytest.raises(ValueError, match=message):
        answer(layer)
    with pytest.raises(ValueError, match=r"subgroups must be of .*, got 'turn'"):
        gate_softness(layer, 0.5, "turn")
    with pytest.raises(ValueError, match="network has no relaxed layer"):
        gate_softness(nn.Linear(2, 2), 0.5)
    with pytest.raises(TypeError, match="network must be"):
        gate_softness(lambda features: features, 0.5)  # type: ignore[arg-type]


# --- torch around it --------------------------------------------------------------------------------------------------


def call_with(layer: Any, features: Tensor, gate: Any) -> Tensor:
    with gate_softness(layer, gate):
        found: Tensor = layer(layer.in_type(features)).tensor
    return found


@A_FEW
@forms.EVERY_MODE
@torch.no_grad()
def test_vmap_over_gates_is_a_loop_over_them(form: str, mode: str) -> None:
    layer = layer_of(form).train(mode == "train")
    features, gates = features_of(layer), torch.rand(3, 2, dtype=torch.float64)
    for some in (gates, gates[:, 0]):
        found = torch.func.vmap(lambda gate: call_with(layer, features, gate))(some)
        expected = torch.stack([call_with(layer, features, gate) for gate in some])
        assert relative_error(found, expected) <= ROUNDING


@A_FEW
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_layers_have_the_same_gradients(form: str, use_reentrant: bool) -> None:
    layer = layer_of(form)
    values = [features_of(layer).requires_grad_(), torch.rand(2, dtype=torch.float64).requires_grad_()]
    expected = torch.autograd.grad(call_with(layer, *values).square().sum(), values)

    def call(features: Tensor) -> Tensor:
        found: Tensor = layer(layer.in_type(features)).tensor
        return found

    with gate_softness(layer, values[1]):
        checkpoint(call, values[0], use_reentrant=use_reentrant).square().sum().backward()
    assert relative_error(values[0].grad, expected[0]) <= ROUNDING
    # A reentrant checkpoint knows the arguments alone: torch's own rule for what a function closes over.
    if not use_reentrant:
        assert relative_error(values[1].grad, expected[1]) <= ROUNDING


@A_FEW
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gates_under_autocast_round_the_convolution_alone(form: str, dtype: torch.dtype) -> None:
    layer = layer_of(form, torch.float32)
    features, gate = features_of(layer), torch.rand(2)
    for each in (gate, 0.3):
        expected = call_with(layer, features, each)
        with torch.autocast("cpu", dtype):
            found = call_with(layer, features, each)
        assert found.dtype == dtype
        assert relative_error(found.float(), expected) <= (2**-6 if dtype == torch.bfloat16 else 2**-9)
    # A gate in half precision, as that of an MLP under autocast.
    assert relative_error(call_with(layer, features, gate.to(dtype)), call_with(layer, features, gate)) <= 2**-7
    assert call_with(layer, features, gate.double()).dtype == torch.float32


@pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="this compiler does not know all of a layer")
# torch's compiler asks for the gradient of what it reads from a module.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("form", ["soft", "soft in translation"])
@pytest.mark.parametrize("shape", [(2,), (), (2, 1, 8, 8)])
def test_a_new_gate_for_each_call_compiles_nothing_anew(form: str, shape: tuple[int, ...]) -> None:
    torch.compiler.reset()
    layer = layer_of(form)
    features = features_of(layer)
    compiled = torch.compile(lambda features: layer(layer.in_type(features)).tensor, backend="eager", fullgraph=True)
    graphs = []
    for _ in range(4):
        gate = torch.rand(shape, dtype=torch.float64).requires_grad_()
        with gate_softness(layer, gate * 1):  # as a network makes it
            found, expected = compiled(features), layer(layer.in_type(features)).tensor
        assert relative_error(found.detach(), expected.detach()) <= ROUNDING
        gradients = (
            torch.autograd.grad(output.square().sum(), gate, retain_graph=True)[0] for output in (found, expected)
        )
        assert relative_error(*gradients) <= ROUNDING
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert len(set(graphs)) == 1
    torch.compiler.reset()


def test_a_network_learns_a_gate_from_a_context() -> None:
    """The weights of what makes the gate have gradients, and the state dict of the network none of it."""
    network = forms.network_of(*[small.soft_regular_layer() for _ in range(2)])
    context, maker = torch.rand(2, 3), nn.Sequential(nn.Linear(3, 1), nn.Sigmoid())
    with forms.left_alone(network), gate_softness(network, maker(context).squeeze(1)):
        network(network.in_type(features_of(network))).tensor.square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in maker.parameters())


def test_single_precision_layers_take_gates_in_double_precision() -> None:
    layer = layer_of("soft", torch.float32)
    features, gate = features_of(layer), torch.rand(2, dtype=torch.float64)
    exact = call_with(layer_of("soft"), features_of(layer_of("soft")), gate)
    assert relative_error(call_with(layer, features, gate).double(), exact) <= SINGLE_REORDERED


def test_softness_under_a_map_is_that_of_the_mean_square_of_its_pixels() -> None:
    layer = layer_of("soft")
    pixels = torch.tensor([[0.0, 0.2, 0.4], [0.6, 0.8, 1.0]], dtype=torch.float64)
    with gate_softness(layer, pixels.view(2, 1, 1, 3)):
        found = layer.softness()
    for each, row in zip(found, pixels, strict=True):
        with gate_softness(layer, row.square().mean().sqrt().item()):
            assert each.item() == pytest.approx(layer.softness().item(), rel=1e-12)
