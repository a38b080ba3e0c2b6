"""Convolutions of clouds, and networks of them, as plain PyTorch: the same numbers, and no escnn where they run."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric", reason="escnn's convolutions of clouds need it")

import small_networks as networks
from errors import BROKEN, ROUNDING, SINGLE_REORDERED, relative_error
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import EquivariantModule, GeometricTensor
from small_clouds import SUPPORT, build, cloud, fields, subgroups
from torch import Tensor, nn

from escnn_relaxed import export_network, gate_softness, relax_network
from escnn_relaxed.network import export_with_gate
from escnn_relaxed.network.export import OnClouds, OnFields

pytestmark = [
    *networks.WHAT_EXPORTERS_WARN_OF,
    pytest.mark.filterwarnings("ignore:No complete tensor found in the group:UserWarning"),
    pytest.mark.filterwarnings("ignore:# The axis name. nodes will not be used:UserWarning"),
]

# Of those that have other bases in escnn, and other modulations.
SOME = ["D4", "SO(2)", "SO(3)", "SO(2) about z"]
NODES, EDGES = (torch.export.Dim(name, min=2) for name in ("nodes", "edges"))
SIZES = ({0: NODES}, {0: NODES}, {1: EDGES})


def soft_layer(name: str, relax: Any = None) -> Any:
    names = (*subgroups(fields(name)), "translation") if relax is None else relax
    return build(fields(name), relax=names, initial_softness=0.2, domain_radius=3.0)


@torch.no_grad()
def error(plain: nn.Module, layer: nn.Module, x: GeometricTensor, *edges: Tensor) -> float:
    return relative_error(plain(x.tensor, x.coords, *edges), layer(x, *edges).tensor)


@pytest.mark.parametrize("name", SOME)
def test_plain_layer_computes_the_same(name: str) -> None:
    layer = soft_layer(name).train()
    x, edges = cloud(fields(name), nodes=9)
    plain = layer.export()
    assert layer.training
    assert not any(isinstance(part, EquivariantModule) for part in plain.modules())
    assert not {of.data_ptr() for of in networks.tensors_of(layer)} & {
        of.data_ptr() for of in networks.tensors_of(plain)
    }
    assert error(plain, layer, x, edges) <= ROUNDING
    offsets = x.coords[edges[0]] - x.coords[edges[1]] + 0.1
    assert error(plain, layer, x, edges.int(), offsets) <= ROUNDING
    with gate_softness(layer, 0.3):
        assert error(layer.export(), layer, x, edges) <= ROUNDING
        assert error(plain, layer, x, edges) > BROKEN
    for harden in (["translation"], []):
        layer.harden(*harden)
        assert error(layer.export(), layer, x, edges) <= ROUNDING
        assert error(plain, layer, x, edges) > BROKEN


def test_plain_layer_has_gates_on_some_subgroups_and_factors_of_inputs() -> None:
    layer = soft_layer("D4", relax=("reflection", "translation"))
    assert layer.kernel.input_modulation is not None
    x, edges = cloud(fields("D4"), nodes=9)
    for names in (("reflection",), ("translation",), ()):
        with gate_softness(layer, 0.3, *names), gate_softness(layer, 0.6):
            assert error(layer.export(), layer, x, edges) <= ROUNDING
    with gate_softness(layer, torch.rand(9).double()), pytest.raises(RuntimeError, match="export: a gate"):
        layer.export()
    with pytest.raises(ValueError, match="is a convolution of clouds, whose gate is a constant"):
        export_with_gate(layer)


def test_plain_layer_takes_clouds_without_edges_and_has_gradients() -> None:
    layer = soft_layer("SO(3)")
    x, edges = cloud(fields("SO(3)"))
    plain, no_edges = layer.export(), torch.empty(2, 0, dtype=torch.long)
    assert error(plain, layer, x, no_edges) <= ROUNDING
    answers, gradients = [], []
    edges = edges[:, edges[0] != edges[1]]
    for forward in (
        lambda f, c: layer(GeometricTensor(f, layer.in_type, c), edges).tensor,
        lambda f, c: plain(f, c, edges),
    ):
        inputs = [x.tensor.clone().requires_grad_(), x.coords.clone().requires_grad_()]
        answers.append(forward(*inputs))
        gradients.append(torch.autograd.grad(answers[-1].sin().sum(), inputs))
    for found, expected in zip(*reversed(gradients), strict=True):
        assert relative_error(found, expected) <= ROUNDING


# --- networks ---------------------------------------------------------------------------------------------------------


def in_space() -> list[Any]:
    space = gspaces.rot3dOnR3()
    scalar, vector = space.trivial_repr, space.irrep(1)
    gated = enn.GatedNonLinearity1(space.type(*[scalar] * 2, *[vector] * 2), gates=["gate"] * 2 + ["gated"] * 2)
    hidden = space.type(scalar, vector, scalar)
    return [
        enn.R3PointConv(space.type(scalar, scalar), gated.in_type, **SUPPORT),
        gated,
        enn.R3PointConv(gated.out_type, hidden, **SUPPORT),
        enn.FieldDropout(hidden),
        enn.R3PointConv(hidden, space.type(vector), **SUPPORT),
    ]


def in_plane() -> list[Any]:
    space = gspaces.flipRot2dOnR2(2)
    regular = space.type(*[space.regular_repr] * 2)
    return [
        enn.R2PointConv(space.type(space.trivial_repr), regular, **SUPPORT),
        enn.ReLU(regular),
        enn.R2PointConv(regular, regular, **SUPPORT),
        enn.PointwiseDropout(regular),
        enn.ELU(regular),
    ]


def by_frequency() -> list[Any]:
    space = gspaces.rot2dOnR2()
    fourier = enn.FourierPointwise(space, 2, space.fibergroup.bl_irreps(2), function="p_elu", N=8)
    return [
        enn.R2PointConv(space.type(space.trivial_repr), fourier.in_type, **SUPPORT),
        fourier,
        enn.R2PointConv(fourier.out_type, fourier.out_type, **SUPPORT),
    ]


LAYERS = {"space": in_space, "plane": in_plane, "Fourier": by_frequency}


class Network(nn.Module):
    """Convolutions of clouds with what escnn has between them, on plain tensors."""

    def __init__(self, layers: list[Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.convolutions = [number for number, of in enumerate(layers) if hasattr(of, "basissampler")]
        for parameter in self.parameters():
            parameter.data = torch.rand_like(parameter) - 0.4

    def forward(self, features: Tensor, coordinates: Tensor, edge_index: Tensor) -> Tensor:
        x = GeometricTensor(features, self.layers[0].in_type, coordinates)
        for number, layer in enumerate(self.layers):
            x = layer(x, edge_index) if number in self.convolutions else layer(x)
        return x.tensor


def network_and_cloud(name: str, nodes: int = 9) -> tuple[Any, tuple[Tensor, Tensor, Tensor]]:
    network = Network(LAYERS[name]())
    x, edges = cloud(network.layers[0].in_type, nodes)
    return network, (x.tensor.float(), x.coords.float(), edges)


@torch.no_grad()
@pytest.mark.parametrize("name", LAYERS)
def test_networks_are_exported_with_all_that_stands_between_convolutions(name: str) -> None:
    network, inputs = network_and_cloud(name)
    relaxed = relax_network(network, initial_softness=0.2, relax=("rotation", "translation"), domain_radius=3.0)
    exported = export_network(network)
    assert relative_error(exported(*inputs), network.eval()(*inputs)) <= SINGLE_REORDERED
    bound = SINGLE_REORDERED
    if name != "space":  # escnn's gates return float32
        relaxed, inputs, bound = relaxed.double(), (inputs[0].double(), inputs[1].double(), inputs[2]), ROUNDING
    exported = export_network(relaxed)
    assert {type(part) for part in exported.modules() if isinstance(part, EquivariantModule)} <= {OnFields, OnClouds}
    assert relative_error(exported(*inputs), relaxed.eval()(*inputs)) <= bound


WITHOUT_ESCNN = """
import sys
sys.modules["escnn"] = sys.modules["torch_geometric"] = None
import torch
inputs, expected = torch.load(sys.argv[2])
module = torch.export.load(sys.argv[1]).module()
error = max((module(*of) - answer).abs().max().item() for of, answer in zip(inputs, expected))
print(error)
"""


@pytest.mark.slow
@torch.no_grad()
def test_program_of_a_network_takes_any_cloud_without_escnn_and_torch_geometric(tmp_path: Path) -> None:
    network, inputs = network_and_cloud("space")
    relaxed = relax_network(network, relax=("rotation", "translation"), domain_radius=3.0, initial_softness=0.2)
    exported = export_network(relaxed).double()
    inputs = [(f.double(), c.double(), e) for _, (f, c, e) in (network_and_cloud("space", nodes) for nodes in (9, 14))]
    torch.export.save(torch.export.export(exported, inputs[0], dynamic_shapes=SIZES), tmp_path / "program.pt2")
    torch.save((inputs, [exported(*of) for of in inputs]), tmp_path / "answers.pt")
    files = str(tmp_path / "program.pt2"), str(tmp_path / "answers.pt")
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_ESCNN, *files], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) <= ROUNDING


@pytest.mark.slow
@torch.no_grad()
def test_onnx_runtime_computes_the_same_for_any_cloud() -> None:
    pytest.importorskip("onnxruntime")
    exported = export_network(soft_layer("SO(3)").float())
    clouds = [cloud(fields("SO(3)"), nodes) for nodes in (9, 14)]
    inputs = [(x.tensor.float(), x.coords.float(), edges) for x, edges in clouds]
    program = torch.onnx.export(exported, inputs[0], dynamo=True, dynamic_shapes=SIZES, verbose=False)
    file = io.BytesIO()
    program.save(file)
    for of in inputs:
        assert relative_error(networks.of_onnx_runtime(file, *of), exported(*of)) <= SINGLE_REORDERED
