"""What code written for `R2Conv` does with a layer, it does with `RelaxedR2Conv`."""

from __future__ import annotations

import io
from collections.abc import Callable

import onnxruntime
import pytest
import torch
from escnn import nn as enn
from networks_to_export import C4
from torch import Tensor, nn
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv

SINGLE = 1e-6  # the same sums in float32
REORDERED = 1e-5  # in another order
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
    # Of torch's own: a trace bakes in what Python computes from sizes, of images and of fields.
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
        strict = torch.jit.trace(Network(enn.R2Conv).eval(), images(2))
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
            assert relative_error(torch.from_numpy(found), soft(features)) <= REORDERED
