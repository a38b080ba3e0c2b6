"""RelaxedR2ConvTransposed as a module: in the place of R2ConvTransposed, its states, plain forms and errors."""

from __future__ import annotations

import inspect
import itertools

import battery
import pytest
import torch
from escnn.nn import R2ConvTransposed, init
from layers import SOFT_PARTS, options_of, relaxation, shake
from tolerances import ROUNDING, SINGLE
from torch import Tensor, nn
from torch.nn import functional
from transformations import answer_to, relative_error
from transposed_layers import EACH_GEOMETRY, GEOMETRIES, soft_transposed_layer

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, RelaxedR2ConvTransposed
from escnn_relaxed.integral.exported import RegionConvolution

EVERY_KERNEL = pytest.mark.parametrize("soft_part", SOFT_PARTS)


def test_arguments_of_r2conv_transposed_come_first_in_its_order() -> None:
    expected = list(inspect.signature(R2ConvTransposed.__init__).parameters.values())
    found = list(inspect.signature(RelaxedR2ConvTransposed.__init__).parameters.values())
    assert [p.name for p in found[: len(expected)]] == [p.name for p in expected]
    assert [p.default for p in found[: len(expected)]] == [p.default for p in expected]
    own = inspect.signature(RelaxedR2Conv.__init__).parameters.values()
    keywords = [(p.name, p.default) for p in own if p.kind is inspect.Parameter.KEYWORD_ONLY]
    assert [(p.name, p.default) for p in found[len(expected) :]] == keywords
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in found[len(expected) :])


# In the place of R2ConvTransposed.

PAIRS = [
    ("C8", "regular + trivial -> irreps + quotient"),
    ("C8", "quotient + quotient -> regular + regular"),
    ("D4", "regular -> irreps + trivial"),
    ("D4", "trivial + mixed -> quotient"),
    ("SO(2)", "irreps + trivial -> band-limited"),
    ("trivial", "trivial + trivial -> trivial + trivial"),
]


@pytest.mark.parametrize(
    ("space", "pair", "geometry"),
    [(space, pair, form) for space, pair in PAIRS for form in ("plain", "output padding", "dilation")]
    + [(*PAIRS[1], "groups"), (*PAIRS[-1], "everything"), (*PAIRS[1], "everything")],
)
@pytest.mark.parametrize("relax", [None, "default"])
def test_layer_with_the_state_of_r2conv_transposed_gives_its_answer(space, pair, geometry, relax) -> None:
    arguments = {"kernel_size": 3, **GEOMETRIES[geometry]}
    in_type, out_type = battery.types(space, pair)
    trained = R2ConvTransposed(in_type, out_type, **arguments)
    shake(trained)
    layer = RelaxedR2ConvTransposed(in_type, out_type, relax=relax, **arguments)
    layer.load_state_dict(trained.state_dict())
    features = battery.random_input(in_type, 5, 6, dtype=torch.float32)
    found, expected = answer_to(layer, features), answer_to(trained, features)
    assert found.shape == expected.shape
    assert relative_error(found, expected) <= SINGLE
    assert layer.softness().item() == 0


@EVERY_KERNEL
@EACH_GEOMETRY
def test_arguments_mean_what_they_mean_in_r2conv_transposed(geometry: str, soft_part: str) -> None:
    """R2ConvTransposed with the layer's filter bank and bias in its place gives the same answer, to the last bit."""
    in_type, out_type = battery.types("C4", "regular + regular -> trivial + irreps + trivial + irreps")
    arguments = {"kernel_size": 3, **GEOMETRIES[geometry]}
    layer = RelaxedR2ConvTransposed(in_type, out_type, relax={"rotation": 0.2}, **options_of(soft_part), **arguments)
    shake(layer)
    # escnn's own kernel is replaced below. It has 3×3 taps, since escnn has none for 2×2.
    convolution = R2ConvTransposed(in_type, out_type, **arguments | {"kernel_size": 3}).eval()
    features = battery.random_input(in_type, 7, 8, dtype=torch.float32)
    with torch.no_grad():
        convolution.filter, convolution.expanded_bias = layer.expand_parameters()
        expected = convolution(in_type(features)).tensor
    assert torch.equal(answer_to(layer, features), expected)
    assert layer.evaluate_output_shape(tuple(features.shape)) == tuple(expected.shape)


@pytest.mark.parametrize("groups", [1, 2])
def test_weights_are_drawn_as_of_r2conv_transposed(groups: int) -> None:
    types = battery.types("D4", "regular + trivial + regular + trivial -> irreps + quotient + irreps + quotient")
    drawn = []
    for kind in (R2ConvTransposed, RelaxedR2ConvTransposed):
        layer = kind(*types, 3, groups=groups)
        torch.manual_seed(0)
        init.generalized_he_init(layer.weights.data, layer.basisexpansion)
        drawn.append(layer.weights.detach())
    assert torch.equal(*drawn)


@pytest.mark.parametrize("relax", [None, {"rotation": 0.2}], ids=["strict", "soft"])
@pytest.mark.parametrize(("saved", "loaded"), list(itertools.product((True, False), repeat=2)))
def test_states_of_both_modes_load_in_both_modes(saved: bool, loaded: bool, relax: dict[str, float] | None) -> None:
    """R2ConvTransposed has a filter as state in one mode alone: its own does not load, or is the filter of before."""
    in_type, out_type = battery.types("C4", "regular -> irreps + trivial")
    trained = R2ConvTransposed(in_type, out_type, 3)
    shake(trained)
    features = battery.random_input(in_type, 4, 4, dtype=torch.float32)
    expected = answer_to(trained, features)
    layer = nn.ModuleDict({"up": RelaxedR2ConvTransposed(in_type, out_type, 3, relax=relax)}).train(loaded)
    answer_to(layer["up"], features)  # fills the cache
    layer.load_state_dict(nn.ModuleDict({"up": trained}).eval().train(saved).state_dict())
    assert relative_error(answer_to(layer["up"], features), expected) <= SINGLE

    shake(layer)
    own = answer_to(layer["up"], features)
    state = layer.train(saved).state_dict()
    other = nn.ModuleDict({"up": RelaxedR2ConvTransposed(in_type, out_type, 3, relax=relax)}).train(loaded)
    other.load_state_dict(state)
    assert relative_error(answer_to(other["up"], features), own) <= SINGLE


def test_filter_bank_is_never_stale_in_evaluation() -> None:
    """R2ConvTransposed keeps its filter in evaluation, whatever becomes of its weights."""
    layer = soft_transposed_layer("C4", "regular -> irreps", relax={"rotation": 0.2}).eval()
    features = battery.random_input(layer.in_type, 4, 4)
    before = answer_to(layer, features)
    shake(layer)
    assert relative_error(answer_to(layer, features), before) > 0.01


def test_state_of_a_convolution_is_refused() -> None:
    types = battery.types("C4", "regular -> regular")
    with pytest.raises(RuntimeError, match="operator is convolution, here transposed convolution"):
        RelaxedR2ConvTransposed(*types, 3).load_state_dict(RelaxedR2Conv(*types, 3).state_dict())
    with pytest.raises(RuntimeError, match="operator is transposed convolution, here convolution"):
        RelaxedR2Conv(*types, 3).load_state_dict(RelaxedR2ConvTransposed(*types, 3).state_dict())


def test_text_says_what_is_not_default() -> None:
    types = battery.types("C4", "regular -> regular")
    layer = RelaxedR2ConvTransposed(*types, 3, padding=1, stride=2, output_padding=1, relax=None)
    assert repr(layer).startswith("RelaxedR2ConvTransposed([")
    assert "kernel_size=3, stride=2, padding=(1, 1), output_padding=(1, 1), domain_frequency=strict" in repr(layer)
    assert (layer.padding, layer.output_padding, layer.stride) == ((1, 1), (1, 1), 2)


# As plain PyTorch.

EXPORTED = {"stationary": nn.ConvTranspose2d, "by regions": RegionConvolution}
EVERY_KIND = pytest.mark.parametrize("kind", EXPORTED)


@EVERY_KIND
@EACH_GEOMETRY
def test_exported_layer_computes_the_same(kind: str, geometry: str) -> None:
    arguments = relaxation(kind, {"rotation": 0.2}) | GEOMETRIES[geometry]
    layer = soft_transposed_layer("C4", "trivial + trivial -> regular + regular", soft_part="tied", **arguments)
    exported = layer.export()
    assert type(exported) is EXPORTED[kind]
    # The second size is one where regions are not cells.
    for size in ((8, 8), (9, 10)):
        features = battery.random_input(layer.in_type, *size)
        with torch.no_grad():
            assert relative_error(exported(features), answer_to(layer.eval(), features)) <= ROUNDING
    shake(layer)
    with torch.no_grad():
        assert relative_error(exported(features), answer_to(layer, features)) > 0.01


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.* is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", ["stationary", "by regions"])
def test_trace_in_evaluation_holds_the_filter_bank(kind: str) -> None:
    layer = soft_transposed_layer("C4", "regular -> irreps", **relaxation(kind, {"rotation": 0.2}), stride=2).eval()

    class OnTensors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, features: Tensor) -> Tensor:
            return self.layer(layer.in_type(features)).tensor

    features = battery.random_input(layer.in_type, 8, 8)
    traced = torch.jit.trace(OnTensors(), features)
    nodes = [node.kind() for node in traced.inlined_graph.nodes()]
    assert nodes.count("aten::_convolution") == 1
    # One product, which expands the bias.
    assert nodes.count("aten::matmul") <= 1
    assert "aten::sin" not in nodes
    other = torch.randn_like(features)
    assert relative_error(traced(other).detach(), answer_to(layer, other)) <= ROUNDING


def test_exported_layer_is_a_graph_for_torch_export() -> None:
    layer = soft_transposed_layer(
        "C4", "trivial -> irreps", **relaxation("by regions", {"rotation": 0.2}), **GEOMETRIES["stride"]
    )
    features = battery.random_input(layer.in_type, 8, 9)
    with torch.no_grad():
        found = torch.export.export(layer.export(), (features,)).module()(features)
        assert relative_error(found, answer_to(layer, features)) <= ROUNDING


@EVERY_KIND
def test_derivatives_and_batches_by_vmap(kind: str) -> None:
    arguments = relaxation(kind, {"rotation": 0.2})
    layer = soft_transposed_layer("C4", "trivial -> irreps", **arguments, stride=2, padding=1, output_padding=1)
    size = (8, 9) if kind == "by regions" else (2, 3)
    features = battery.random_input(layer.in_type, *size, batch=1).requires_grad_()
    assert torch.autograd.gradcheck(layer.linear, features, fast_mode=True)
    weights = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(
        layer.linear(features).square().sum(), weights, create_graph=True, allow_unused=True
    )
    sum(g.square().sum() for g in gradients if g is not None).backward()
    assert all(torch.isfinite(weight.grad).all() for weight in weights if weight.grad is not None)
    many = torch.randn(3, *features.shape, dtype=torch.float64)
    with torch.no_grad():
        found = torch.vmap(layer.linear)(many)
        assert relative_error(found, torch.stack([layer.linear(one) for one in many])) <= ROUNDING


@EVERY_KIND
def test_autocast_gives_its_dtype_and_keeps_the_bank(kind: str) -> None:
    layer = soft_transposed_layer("C4", "trivial -> irreps", **relaxation(kind, {"rotation": 0.2}), stride=2).float()
    features = battery.random_input(layer.in_type, 8, 8, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = answer_to(layer, features)
    assert found.dtype == torch.bfloat16
    assert relative_error(found.float(), answer_to(layer, features)) < 0.02


def test_random_offset_is_of_training_alone() -> None:
    layer = soft_transposed_layer("SO(2)", "irreps -> irreps", relax={"rotation": 0.2}, random_offset=True)
    features = battery.random_input(layer.in_type, 4, 4)
    assert relative_error(answer_to(layer, features), answer_to(layer, features)) > 1e-6
    layer.eval()
    assert torch.equal(answer_to(layer, features), answer_to(layer, features))


# Errors.

BAD_ARGUMENTS = {
    "stride pair": ({"stride": (2, 1)}, ValueError, r"stride must be .* a pair of equal ones, got \(2, 1\)"),
    "output padding": (
        {"output_padding": 1},
        ValueError,
        "output_padding must be below the larger of stride and dilation, got 1 for stride=1, dilation=1: at most 0",
    ),
    "negative output padding": ({"output_padding": -1, "stride": 2}, ValueError, "output_padding must be .*-1"),
    "three paddings": ({"padding": (1, 1, 1)}, ValueError, r"padding must be .*pair.*\(1, 1, 1\)"),
    "no integer": ({"output_padding": 0.5, "stride": 2}, TypeError, "output_padding must be .*0.5"),
    "groups": ({"groups": 2}, ValueError, "groups must divide the number of fields of in_type, got 2 for 1"),
    "regions": ({"regions": 0}, ValueError, "regions must be .*0"),
    "an empty basis": (
        {"basis_filter": lambda element: False},
        ValueError,
        "basis_filter must leave an element of the basis",
    ),
    "a kernel": ({"kernel": ContinuousKernel}, TypeError, "kernel must be an escnn_relaxed.ContinuousKernel"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_raise_an_error_that_says_so(case: str) -> None:
    arguments, error, message = BAD_ARGUMENTS[case]
    with pytest.raises(error, match=message):
        RelaxedR2ConvTransposed(*battery.types("C4", "regular -> regular"), 3, **arguments)


def test_padding_that_leaves_no_output_is_refused() -> None:
    in_type, out_type = battery.types("C4", "regular -> regular")
    layer = RelaxedR2ConvTransposed(in_type, out_type, 3, padding=2)
    message = r"padding \(2, 2\) leaves a pixel of the output, got an image of 2x4 for an output of 0x2"
    with pytest.raises(ValueError, match=message):
        layer(in_type(torch.randn(1, 4, 2, 4)))
    with pytest.raises(ValueError, match=message):
        layer.evaluate_output_shape((1, 4, 2, 4))
    assert layer(in_type(torch.randn(1, 4, 3, 3))).tensor.shape[2:] == (1, 1)


def test_kernel_of_two_taps_and_padding_pairs_are_no_trouble() -> None:
    """escnn finds no basis for the first, and knows no shape for the second."""
    in_type, out_type = battery.types("C4", "regular -> regular")
    layer = RelaxedR2ConvTransposed(in_type, out_type, 2, (1, 0), stride=2)
    assert layer.evaluate_output_shape((1, 4, 4, 4)) == (1, 4, 6, 8)
    assert functional.mse_loss(layer(in_type(torch.ones(1, 4, 4, 4))).tensor, torch.zeros(1, 4, 6, 8)) > 0


def test_kernel_for_every_pixel_is_refused() -> None:
    fields = battery.field_type("C4", "trivial")
    with pytest.raises(TypeError, match="regions must be an integer, got None"):
        RelaxedR2ConvTransposed(fields, fields, 3, relax={"translation": 0.3}, regions=None)
