"""Exported modules and networks of GeometricTensors in PyTorch's tools: graphs, traces, compilation, ONNX."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import small
import torch
from errors import BROKEN, SINGLE, SINGLE_REORDERED, relative_error
from escnn import nn as enn
from escnn.nn import EquivariantModule, R2Conv
from small_networks import BATCH, C4, WHAT_EXPORTERS_WARN_OF, OnTensors, of_onnx_runtime, settled
from small_networks import layer_to_export as soft_layer
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, export_network, harden_network

pytestmark = WHAT_EXPORTERS_WARN_OF
SIDE = 8


def in_translation(**arguments: object) -> RelaxedR2Conv:
    return soft_layer(C4, soft_translation=True, **{"padding": 0, **arguments})


def network() -> enn.SequentialModule:
    """R2Conv, a relaxed layer that is soft in translation too, and escnn's modules between them."""
    first = R2Conv(C4, C4, 3, padding=1, padding_mode="circular")
    return settled(
        enn.SequentialModule(first, enn.InnerBatchNorm(C4), enn.ReLU(C4), in_translation(), enn.GroupPooling(C4))
    )


FORMS: dict[str, Callable[[], EquivariantModule]] = {
    "stationary": lambda: soft_layer(C4, padding=0),
    "in translation": lambda: in_translation(padding=1, padding_mode="reflect"),
    "in translation, stride": lambda: in_translation(stride=2, padding=1),
    "network": network,
}


def images(batch: int = 2) -> Tensor:
    return small.random_input(C4, SIDE, SIDE, batch=batch, dtype=torch.float32)


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
@pytest.mark.parametrize("form", FORMS)
def test_exported_module_is_a_trace_and_a_program_that_are_saved_and_loaded(form: str, tmp_path: Path) -> None:
    exported = export_network(FORMS[form]())
    torch.jit.save(torch.jit.trace(exported, images()), tmp_path / "trace.pt")
    program = torch.export.export(exported, (images(),), dynamic_shapes=({0: BATCH},))
    torch.export.save(program, tmp_path / "program.pt2")
    for loaded in torch.jit.load(tmp_path / "trace.pt"), torch.export.load(tmp_path / "program.pt2").module():
        for batch in (1, 5):
            features = images(batch)
            assert relative_error(loaded(features), exported(features)) <= SINGLE


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="no C++ compiler")
def test_exported_convolution_is_compiled_into_code() -> None:
    torch.compiler.reset()
    exported = export_network(enn.SequentialModule(soft_layer(C4), enn.ReLU(C4)))
    assert_same_gradients(exported, torch.compile(exported, fullgraph=True), images())


SIDES = [(8, 8), (5, 9), (12, 7), (6, 6)]


@pytest.mark.slow
@torch.no_grad()
def test_onnx_runtime_computes_the_same_for_images_of_any_size() -> None:
    """Factors at the pixels are made in the graph."""
    exported, sides = export_network(in_translation(padding=1, stride=2)), {2: torch.export.Dim.DYNAMIC}
    sides[3] = torch.export.Dim.DYNAMIC
    program = torch.onnx.export(exported, (images(),), dynamo=True, dynamic_shapes=(sides,), verbose=False)
    file = io.BytesIO()
    program.save(file)
    for size in SIDES:
        features = small.random_input(C4, *size, dtype=torch.float32)
        assert relative_error(of_onnx_runtime(file, features), exported(features)) <= SINGLE_REORDERED


@pytest.mark.slow
@pytest.mark.parametrize("is_exported", [False, True], ids=["layer", "exported"])
def test_layer_soft_in_translation_is_not_compiled_for_each_size(is_exported: bool) -> None:
    torch.compiler.reset()
    layer = in_translation(padding=1)
    module = layer.export() if is_exported else OnTensors(layer)
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(module, fullgraph=True, backend=count)
    for size in SIDES:
        features = small.random_input(C4, *size, dtype=torch.float32)
        assert relative_error(compiled(features).detach(), module(features).detach()) <= SINGLE
    # One for the first size, and one for all others.
    assert len(graphs) <= 2


# Deprecated in favour of the other one, and in use.
@pytest.mark.filterwarnings("ignore:Constant folding:UserWarning")
@pytest.mark.parametrize("kind", [RelaxedR2Conv, RelaxedR2ConvTransposed])
@torch.no_grad()
def test_older_exporter_to_onnx_takes_layers_soft_in_translation(kind: type[RelaxedR2Conv]) -> None:
    layer = kind(C4, C4, 3, padding=1, relax={"translation": 0.25}, initial_softness=0.3)
    exported, features, file = layer.export(), torch.randn(1, C4.size, 7, 6), io.BytesIO()
    torch.onnx.export(exported, (features,), file, dynamo=False)
    assert relative_error(of_onnx_runtime(file, features), exported(features)) <= SINGLE_REORDERED


LAYERS: dict[str, Callable[[], EquivariantModule]] = {
    "stationary": lambda: soft_layer(C4),
    "in translation": in_translation,
    "hardened": lambda: harden_network(soft_layer(C4)),
}


@pytest.mark.parametrize("layer", ["stationary", "in translation"])
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
        assert relative_error(compiled(features), before) > BROKEN


@pytest.mark.parametrize("layer", LAYERS)
@torch.no_grad()
def test_layer_on_geometric_tensors_is_traced_and_a_graph_for_torch_export(layer: str) -> None:
    module = OnTensors(LAYERS[layer]()).eval()
    traced = torch.jit.trace(module, images())
    program = torch.export.export(module, (images(),), dynamic_shapes=({0: BATCH},)).module()
    features = images(5)
    for found in traced(features), program(features):
        assert relative_error(found, module(features)) <= SINGLE
