"""``export_network`` of networks with a forward of their own: it stays, and all that it calls is plain."""

from __future__ import annotations

import io

import onnxruntime
import published_networks
import pytest
import torch
from escnn import nn as enn
from escnn.nn import EquivariantModule, FieldType, GeometricTensor, R2Conv
from forms import EVERY_MODE, tensors_of
from networks_to_export import WHAT_EXPORTERS_WARN_OF, answers, settled
from networks_with_forwards import CIRCLE, NARROW, NETWORKS, SPACE, Block, Network, images, soft
from tolerances import ROUNDING, SINGLE, SINGLE_REORDERED
from torch import Tensor, nn
from transformations import relative_error

from escnn_relaxed import export_network
from escnn_relaxed.network.export import OnFields

BATCH = torch.export.Dim("batch")
EVERY_NETWORK = pytest.mark.parametrize("name", NETWORKS)
# escnn's gates, and its pooling by norms, make float32 of any dtype.
IN_DOUBLE = pytest.mark.parametrize("name", [name for name in NETWORKS if name != "gated"])

pytestmark = WHAT_EXPORTERS_WARN_OF


def in_eval(network: nn.Module, features: Tensor) -> Tensor:
    with torch.no_grad():
        return network.eval()(features)


@IN_DOUBLE
def test_network_computes_the_same(name: str) -> None:
    network = settled(NETWORKS[name]()).double()
    exported = export_network(network)
    assert network.training
    assert not any(module.training for module in exported.modules())
    features = images().double()
    assert relative_error(in_eval(exported, features), in_eval(network, features)) <= ROUNDING


@EVERY_NETWORK
def test_every_part_is_plain_and_in_memory_of_its_own(name: str) -> None:
    network = settled(NETWORKS[name]())
    exported = export_network(network)
    features = images()
    expected = in_eval(network, features)
    assert relative_error(in_eval(exported, features), expected) <= SINGLE
    fields = {type(module) for module in exported.modules() if isinstance(module, EquivariantModule)}
    assert fields <= {OnFields, Block, enn.SequentialModule}
    assert not {t.data_ptr() for t in tensors_of(network)} & {t.data_ptr() for t in tensors_of(exported)}


@pytest.mark.parametrize("name", ["residual", "restricted", "Fourier"])
def test_exported_network_is_saved_and_loaded_with_its_class(name: str) -> None:
    exported = export_network(settled(NETWORKS[name]()))
    file = io.BytesIO()
    torch.save(exported, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(in_eval(loaded, images()), in_eval(exported, images()))


@EVERY_NETWORK
def test_trace_is_for_any_batch_size(name: str) -> None:
    network = settled(NETWORKS[name]())
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(export_network(network), images()), file)
    file.seek(0)
    features = images(5)
    assert relative_error(in_eval(torch.jit.load(file), features), in_eval(network, features)) <= SINGLE


@EVERY_NETWORK
def test_program_of_torch_export_is_for_any_batch_size(name: str) -> None:
    network = settled(NETWORKS[name]())
    program = torch.export.export(export_network(network), (images(),), dynamic_shapes=({0: BATCH},))
    features = images(5)
    with torch.no_grad():
        assert relative_error(program.module()(features), in_eval(network, features)) <= SINGLE


def onnx_file(exported: nn.Module, dynamo: bool) -> bytes:
    file = io.BytesIO()
    if dynamo:
        torch.onnx.export(
            exported, (images(),), dynamo=True, dynamic_shapes=({0: BATCH},), input_names=["images"], verbose=False
        ).save(file)
    else:
        axes = {"images": {0: "batch"}}
        torch.onnx.export(exported, (images(),), file, dynamo=False, input_names=["images"], dynamic_axes=axes)
    return file.getvalue()


# Dynamo's takes seconds for each. It translates the program of torch.export, which every network has: operations that
# differ are in these.
TO_ONNX = [pytest.param(name, False) for name in NETWORKS]
TO_ONNX += [pytest.param(name, True, marks=pytest.mark.slow) for name in ("turned", "U-Net", "gated", "Fourier")]


@pytest.mark.parametrize(("name", "dynamo"), TO_ONNX)
def test_onnx_runtime_computes_the_same(name: str, dynamo: bool) -> None:
    network = settled(NETWORKS[name]())
    file = onnx_file(export_network(network), dynamo)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for batch in (1, 5):
        features = images(batch)
        (found,) = session.run(None, {"images": features.numpy()})
        assert relative_error(torch.from_numpy(found), in_eval(network, features)) <= SINGLE_REORDERED


@pytest.mark.parametrize("name", published_networks.NETWORKS)
def test_published_networks_are_exported_without_a_line_about_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for written_for_export in (published_networks.Classifier, published_networks.WideBlock):
        monkeypatch.delattr(written_for_export, "export")
    network = settled(published_networks.NETWORKS[name](R2Conv))
    exported = export_network(network)
    traced = torch.jit.trace(exported, published_networks.images())
    features = published_networks.images(6)
    expected = in_eval(network, features)
    assert relative_error(in_eval(exported, features), expected) <= SINGLE
    assert relative_error(in_eval(traced, features), expected) <= SINGLE


@pytest.mark.parametrize("name", ["residual", "concatenation", "gated"])
def test_network_that_builds_no_field_types_is_compiled_into_one_graph(name: str) -> None:
    torch.compiler.reset()
    network = settled(NETWORKS[name]())
    compiled = torch.compile(export_network(network), fullgraph=True, backend="aot_eager")
    assert relative_error(in_eval(compiled, images()), in_eval(network, images())) <= SINGLE


@pytest.mark.parametrize("name", ["restricted", "turned"])
def test_network_that_builds_representations_is_compiled_as_a_program(name: str) -> None:
    """torch.compile fails in the algebra that escnn does in SciPy; torch.export sees its result."""
    torch.compiler.reset()
    network = settled(NETWORKS[name]())
    exported = export_network(network)
    program = torch.export.export(exported, (images(),)).module()
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert relative_error(compiled(images()), in_eval(network, images())) <= SINGLE


class Turned(Network):
    def middle(self, features: GeometricTensor) -> GeometricTensor:
        return features + features.transform(SPACE.fibergroup.element((0, 1)))


def test_images_that_the_forward_turns_are_turned_but_are_constant_in_a_trace() -> None:
    """escnn turns images in NumPy; torch says so."""
    network = settled(Turned())
    exported = export_network(network)
    assert relative_error(in_eval(exported, images()), in_eval(network, images())) <= SINGLE
    with pytest.warns(torch.jit.TracerWarning, match="Converting a tensor to a NumPy array"):
        torch.jit.trace(exported, images(), check_trace=False)


@EVERY_MODE
def test_sequence_with_such_a_block_goes_from_tensor_to_tensor(mode: str) -> None:
    network = settled(enn.SequentialModule(soft(NARROW, NARROW), Block(NARROW, NARROW), enn.GroupPooling(NARROW)))
    exported = export_network(network.train(mode == "train"))
    expected, found = answers(network, exported)
    assert relative_error(found, expected) <= SINGLE


class PlainBlock(nn.Module):
    """On GeometricTensors, though no EquivariantModule."""

    def __init__(self) -> None:
        super().__init__()
        self.body = enn.SequentialModule(soft(NARROW, NARROW), enn.ELU(NARROW))

    def forward(self, features: GeometricTensor) -> GeometricTensor:
        return self.body(features) + features


def test_sequence_of_torch_with_such_a_block_takes_what_it_took() -> None:
    network = settled(nn.Sequential(soft(NARROW, NARROW), PlainBlock(), PlainBlock()))
    exported = export_network(network)
    features = NARROW(torch.randn(2, NARROW.size, 9, 9))
    with torch.no_grad():
        expected, found = network.eval()(features), exported(features)
    assert found.type == expected.type
    assert relative_error(found.tensor, expected.tensor) <= SINGLE


class Scaled(R2Conv):
    """A forward that is younger than what exports the layer."""

    def forward(self, features: GeometricTensor) -> GeometricTensor:
        return super().forward(features) * 2.0


class SequentialOfItsOwn(enn.SequentialModule):
    def forward(self, features: GeometricTensor) -> GeometricTensor:
        return features + super().forward(features)


class Wrapped(nn.Module):
    def __init__(self, fields: EquivariantModule) -> None:
        super().__init__()
        self.fields = fields

    def forward(self, features: Tensor) -> Tensor:
        return self.fields(self.fields.in_type(features)).tensor


WITHOUT_PLAIN_FORM = {
    "Scaled": lambda: Scaled(NARROW, NARROW, 3),
    "SequentialOfItsOwn": lambda: SequentialOfItsOwn(soft(NARROW, NARROW)),
    "InnerBatchNorm": lambda: enn.InnerBatchNorm(NARROW, track_running_stats=False),
    "IIDBatchNorm2d": lambda: enn.IIDBatchNorm2d(NARROW, track_running_stats=False),
    "GatedNonLinearity1": lambda: enn.GatedNonLinearity1(
        FieldType(CIRCLE, [CIRCLE.trivial_repr, CIRCLE.irrep(1)]), drop_gates=False
    ),
    "MultipleModule": lambda: enn.MultipleModule(
        NARROW + NARROW, ["one", "two"], [(Block(NARROW, NARROW), "one"), (enn.ELU(NARROW), "two")]
    ),
}


@pytest.mark.parametrize("name", WITHOUT_PLAIN_FORM)
def test_what_has_no_plain_form_stays_as_it_is_and_is_named(name: str) -> None:
    network = settled(Wrapped(WITHOUT_PLAIN_FORM[name]()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("escnn_relaxed.checks._warned", set())
        with pytest.warns(UserWarning, match=rf"keeps the forward of Wrapped, {name}, .*needs escnn"):
            exported = export_network(network)
    features = torch.randn(2, network.fields.in_type.size, 8, 8)
    expected = in_eval(network, features)
    assert relative_error(in_eval(exported, features), expected) <= SINGLE
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert relative_error(in_eval(exported, features), expected) <= SINGLE


def doubled(module: nn.Module, *inputs: object) -> GeometricTensor | Tensor:
    return inputs[-1][0] * 2.0 if len(inputs) == 1 else inputs[-1] * 2.0


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_of_what_keeps_its_forward_are_kept_and_others_refused(register: str) -> None:
    network = settled(NETWORKS["residual"]())
    for kept in (network, network.blocks[1], network.blocks[2], network.head):
        getattr(kept, register)(doubled)
    exported = export_network(network)
    expected = in_eval(network, images())
    assert relative_error(in_eval(exported, images()), expected) <= SINGLE
    getattr(network.blocks[1].conv, register)(doubled)
    with pytest.raises(ValueError, match=r"^blocks\.1\.conv has forward_(pre_)?hooks, which would be lost"):
        export_network(network)


class Levels(Network):
    """Fields of several types, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = enn.GroupPooling(NARROW)

    def forward(self, images: Tensor) -> dict[str, GeometricTensor]:
        features = self.lift(GeometricTensor(images, self.in_type))
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
    tensors = TensorsOf(exported)
    traced = torch.jit.trace(tensors, images(), strict=False)
    program = torch.export.export(tensors, (images(),), dynamic_shapes=({0: BATCH},)).module()
    features = images(5)
    with torch.no_grad():
        expected, found = network(features), exported(features)
        for name, fields in expected.items():
            assert found[name].type == fields.type
            for tensor in (found[name].tensor, traced(features)[name], program(features)[name]):
                assert relative_error(tensor, fields.tensor) <= SINGLE


def test_module_that_appears_twice_stays_one() -> None:
    network = settled(NETWORKS["concatenation"]())
    network.convs["wide"] = network.convs["small"]
    exported = export_network(network)
    assert exported.convs["wide"] is exported.convs["small"]
    assert relative_error(in_eval(exported, images()), in_eval(network, images())) <= SINGLE


def test_shape_of_an_output_is_known_without_the_module() -> None:
    exported = export_network(Wrapped(Block(NARROW, NARROW + NARROW, stride=2)))
    assert exported.fields.evaluate_output_shape((2, NARROW.size, 9, 9)) == (2, 2 * NARROW.size, 5, 5)
