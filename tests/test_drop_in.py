"""Code written for `R2Conv` runs with `RelaxedR2Conv`."""

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
from escnn.nn import R2Conv, R2ConvTransposed
from small_networks import C4, WHAT_EXPORTERS_WARN_OF, OnTensors
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed

pytestmark = WHAT_EXPORTERS_WARN_OF
D4 = gspaces.flipRot2dOnR2(4)
MIXED = [D4.regular_repr, D4.irrep(1, 1), D4.trivial_repr, D4.regular_repr]


def network(convolution: enn.EquivariantModule) -> OnTensors:
    """Plain tensors in and out, GeometricTensors between: as most networks with escnn are written."""
    return OnTensors(enn.SequentialModule(convolution, enn.ReLU(C4), enn.GroupPooling(C4))).eval()


def images(batch: int = 2) -> Tensor:
    return torch.randn(batch, C4.size, 16, 16)


def kinds(trace: torch.jit.ScriptModule) -> list[str]:
    return [node.kind() for node in trace.inlined_graph.nodes() if "aten::" in node.kind()]


@torch.no_grad()
@pytest.mark.parametrize("relax", [{"rotation": 0.25}, {"rotation": 0.25, "translation": 0.5}])
def test_trace_holds_the_filter_bank_of_now_as_a_constant(relax: dict[str, float]) -> None:
    """As that of ``R2Conv``."""
    soft = network(RelaxedR2Conv(C4, C4, 3, relax=relax, initial_softness=0.3))
    before, features = torch.jit.trace(soft, images()), images(5)
    assert relative_error(before(features), soft(features)) <= SINGLE
    soft.fields[0].weights.data.mul_(2)
    assert relative_error(torch.jit.trace(soft, images())(features), soft(features)) <= SINGLE
    assert relative_error(before(features), soft(features)) > BROKEN
    # The bias is expanded from its trivial irreps; soft translation has factors at pixels.
    of_r2conv = len(kinds(torch.jit.trace(network(R2Conv(C4, C4, 3)), images())))
    assert len(kinds(before)) <= (of_r2conv + 2 if len(relax) == 1 else 99)
    # In training functions of the position are constants, also where an image of this size comes for the first time.
    fresh = network(RelaxedR2Conv(C4, C4, 3, relax=relax)).train()
    trace = torch.jit.trace(fresh, images())
    assert relative_error(trace(features), fresh(features)) <= SINGLE
    assert "aten::tanh" not in kinds(trace)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("out_fields", [MIXED, [D4.irrep(0, 0), D4.irrep(1, 1)]], ids=["mixed", "irreps"])
def test_basis_has_the_elements_of_r2conv_and_expands_weights_into_its_filter(out_fields: list, groups: int) -> None:
    types = [enn.FieldType(D4, fields * groups) for fields in (MIXED, out_fields)]
    strict, layer = R2Conv(*types, 3, groups=groups), RelaxedR2Conv(*types, 3, groups=groups)
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
    with pytest.raises(ValueError, match=rf"weights must be of shape \({layer.weights.numel()},\), got \(3,\)"):
        layer.basisexpansion(torch.zeros(3))


@pytest.mark.parametrize("layers", [(R2Conv, RelaxedR2Conv), (R2ConvTransposed, RelaxedR2ConvTransposed)])
@pytest.mark.parametrize("initialise", [enn.init.generalized_he_init, enn.init.deltaorthonormal_init])
def test_same_weights_are_drawn_as_of_r2conv(initialise: Callable[..., None], layers: tuple[type, type]) -> None:
    drawn = []
    for convolution in (layer(C4, C4, 3, groups=2) for layer in layers):
        torch.manual_seed(0)
        np.random.seed(0)
        initialise(convolution.weights.data, convolution.basisexpansion)
        drawn.append(convolution.weights.detach())
    assert torch.equal(*drawn)


def test_layer_is_freed_with_its_last_name() -> None:
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


def test_soft_part_fits_weights_that_are_drawn_later() -> None:
    layer = RelaxedR2Conv(C4, C4, 3, initialize=False, initial_softness=0.01)
    assert not layer.weights.any()
    enn.init.generalized_he_init(layer.weights.data, layer.basisexpansion)
    assert 0.003 < layer.softness().item() < 0.03
    for softness in (0.0, 1.0):
        with pytest.raises(ValueError, match=r"softness must be (above 0|in \[0, 1\))"):
            layer.set_softness(softness)
    for arguments in ({"relax": None}, {"initialize": False}, {"initial_softness": 0.0}):
        with pytest.raises(ValueError, match="both parts of the kernel are above 0"):
            RelaxedR2Conv(C4, C4, 3, **arguments).set_softness(0.1)
