"""Code written for `R2Conv` runs with `RelaxedR2Conv`."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from errors import BROKEN, SINGLE, relative_error
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import R2Conv
from small_networks import C4, WHAT_EXPORTERS_WARN_OF
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv, relax_network, relaxation_summary
from escnn_relaxed.baselines import ResidualR2Conv

pytestmark = WHAT_EXPORTERS_WARN_OF
FORMS: dict[str, dict[str, object]] = {
    "rotation": {"relax": {"rotation": 0.25}, "initial_softness": 0.3},
    "in translation": {"relax": {"rotation": 0.25, "translation": 0.5}, "initial_softness": 0.3},
}


class Network(nn.Module):
    """Plain tensors in and out, GeometricTensors between: as most networks with escnn are written."""

    def __init__(self, convolution: enn.EquivariantModule) -> None:
        super().__init__()
        self.features = enn.SequentialModule(convolution, enn.ReLU(C4), enn.GroupPooling(C4))
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.features(self.features.in_type(images)).tensor


def images(batch: int = 2) -> Tensor:
    return torch.randn(batch, C4.size, 16, 16)


def operations(network: nn.Module) -> int:
    return sum("aten::" in node.kind() for node in torch.jit.trace(network, images()).inlined_graph.nodes())


@torch.no_grad()
def test_trace_in_training_has_no_functions_of_the_position() -> None:
    """They are constants, also where an image of this size comes for the first time."""
    soft, features = Network(RelaxedR2Conv(C4, C4, 3, relax="translation")).train(), images(5)
    trace = torch.jit.trace(soft, images())
    assert relative_error(trace(features), soft(features)) <= SINGLE
    assert "aten::tanh" not in {node.kind() for node in trace.inlined_graph.nodes()}


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_trace_holds_the_filter_bank_of_now_as_a_constant(form: str) -> None:
    """As that of ``R2Conv``."""
    soft = Network(RelaxedR2Conv(C4, C4, 3, **FORMS[form]))
    before, features = torch.jit.trace(soft, images()), images(5)
    assert relative_error(before(features), soft(features)) <= SINGLE
    soft.features[0].weights.data.mul_(2)
    assert relative_error(torch.jit.trace(soft, images())(features), soft(features)) <= SINGLE
    assert relative_error(before(features), soft(features)) > BROKEN
    # The bias is expanded from its trivial irreps; soft translation has its tiles.
    limit = operations(Network(R2Conv(C4, C4, 3))) + 2 if form == "rotation" else 99
    assert operations(soft) <= limit


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
    def test_basis_has_the_elements_of_r2conv_and_expands_weights_into_its_filter(self, pair: str, groups: int) -> None:
        strict = R2Conv(*types(pair, groups), 3, groups=groups)
        layer = RelaxedR2Conv(*types(pair, groups), 3, groups=groups)
        of_r2conv, elements = strict.basisexpansion, layer.basisexpansion
        assert elements.dimension() == of_r2conv.dimension()
        assert elements._weights_ranges == of_r2conv._weights_ranges
        assert elements._representations_pairs == of_r2conv._representations_pairs
        expected = list(of_r2conv.get_basis_info())
        assert elements.get_element_info(len(expected) - 1) == of_r2conv.get_element_info(len(expected) - 1)
        layer.load_state_dict(strict.state_dict())
        for each in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert list(each.basisexpansion.get_basis_info()) == expected
            found = each.basisexpansion(each.weights)
            assert relative_error(found.detach(), of_r2conv(strict.weights).detach()) <= SINGLE
        (gradient,) = torch.autograd.grad(layer.basisexpansion(layer.weights).square().sum(), layer.weights)
        assert gradient.any()
        assert not [name for name in layer.state_dict() if "element" in name]

    @pytest.mark.parametrize("initialise", [enn.init.generalized_he_init, enn.init.deltaorthonormal_init])
    def test_same_weights_are_drawn_as_of_r2conv(self, initialise: Callable[..., None]) -> None:
        drawn = []
        for convolution in (R2Conv(C4, C4, 3), RelaxedR2Conv(C4, C4, 3)):
            torch.manual_seed(0)
            np.random.seed(0)
            initialise(convolution.weights.data, convolution.basisexpansion)
            drawn.append(convolution.weights.detach())
        assert torch.equal(*drawn)

    def test_basis_takes_the_weights_of_its_layer_alone(self) -> None:
        layer = RelaxedR2Conv(C4, C4, 3, relax=None)
        with pytest.raises(ValueError, match=rf"weights must be of shape \({layer.weights.numel()},\), got \(3,\)"):
            layer.basisexpansion(torch.zeros(3))

    def test_layer_is_freed_with_its_last_name(self) -> None:
        """A circle of references would hold its memory until Python looks for circles."""
        layer = RelaxedR2Conv(C4, C4, 3)
        layer.basisexpansion(layer.weights)
        basis = weakref.ref(layer.kernel.basis)
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

    @pytest.mark.parametrize(
        ("softness", "arguments", "message"),
        [
            (0.0, {}, "softness must be above 0"),
            (1.0, {}, r"softness must be in \[0, 1\), got 1.0"),
            (0.1, {"relax": None}, "both parts of the kernel are above 0"),
            (0.1, {"initialize": False}, "both parts of the kernel are above 0"),
            (0.1, {"initial_softness": 0.0}, "both parts of the kernel are above 0"),
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


def test_summary_says_what_is_strict_and_fits_on_a_screen() -> None:
    wide = enn.FieldType(SPACE, FIELDS["mixed"] * 4)
    relax = {"rotation": 0.2222, "reflection": 0.1234, "translation": (0.3333, 0.1111)}
    network = nn.ModuleDict(
        {
            "stem": R2Conv(wide, wide, 3),
            "wide_block": RelaxedR2Conv(wide, wide, 3, relax=relax),
            "other": ResidualR2Conv(*types("regular -> regular", 1), 3),
            "up": enn.R2ConvTransposed(wide, wide, 3),
        }
    )
    assert relaxation_summary(relax_network(network)).strict == {}
    lines = str(relaxation_summary(network)).splitlines()
    assert lines[-2:] == ["strict R2Conv: stem", "strict R2ConvTransposed: up"]
    assert max(map(len, lines)) <= 120
