"""Networks on plain tensors that take the gate on their softness as a second input, and ONNX of them."""

import io
from collections.abc import Callable
from typing import Any

import pytest
import small
import small_networks as forms
import torch
from errors import BROKEN, ROUNDING, SINGLE, SINGLE_REORDERED, relative_error
from escnn import nn as enn
from escnn.nn import EquivariantModule
from small_networks import C4, answer, features_of, layer_of
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv, export_network, gate_softness, harden_network
from escnn_relaxed.integral.factors import FactoredConvolution
from escnn_relaxed.network import export_with_gate
from escnn_relaxed.network.plain_modules import GatedSoftness

pytestmark = [
    *forms.WHAT_EXPORTERS_WARN_OF,
    pytest.mark.filterwarnings("ignore:Constant folding:UserWarning"),  # of the older exporter to ONNX
    # Of the newer one, where two inputs have one batch size.
    pytest.mark.filterwarnings("ignore:# The axis name:UserWarning"),
]
EACH = torch.tensor([0.2, -0.6], dtype=torch.float64)


def gates_for(features: Tensor) -> list[Tensor]:
    """One number, one for each input, and a map of another size than the features."""
    pixels = [5] * max(features.dim() - 2, 2)
    return [gate.to(features) for gate in (torch.tensor(0.3), EACH, torch.rand(len(features), 1, *pixels))]


SOFT_AND_EXPORTED = [form for form in forms.ALL if "strict" not in form and form not in forms.AT_PIXELS]


@torch.no_grad()
@pytest.mark.parametrize("form", SOFT_AND_EXPORTED)
def test_exported_layer_computes_what_the_gated_one_does(form: str) -> None:
    layer = layer_of(form).eval()
    features = features_of(layer)
    with forms.left_alone(layer):
        exported = export_with_gate(layer)
    assert isinstance(exported.network, GatedSoftness)
    for gate in gates_for(features):
        with gate_softness(layer, gate):
            assert relative_error(exported(features, gate), answer(layer)) <= ROUNDING
    assert not {t.data_ptr() for t in forms.tensors_of(layer)} & {t.data_ptr() for t in forms.tensors_of(exported)}


@torch.no_grad()
@pytest.mark.parametrize("names", [(), ("rotation",), ("translation",)])
def test_named_subgroups_are_gated_alone_and_gates_on_the_network_are_constants(names: tuple[str, ...]) -> None:
    layer = layer_of("soft in translation").eval()
    features = features_of(layer)
    with gate_softness(layer, 0.7), gate_softness(layer, 0.4, "rotation"):
        exported = export_with_gate(layer, *names)
        with gate_softness(layer, EACH, *names):
            expected = answer(layer)
    assert relative_error(exported(features, EACH), expected) <= ROUNDING
    with gate_softness(layer, EACH), pytest.raises(RuntimeError, match="has a value for each input"):
        export_with_gate(layer)


@torch.no_grad()
def test_a_constant_gate_on_rotation_alone_is_exported_where_translation_is_soft() -> None:
    """No part of the kernel is the same at each pixel then."""
    layer = layer_of("soft in translation").eval()
    with gate_softness(layer, 0.4, "rotation"):
        expected, exported = answer(layer), export_network(layer)
    assert relative_error(exported(features_of(layer)), expected) <= ROUNDING


class Block(nn.Module):
    """A forward of its own, which calls a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = forms.layer_to_export(C4)
        self.strict = RelaxedR2Conv(C4, C4, 3, padding=1, relax=None)
        self.relu = enn.ReLU(C4)

    def forward(self, features: Tensor) -> Tensor:
        fields = self.layer(C4(features))
        found: Tensor = self.strict(self.relu(self.layer(fields + self.relu(fields)))).tensor
        return found


@torch.no_grad()
@pytest.mark.parametrize("make", [lambda: forms.settled(forms.mixed_network()), Block], ids=["sequence", "own forward"])
def test_exported_network_has_two_convolutions_where_a_layer_is_soft_and_one_elsewhere(
    make: Callable[[], nn.Module],
) -> None:
    network, features = make().eval(), small.random_input(C4, 9, 9, dtype=torch.float32)
    exported, on_fields = export_with_gate(network), isinstance(network, EquivariantModule)
    soft = [name for name, layer in network.named_modules() if getattr(layer, "softness", None) and layer.softness()]
    gated = [name for name, module in exported.named_modules() if isinstance(module, GatedSoftness)]
    assert [name.removeprefix("network.").removesuffix(".plain") for name in gated] == soft
    for gate in gates_for(features):
        with gate_softness(network, gate):
            expected = network(network.in_type(features)).tensor if on_fields else network(features)
        assert relative_error(exported(features, gate), expected) <= SINGLE_REORDERED
    for number, other in ((1.0, network), (0.0, harden_network(network))):
        expected = other(other.in_type(features)).tensor if on_fields else other(features)
        assert relative_error(exported(features, torch.tensor(number)), expected) <= SINGLE_REORDERED


def test_hardened_translation_costs_one_convolution_and_gradients_reach_the_gate() -> None:
    layer = layer_of("soft in translation")
    exported, features, gate = export_with_gate(layer), features_of(layer), EACH.clone().requires_grad_()
    assert isinstance(exported.network.whole, FactoredConvolution)
    assert isinstance(exported.network.strict, nn.Conv2d)
    assert torch.autograd.gradcheck(lambda gate: exported(features, gate), gate, fast_mode=True)
    again = forms.through_a_file(exported, weights_only=False)
    assert torch.equal(again(features, gate), exported(features, gate))
    assert exported.gate.value is None


class OwnBank(RelaxedR2Conv):
    def expand_parameters(self) -> Any:
        filter_bank, bias = super().expand_parameters()
        return filter_bank.tanh(), bias


class Fused(EquivariantModule):
    """An export() that returns a module which holds the kernel of a layer, and not the exported layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = forms.layer_to_export(C4)
        self.in_type = self.out_type = C4

    def forward(self, features: Any) -> Any:
        return self.layer(features)

    def evaluate_output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def export(self) -> nn.Module:
        fused = FusedConvolution()
        fused.register_buffer("kernel", self.layer.filter_bank().detach())
        return fused


class FusedConvolution(nn.Module):
    kernel: Tensor

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.conv2d(features, self.kernel, padding=1)


@pytest.mark.parametrize(
    ("make", "names", "error", "message"),
    [
        (lambda: 3, (), TypeError, "network must be a torch.nn.Module"),
        (lambda: nn.Linear(2, 2), (), ValueError, "network has no relaxed layer"),
        (lambda: layer_of("strict"), (), ValueError, "network must have a layer that is soft in rotation or"),
        (lambda: layer_of("soft"), ("reflection",), ValueError, "that is soft in reflection, got none"),
        (lambda: layer_of("soft"), ("turn",), ValueError, "subgroups must be of .*, got 'turn'"),
        (lambda: OwnBank(C4, C4, 3), (), ValueError, "'the layer' computes with an expand_parameters of its own"),
        (Fused, (), ValueError, "a FusedConvolution in its export holds kernels of its own"),
    ],
)
def test_what_cannot_take_a_gate_is_refused(
    make: Callable[[], Any], names: tuple[str, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        export_with_gate(make(), *names)


def test_a_gate_for_another_batch_is_refused_and_leaves_nothing_behind() -> None:
    layer = layer_of("soft")
    exported = export_with_gate(layer)
    with pytest.raises(ValueError, match=r"one for each of the 2 inputs of a layer, got a tensor of shape \(3,\)"):
        exported(features_of(layer), torch.rand(3))
    with pytest.raises(RuntimeError, match="is called by the network that takes the gate"):
        exported.network(features_of(layer))


# --- programs and ONNX ------------------------------------------------------------------------------------------------

BATCH = forms.BATCH
# By the number of dimensions of the gate.
GATES = {"number": (0, {}), "each": (1, {0: BATCH}), "map": (4, {0: BATCH})}
EVERY_GATE = pytest.mark.parametrize("gate", GATES)


def network_and_inputs(kind: str) -> tuple[nn.Module, dict[str, Any], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """An exported network, the shapes that may change, inputs to trace with, and inputs of another batch size."""
    network = export_with_gate(forms.settled(forms.mixed_network()))
    dimensions, shapes = GATES[kind]
    few, many = (small.random_input(C4, 9, 9, batch=batch, dtype=torch.float32) for batch in (2, 5))
    maps = [torch.rand(len(x), 1, 4, 6) for x in (few, many)]
    gates = maps if dimensions == 4 else [torch.rand(len(x) if dimensions else ()) for x in (few, many)]
    return network, {"dynamic_shapes": ({0: BATCH}, shapes or None)}, (few, gates[0]), (many, gates[1])


@torch.no_grad()
@EVERY_GATE
def test_traces_and_programs_take_other_gates_and_batches(gate: str) -> None:
    network, shapes, few, many = network_and_inputs(gate)
    expected = network(*many)
    for module in (torch.jit.trace(network, few), torch.export.export(network, few, **shapes).module()):
        assert relative_error(module(*many), expected) <= SINGLE
    assert network.gate.value is None


@torch.no_grad()
@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
@pytest.mark.parametrize("shape", [(), (2,)])
def test_traces_compare_no_sizes(shape: tuple[int, ...]) -> None:
    """torch warns that they would be constants."""
    network = export_with_gate(layer_of("soft"))
    features, *gates = features_of(layer_of("soft")), *(torch.rand(shape, dtype=torch.float64) for _ in range(2))
    trace = torch.jit.trace(network, (features, gates[0]))
    assert relative_error(trace(features, gates[1]), network(features, gates[1])) <= ROUNDING


@torch.no_grad()
@EVERY_GATE
@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [True, False])
def test_onnx_runtime_takes_the_gate_as_a_second_input(gate: str, dynamo: bool) -> None:
    network, shapes, few, many = network_and_inputs(gate)
    file, named = io.BytesIO(), {"input_names": ["images", "gate"], "dynamo": dynamo}
    if dynamo:
        torch.onnx.export(network, few, verbose=False, **shapes, **named).save(file)
    else:
        axes = {"images": {0: "batch"}, **({"gate": {0: "batch"}} if gate != "number" else {})}
        torch.onnx.export(network, few, file, dynamic_axes=axes, **named)
    assert relative_error(forms.of_onnx_runtime(file, *many), network(*many)) <= SINGLE_REORDERED


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [True, False])
def test_onnx_runtime_computes_with_a_constant_gate(dynamo: bool) -> None:
    network = forms.settled(forms.mixed_network()).eval()
    features, file = small.random_input(C4, 9, 9, dtype=torch.float32), io.BytesIO()
    with gate_softness(network, 0.3):
        exported, expected = export_network(network), answer_of(network, features)
    if dynamo:
        torch.onnx.export(exported, (features,), dynamo=True, verbose=False).save(file)
    else:
        torch.onnx.export(exported, (features,), file, dynamo=False)
    assert relative_error(forms.of_onnx_runtime(file, features), expected) <= SINGLE_REORDERED
    assert relative_error(expected, answer_of(network, features)) > BROKEN


def answer_of(network: Any, features: Tensor) -> Tensor:
    found: Tensor = network(network.in_type(features)).tensor
    return found
