"""Exported modules and networks of GeometricTensors in PyTorch's tools: graphs, traces, compilation, ONNX."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable

import battery
import onnxruntime
import pytest
import torch
from escnn import nn as enn
from escnn.nn import EquivariantModule, R2Conv
from layers import with_kernel
from networks_to_export import C4, settled
from published_networks import NETWORKS
from published_networks import images as published_images
from tolerances import SINGLE, SINGLE_REORDERED
from torch import Tensor, nn
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, export_network, relax_network
from escnn_relaxed.kernel import SirenKernel

BATCH = torch.export.Dim("batch")

pytestmark = [
    # torch's own warning: a trace bakes in what Python computes from sizes, of images and of fields.
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.* is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
]


def small_layer(soft_in_translation: bool, **arguments: object) -> RelaxedR2Conv:
    """Few taps and blocks: with a kernel for every pixel, every tap is a part of the graph."""
    arguments = {"kernel_size": 3, **arguments}
    relax = {"rotation": 0.2, "translation": (0.2, 0.4)} if soft_in_translation else {"rotation": 0.2}
    return RelaxedR2Conv(C4, C4, relax=relax, initial_softness=0.3, **with_kernel(arguments))


def network(soft_in_translation: bool) -> enn.SequentialModule:
    """R2Conv, a relaxed layer, and escnn's modules between them."""
    return settled(
        enn.SequentialModule(
            R2Conv(C4, C4, 3, padding=1, padding_mode="circular"),
            enn.InnerBatchNorm(C4),
            enn.ReLU(C4),
            small_layer(soft_in_translation),
            enn.GroupPooling(C4),
        )
    )


FORMS: dict[str, Callable[[], EquivariantModule]] = {
    "stationary": lambda: small_layer(False),
    "soft in translation": lambda: small_layer(True, padding=1, padding_mode="reflect"),
    "soft in translation, stride": lambda: small_layer(True, frame="image", stride=2, net=SirenKernel, padding=1),
    "per pixel": lambda: small_layer(True, regions=None, kernel_size=2),
    "per pixel, stride": lambda: small_layer(
        True, regions=None, kernel_size=1, frame="image", stride=2, net=SirenKernel
    ),
    "network": lambda: network(False),
    "network soft in translation": lambda: network(True),
}
EVERY_FORM = pytest.mark.parametrize("form", FORMS)
# All that a network has, and each way to be soft in translation.
ONE_OF_ALL = pytest.mark.parametrize("form", ["per pixel, stride", "network soft in translation"])
SIDE = 16  # two regions along each axis behind a stride of 2, three behind 3×3 taps without padding


def images(batch: int = 2) -> Tensor:
    return battery.random_input(C4, SIDE, SIDE, batch=batch, dtype=torch.float32)


def assert_same_gradients(module: nn.Module, compiled: Callable[[Tensor], Tensor], features: Tensor) -> None:
    """The same answers, and gradients of their squares for the features and every parameter."""
    results = []
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for call in (module, compiled):
        values = features.clone().requires_grad_()
        answer = call(values)
        gradients = torch.autograd.grad(answer.square().sum(), [values, *parameters])
        results.append([answer.detach(), *gradients])
    for expected, found in zip(*results, strict=True):
        # Both are 0 where a rectification is dead.
        assert torch.equal(found, expected) or relative_error(found, expected) <= SINGLE_REORDERED


@torch.no_grad()
@ONE_OF_ALL
def test_exported_module_is_a_graph_for_torch_export(form: str, tmp_path) -> None:
    exported = export_network(FORMS[form]())
    program = torch.export.export(exported, (images(),), dynamic_shapes=({0: BATCH},))
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    for batch in (1, 5):
        features = images(batch)
        assert relative_error(loaded(features), exported(features)) <= SINGLE


@torch.no_grad()
@EVERY_FORM
def test_exported_module_is_traced_saved_and_loaded(form: str) -> None:
    exported = export_network(FORMS[form]())
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(exported, images()), file)
    file.seek(0)
    loaded = torch.jit.load(file)
    for batch in (1, 5):
        features = images(batch)
        assert relative_error(loaded(features), exported(features)) <= SINGLE


@pytest.mark.slow
@ONE_OF_ALL
def test_exported_module_is_compiled_into_one_graph_forward_and_backward(form: str) -> None:
    """All of the compiler runs but the generation of code, which takes a C++ compiler a minute for each."""
    torch.compiler.reset()
    exported = export_network(FORMS[form]())
    compiled = torch.compile(exported, fullgraph=True, backend="aot_eager")
    assert_same_gradients(exported, compiled, images())


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="no C++ compiler")
def test_exported_convolution_is_compiled_into_code() -> None:
    torch.compiler.reset()
    exported = export_network(enn.SequentialModule(small_layer(False), enn.ReLU(C4)))
    compiled = torch.compile(exported, fullgraph=True)
    assert_same_gradients(exported, compiled, images())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["soft in translation", "per pixel"])
def test_onnx_runtime_computes_the_same_for_any_batch_size(form: str) -> None:
    """Kernels that depend on the position, between Conv2d and pooling of channels."""
    layers = FORMS[form](), small_layer(False)
    exported = export_network(enn.SequentialModule(*layers, enn.GroupPooling(C4)))
    session = onnx_session(exported, images())
    assert session.get_inputs()[0].shape == ["batch", C4.size, SIDE, SIDE]
    for batch in (1, 2, 5):
        features = images(batch)
        with torch.no_grad():
            assert relative_error(run(session, features), exported(features)) <= SINGLE_REORDERED


def onnx_session(exported: nn.Module, features: Tensor) -> onnxruntime.InferenceSession:
    """The module in ONNX Runtime, for any number of images of this size."""
    program = torch.onnx.export(exported, (features,), dynamo=True, dynamic_shapes=({0: BATCH},), verbose=False)
    file = io.BytesIO()
    program.save(file)
    return onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])


# Deprecated in favour of the other one, and in use.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Constant folding:UserWarning")
@pytest.mark.parametrize("kind", [RelaxedR2Conv, RelaxedR2ConvTransposed])
def test_older_exporter_to_onnx_takes_regions_that_are_not_cells(kind: type[RelaxedR2Conv]) -> None:
    layer = kind(C4, C4, 3, padding=1, relax={"translation": 0.25}, initial_softness=0.3)
    exported, features = layer.export(), torch.randn(1, C4.size, 18, 18)
    file = io.BytesIO()
    torch.onnx.export(exported, (features,), file, dynamo=False)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        assert relative_error(run(session, features), exported(features)) <= SINGLE_REORDERED


def run(session: onnxruntime.InferenceSession, features: Tensor) -> Tensor:
    (found,) = session.run(None, {session.get_inputs()[0].name: features.numpy()})
    return torch.from_numpy(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_published_networks_are_graphs_that_compile_and_run_in_onnx_runtime(name: str) -> None:
    torch.compiler.reset()
    exported = relax_network(settled(NETWORKS[name](R2Conv))).export().eval()
    compiled = torch.compile(exported, fullgraph=True, backend="aot_eager")
    assert_same_gradients(exported, compiled, published_images())
    session = onnx_session(exported, published_images())
    for batch in (1, 5):
        images = published_images(batch)
        with torch.no_grad():
            assert relative_error(run(session, images), exported(images)) <= SINGLE_REORDERED


R2CONV_IN_EVAL = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


class OnTensors(nn.Module):
    """A network of GeometricTensors from tensor to tensor."""

    def __init__(self, fields: EquivariantModule) -> None:
        super().__init__()
        self.fields = fields

    def forward(self, features: Tensor) -> Tensor:
        return self.fields(self.fields.in_type(features)).tensor


LAYERS: dict[str, Callable[[], EquivariantModule]] = {
    "R2Conv": lambda: R2Conv(C4, C4, 3, padding=1),
    "stationary": lambda: small_layer(False),
    "continuous": lambda: small_layer(False, strict_kernel="continuous"),
    "soft in translation": lambda: small_layer(True),
    "per pixel": lambda: small_layer(True, regions=None, kernel_size=1),
    "hardened": lambda: _hardened(small_layer(False, strict_kernel="continuous")),
}
EVERY_LAYER = pytest.mark.parametrize("layer", LAYERS)


def _hardened(layer: RelaxedR2Conv) -> RelaxedR2Conv:
    layer.harden()
    return layer


@pytest.mark.slow
@R2CONV_IN_EVAL
@pytest.mark.parametrize(
    ("layer", "mode"), [*((layer, "train") for layer in LAYERS), ("R2Conv", "eval"), ("per pixel", "eval")]
)
def test_layer_on_geometric_tensors_is_compiled_into_one_graph(layer: str, mode: str) -> None:
    """The test of changes compiles the others in evaluation, when all go through a bank that is kept."""
    torch.compiler.reset()
    module = OnTensors(LAYERS[layer]()).train(mode == "train")
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    features = images()
    if (layer, mode) == ("R2Conv", "eval"):
        # It keeps the graph of its filter, of which the first pass is the last.
        with torch.no_grad():
            assert relative_error(compiled(features), module(features)) <= SINGLE
        return
    assert_same_gradients(module, compiled, features)


@pytest.mark.parametrize("layer", ["stationary", "continuous", "soft in translation"])
def test_compiled_layer_sees_changes_in_evaluation(layer: str) -> None:
    torch.compiler.reset()
    module = OnTensors(LAYERS[layer]()).eval()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    features = images()
    with torch.no_grad():
        before = compiled(features)
        for parameter in module.parameters():
            parameter.mul_(1.5)
        assert relative_error(compiled(features), module(features)) <= SINGLE
        assert relative_error(compiled(features), before) > 1e-2


@pytest.mark.slow
def test_escnn_batch_norm_breaks_the_graph_and_is_compiled_around_it() -> None:
    """It slices by numbers that it keeps in tensors. Exported, the same network is one graph."""
    torch.compiler.reset()
    module = OnTensors(enn.SequentialModule(enn.InnerBatchNorm(C4), small_layer(False))).eval()
    features = images()
    with pytest.raises(torch._dynamo.exc.UserError, match="data-dependent expression"):
        torch.compile(module, fullgraph=True, backend="aot_eager")(features)
    torch.compiler.reset()
    compiled = torch.compile(module, backend="aot_eager")
    with torch.no_grad():
        assert relative_error(compiled(features), module(features)) <= SINGLE


@EVERY_LAYER
def test_layer_on_geometric_tensors_is_traced(layer: str) -> None:
    module = OnTensors(LAYERS[layer]()).eval()
    with torch.no_grad():
        traced = torch.jit.trace(module, images())
        features = images(5)
        assert relative_error(traced(features), module(features)) <= SINGLE


@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "R2Conv"])
def test_layer_on_geometric_tensors_is_a_graph_for_torch_export(layer: str) -> None:
    module = OnTensors(LAYERS[layer]()).eval()
    program = torch.export.export(module, (images(),), dynamic_shapes=({0: BATCH},))
    features = images(5)
    with torch.no_grad():
        assert relative_error(program.module()(features), module(features)) <= SINGLE


@R2CONV_IN_EVAL
def test_r2conv_on_geometric_tensors_is_no_graph_for_torch_export() -> None:
    """Its state has a history."""
    module = OnTensors(LAYERS["R2Conv"]()).eval()
    with pytest.raises(RuntimeError, match="Cannot access data pointer of Tensor"):
        torch.export.export(module, (images(),))
