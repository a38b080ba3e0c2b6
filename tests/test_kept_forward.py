"""``export_network`` of networks with a forward of their own: it stays, and all that it calls is plain.

That public ones compute the same, traced, saved and in ONNX too, is in ``test_drop_in_networks``.
"""

from __future__ import annotations

import pytest
import torch
from errors import SINGLE, relative_error
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType, GeometricTensor, R2Conv
from small_networks import BATCH, WHAT_EXPORTERS_WARN_OF, Block, OnTensors, settled
from small_networks import layer_to_export as soft_layer
from torch import Tensor, nn

from escnn_relaxed import export_network

SPACE = gspaces.flipRot2dOnR2(4)
NARROW = FieldType(SPACE, [SPACE.regular_repr])
CIRCLE = gspaces.rot2dOnR2(-1, maximum_frequency=2)

pytestmark = WHAT_EXPORTERS_WARN_OF


def in_eval(network: nn.Module, features: Tensor) -> Tensor:
    with torch.no_grad():
        return network.eval()(features)


class Residual(nn.Module):
    """A forward of its own around blocks of fields, as most networks have."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = enn.SequentialModule(Block(NARROW, NARROW), enn.ELU(NARROW))
        self.linear = nn.Linear(NARROW.size, 3)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(self.layers(NARROW(features)).tensor.mean((2, 3)))


def residual() -> tuple[nn.Module, Tensor]:
    return settled(Residual()), torch.randn(2, NARROW.size, 9, 9)


class Scaled(R2Conv):
    """A forward that is younger than what exports the layer."""

    def forward(self, features: GeometricTensor) -> GeometricTensor:
        return super().forward(features) * 2.0


class SequentialOfItsOwn(enn.SequentialModule):
    def forward(self, features: GeometricTensor) -> GeometricTensor:
        return features + super().forward(features)


WITHOUT_PLAIN_FORM = {
    "Scaled": lambda: Scaled(NARROW, NARROW, 3),
    "SequentialOfItsOwn": lambda: SequentialOfItsOwn(soft_layer(NARROW)),
    "InnerBatchNorm": lambda: enn.InnerBatchNorm(NARROW, track_running_stats=False),
    "IIDBatchNorm2d": lambda: enn.IIDBatchNorm2d(NARROW, track_running_stats=False),
    "GatedNonLinearity1": lambda: enn.GatedNonLinearity1(
        FieldType(CIRCLE, [CIRCLE.trivial_repr, CIRCLE.irrep(1)]), drop_gates=False
    ),
    "MultipleModule": lambda: enn.MultipleModule(
        NARROW + NARROW, ["one", "two"], [(Block(NARROW, NARROW), "one"), (enn.ELU(NARROW), "two")]
    ),
}


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.filterwarnings("default:export_network keeps the forward:UserWarning")
@pytest.mark.parametrize("name", WITHOUT_PLAIN_FORM)
def test_what_has_no_plain_form_stays_as_it_is_and_is_named(name: str) -> None:
    network = settled(OnTensors(WITHOUT_PLAIN_FORM[name]()))
    with pytest.warns(UserWarning, match=rf"keeps the forward of OnTensors, {name}, .*needs escnn"):
        exported = export_network(network)
    features = torch.randn(2, network.fields.in_type.size, 8, 8)
    expected = in_eval(network, features)
    assert relative_error(in_eval(exported, features), expected) <= SINGLE
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert relative_error(in_eval(exported, features), expected) <= SINGLE


class ByType(OnTensors):
    """Takes tensors and GeometricTensors, which it tells apart in a way that torch's FakeTensor escapes."""

    def forward(self, features: Tensor | GeometricTensor) -> Tensor:
        if type(features) is torch.Tensor:
            features = self.fields.in_type(features)
        return self.fields(features).tensor


@pytest.mark.parametrize("is_exported", [False, True], ids=["of layers", "of plain parts"])
def test_network_that_asks_for_the_type_of_its_input_hears_of_it_in_torch_export(is_exported: bool) -> None:
    network = ByType(soft_layer(NARROW)).eval()
    program = export_network(network) if is_exported else network
    features = torch.randn(2, NARROW.size, 8, 8)
    assert relative_error(in_eval(program, features), in_eval(network, features)) <= SINGLE
    with pytest.raises(
        TypeError, match=r"got FakeTensor; .* isinstance\(x, torch.Tensor\) is true while torch exports"
    ):
        torch.export.export(program, (features,))
    # Outside of torch.export the remedy is the usual one alone.
    with pytest.raises(TypeError, match=r"got Tensor; wrap a tensor with in_type\(tensor\)$"):
        program.fields(features)


def doubled(module: nn.Module, *inputs: object) -> GeometricTensor | Tensor:
    return inputs[-1][0] * 2.0 if len(inputs) == 1 else inputs[-1] * 2.0


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_of_what_keeps_its_forward_are_kept_and_others_refused(register: str) -> None:
    network, features = residual()
    for kept in (network, network.layers[0], network.layers, network.linear):
        getattr(kept, register)(doubled)
    exported = export_network(network)
    assert relative_error(in_eval(exported, features), in_eval(network, features)) <= SINGLE
    getattr(network.layers[0].conv, register)(doubled)
    with pytest.raises(ValueError, match=r"^layers\.0\.conv has forward_(pre_)?hooks, which would be lost"):
        export_network(network)


class Levels(nn.Module):
    """Fields of several types, by name; a layer that appears twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = soft_layer(NARROW)
        self.pool = enn.GroupPooling(NARROW)

    def forward(self, features: Tensor) -> dict[str, GeometricTensor]:
        features = self.second(self.first(NARROW(features)))
        return {"fields": features, "pooled": self.pool(features)}


class TensorsOf(nn.Module):
    """The tensors of fields by name, as the docs have it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {name: fields.tensor for name, fields in self.network(images).items()}


def test_network_that_returns_fields_by_name_is_exported_and_traced_by_their_tensors() -> None:
    network = settled(Levels()).eval()
    exported = export_network(network)
    assert exported.first is exported.second
    tensors, some = TensorsOf(exported), torch.randn(2, NARROW.size, 9, 9)
    traced = torch.jit.trace(tensors, some, strict=False)
    program = torch.export.export(tensors, (some,), dynamic_shapes=({0: BATCH},)).module()
    features = torch.randn(5, NARROW.size, 9, 9)
    with torch.no_grad():
        expected, found = network(features), exported(features)
        for name, fields in expected.items():
            assert found[name].type == fields.type
            for tensor in (found[name].tensor, traced(features)[name], program(features)[name]):
                assert relative_error(tensor, fields.tensor) <= SINGLE


def test_shape_of_an_output_is_known_without_the_module() -> None:
    exported = export_network(OnTensors(soft_layer(NARROW, NARROW + NARROW, stride=2)))
    assert exported.fields.evaluate_output_shape((2, NARROW.size, 9, 9)) == (2, 2 * NARROW.size, 5, 5)
