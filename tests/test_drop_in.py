"""Code written for `R2Conv` runs with `RelaxedR2Conv`."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import R2Conv
from networks_to_export import C4
from tolerances import SINGLE, SINGLE_REORDERED
from torch import Tensor, nn
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv, relax_network, relaxation_summary
from escnn_relaxed.baselines import ResidualR2Conv

SIDE = 16

FORMS: dict[str, Callable[..., RelaxedR2Conv]] = {
    "rotation": lambda *place: RelaxedR2Conv(*place, relax={"rotation": 0.25}, initial_softness=0.3),
    "continuous": lambda *place: RelaxedR2Conv(*place, strict_kernel="continuous"),
    "regions": lambda *place: RelaxedR2Conv(
        *place, relax={"rotation": 0.25, "translation": 0.5}, initial_softness=0.3, regions=2
    ),
}
EVERY_FORM = pytest.mark.parametrize("form", FORMS)
TRACERS = [
    # torch's own: a trace bakes in what Python computes from sizes, of images and of fields.
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.* is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:You are using the legacy TorchScript-based ONNX export:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The feature will be removed:DeprecationWarning"),
]


class Network(nn.Module):
    """Plain tensors in and out, GeometricTensors between: as most networks with escnn are written."""

    def __init__(self, convolution: Callable[..., enn.EquivariantModule]) -> None:
        super().__init__()
        self.features = enn.SequentialModule(convolution(C4, C4, 3), enn.ReLU(C4), enn.GroupPooling(C4))

    def forward(self, images: Tensor) -> Tensor:
        return self.features(self.features.in_type(images)).tensor


def network(form: str) -> Network:
    return Network(FORMS[form]).eval()


def images(batch: int) -> Tensor:
    return torch.randn(batch, C4.size, SIDE, SIDE)


def operations(traced: torch.jit.ScriptModule) -> int:
    return sum("aten::" in node.kind() for node in traced.inlined_graph.nodes())


class TestTracers:
    """They see the filter bank of a layer in evaluation as a constant, as that of `R2Conv`."""

    pytestmark = TRACERS

    @torch.no_grad()
    @EVERY_FORM
    def test_trace_of_a_network_computes_the_same(self, form: str) -> None:
        soft = network(form)
        traced = torch.jit.trace(soft, images(2))
        for batch in (2, 5):
            features = images(batch)
            assert relative_error(traced(features), soft(features)) <= SINGLE

    @pytest.mark.parametrize("form", ["rotation", "continuous"])
    def test_trace_holds_no_more_than_that_of_r2conv(self, form: str) -> None:
        strict = torch.jit.trace(Network(R2Conv).eval(), images(2))
        # The bias is expanded from its trivial irreps.
        assert operations(torch.jit.trace(network(form), images(2))) <= operations(strict) + 2

    def test_trace_of_soft_translation_holds_no_more_than_its_tiles(self) -> None:
        assert operations(torch.jit.trace(network("regions"), images(2))) < 100

    @torch.no_grad()
    def test_trace_taken_after_a_change_has_the_new_filter_bank(self) -> None:
        soft = network("rotation")
        features = images(2)
        before = torch.jit.trace(soft, features)(features)
        soft.features[0].weights.data.mul_(2)
        after = torch.jit.trace(soft, features)(features)
        assert relative_error(after, soft(features)) <= SINGLE
        assert relative_error(after, before) > 0.1

    @torch.no_grad()
    @EVERY_FORM
    def test_onnx_runtime_computes_the_same(self, form: str) -> None:
        soft = network(form)
        file = io.BytesIO()
        torch.onnx.export(
            soft, images(2), file, dynamo=False, input_names=["images"], dynamic_axes={"images": {0: "batch"}}
        )
        session = onnxruntime.InferenceSession(file.getvalue())
        for batch in (2, 5):
            features = images(batch)
            (found,) = session.run(None, {"images": features.numpy()})
            assert relative_error(torch.from_numpy(found), soft(features)) <= SINGLE_REORDERED


SPACE = gspaces.flipRot2dOnR2(4)
FIELDS = {
    "trivial": [SPACE.trivial_repr],
    "regular": [SPACE.regular_repr],
    "mixed": [SPACE.regular_repr, SPACE.irrep(1, 1), SPACE.trivial_repr, SPACE.regular_repr],
    "irreps": [SPACE.irrep(0, 0), SPACE.irrep(1, 1)],
}


def types(pair: str, groups: int) -> list[enn.FieldType]:
    return [enn.FieldType(SPACE, FIELDS[name] * groups) for name in pair.split(" -> ")]


class TestInitialisation:
    """`escnn.nn.init` on the strict weights."""

    @pytest.mark.parametrize("pair", ["trivial -> regular", "mixed -> mixed", "irreps -> irreps"])
    @pytest.mark.parametrize("groups", [1, 2])
    def test_elements_are_those_of_r2conv(self, pair: str, groups: int) -> None:
        of_r2conv = R2Conv(*types(pair, groups), 3, groups=groups, initialize=False).basisexpansion
        elements = RelaxedR2Conv(*types(pair, groups), 3, groups=groups).basisexpansion
        assert elements.dimension() == of_r2conv.dimension()
        assert elements._weights_ranges == of_r2conv._weights_ranges
        assert elements._representations_pairs == of_r2conv._representations_pairs
        expected = list(of_r2conv.get_basis_info())
        assert list(elements.get_basis_info()) == expected
        assert elements.get_element_info(len(expected) - 1) == of_r2conv.get_element_info(len(expected) - 1)

    @pytest.mark.parametrize("initialise", [enn.init.generalized_he_init, enn.init.deltaorthonormal_init])
    def test_same_weights_are_drawn_as_of_r2conv(self, initialise: Callable[..., None]) -> None:
        drawn = []
        for convolution in (R2Conv(C4, C4, 3), RelaxedR2Conv(C4, C4, 3)):
            torch.manual_seed(0)
            np.random.seed(0)
            initialise(convolution.weights.data, convolution.basisexpansion)
            drawn.append(convolution.weights.detach())
        assert torch.equal(*drawn)

    def test_elements_of_copies_and_none_of_a_continuous_kernel(self) -> None:
        layer = RelaxedR2Conv(C4, C4, 3)
        expected = list(layer.basisexpansion.get_basis_info())
        for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert list(copied.basisexpansion.get_basis_info()) == expected
        assert not [name for name in layer.state_dict() if "element" in name]
        assert RelaxedR2Conv(C4, C4, 3, strict_kernel="continuous").basisexpansion is None

    @pytest.mark.parametrize("pair", ["trivial -> regular", "mixed -> mixed", "irreps -> irreps"])
    @pytest.mark.parametrize("groups", [1, 2])
    def test_basis_expands_weights_into_the_filter_of_r2conv(self, pair: str, groups: int) -> None:
        strict = R2Conv(*types(pair, groups), 3, groups=groups)
        layer = RelaxedR2Conv(*types(pair, groups), 3, groups=groups)
        layer.load_state_dict(strict.state_dict())
        expected = strict.basisexpansion(strict.weights)
        for each in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            found = each.basisexpansion(each.weights)
            assert found.shape == expected.shape
            assert relative_error(found.detach(), expected.detach()) <= SINGLE
        (gradient,) = torch.autograd.grad(layer.basisexpansion(layer.weights).square().sum(), layer.weights)
        assert gradient.any()

    def test_basis_takes_the_weights_of_its_layer_alone(self) -> None:
        layer = RelaxedR2Conv(C4, C4, 3, relax=None)
        with pytest.raises(ValueError, match=rf"weights must be of shape \({layer.weights.numel()},\), got \(3,\)"):
            layer.basisexpansion(torch.zeros(3))

    def test_layer_is_freed_with_its_last_name(self) -> None:
        """A circle of references would hold its memory until Python looks for circles."""
        layer = RelaxedR2Conv(C4, C4, 3)
        layer.basisexpansion(layer.weights)
        basis = weakref.ref(layer.steerable_basis)
        gc.disable()
        try:
            del layer
            assert basis() is None
        finally:
            gc.enable()

    def test_soft_part_fits_weights_that_are_drawn_later(self) -> None:
        layer = RelaxedR2Conv(C4, C4, 3, initialize=False, initial_softness=0.01)
        assert not layer.weights.any()
        enn.init.generalized_he_init(layer.weights.data, layer.basisexpansion)
        assert 0.003 < layer.softness().item() < 0.03

    def test_softness_is_set(self) -> None:
        layer = RelaxedR2Conv(C4, C4, 3, relax={"rotation": 0.25, "translation": 0.5})
        layer.weights.data.mul_(100)
        kernel = layer.strict_energy().item()
        layer.set_softness(0.02)
        assert layer.softness().item() == pytest.approx(0.02, rel=1e-4)
        assert layer.strict_energy().item() == kernel

    @pytest.mark.parametrize(
        ("softness", "arguments", "message"),
        [
            (0.0, {}, "softness must be above 0"),
            (1.0, {}, r"softness must be in \[0, 1\), got 1.0"),
            (0.1, {"relax": None}, "both parts of the kernel are above 0"),
            (0.1, {"initialize": False}, "both parts of the kernel are above 0"),
            (0.1, {"initial_softness": 0.0}, "both parts of the kernel are above 0"),
            (0.1, {"strict_kernel": "continuous"}, "strict_kernel='steerable'"),
        ],
    )
    def test_softness_that_cannot_be_set(self, softness: float, arguments: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            RelaxedR2Conv(C4, C4, 3, **arguments).set_softness(softness)


def test_filter_and_expanded_parameters_are_those_of_r2conv() -> None:
    strict = R2Conv(C4, C4, 3)
    layer = RelaxedR2Conv(C4, C4, 3, relax=None)
    layer.load_state_dict(strict.state_dict())
    for convolution in (strict.eval(), layer.eval()):
        expanded, bias = convolution.expand_parameters()
        assert relative_error(expanded.detach(), strict.filter.detach()) <= SINGLE
        assert relative_error(convolution.filter.detach(), expanded.detach()) <= SINGLE
        assert bias.shape == (C4.size,)
    assert "filter" not in layer.state_dict()
    # Tools of torch ask every module for all that its class names.
    assert not hasattr(RelaxedR2Conv(C4, C4, 3, relax={"translation": 0.5}), "filter")


@pytest.mark.parametrize("stride", [(2, 2), [2, 2]])
def test_stride_is_a_pair_of_equal_numbers(stride: object) -> None:
    layer = RelaxedR2Conv(C4, C4, 3, stride=stride)
    assert layer.stride == 2
    assert layer(C4(images(1))).shape[-2:] == R2Conv(C4, C4, 3, stride=stride)(C4(images(1))).shape[-2:]


@pytest.mark.parametrize(
    ("stride", "error", "message"),
    [
        ((2, 1), ValueError, r"stride must be an integer or a pair of equal ones, got \(2, 1\)"),
        ((2,), ValueError, r"pair of equal ones, got \(2,\)"),
        ((2.0, 2.0), TypeError, "stride must be an integer, got 2.0"),
    ],
)
def test_stride_that_is_no_such_pair(stride: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RelaxedR2Conv(C4, C4, 3, stride=stride)


class Named(R2Conv):
    """Nothing of its own but its name and how it is built."""

    def __init__(self, fields: enn.FieldType) -> None:
        super().__init__(fields, fields, 3, padding=1)


class WithMethod(R2Conv):
    def expand_parameters(self) -> tuple[Tensor, Tensor | None]:
        bank, bias = super().expand_parameters()
        return 2 * bank, bias


def test_subclass_without_methods_is_relaxed() -> None:
    trained = enn.SequentialModule(Named(C4))
    relaxed = relax_network(trained)
    assert type(relaxed[0]) is RelaxedR2Conv
    features = C4(images(1))
    assert relative_error(relaxed(features).tensor.detach(), trained(features).tensor.detach()) <= SINGLE
    with pytest.raises(ValueError, match="0, a WithMethod, has methods of its own, expand_parameters, which"):
        relax_network(enn.SequentialModule(WithMethod(C4, C4, 3)))


def mixed_network() -> nn.ModuleDict:
    soft = {"rotation": 0.2222, "reflection": 0.1234}
    wide = enn.FieldType(SPACE, FIELDS["mixed"] * 4)
    vectors = enn.FieldType(gspaces.no_base_space(SPACE.fibergroup), [SPACE.fibergroup.regular_representation])
    return nn.ModuleDict(
        {
            "stem": R2Conv(wide, wide, 3),
            "wide_block": RelaxedR2Conv(wide, wide, 3, relax={**soft, "translation": (0.3333, 0.1111)}),
            "other": ResidualR2Conv(*types("regular -> regular", 1), 3),
            "up": enn.R2ConvTransposed(wide, wide, 3),
            "head": enn.Linear(vectors, vectors),
        }
    )


def test_what_stays_strict_is_said() -> None:
    network = mixed_network()
    with pytest.warns(UserWarning, match="leaves Linear strict, which has no relaxed form: head"):
        relaxed = relax_network(network)
    relax_network(network)  # and no warning
    assert relaxation_summary(relaxed).strict == {"Linear": ("head",)}
    summary = relaxation_summary(network)
    assert summary.strict == {"R2Conv": ("stem",), "R2ConvTransposed": ("up",), "Linear": ("head",)}
    assert str(summary).splitlines()[-3:] == [
        "strict R2Conv: stem",
        "strict R2ConvTransposed: up",
        "strict Linear: head",
    ]


def test_summary_of_a_wide_network_fits_on_a_screen() -> None:
    assert max(map(len, str(relaxation_summary(mixed_network())).splitlines())) <= 120
