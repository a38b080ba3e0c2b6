"""The evidence of softness in convolutions of clouds: gradients of each cloud beside a loop over clouds."""

from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric", reason="escnn's convolutions of clouds need it")

from errors import relative_error
from escnn.nn import GeometricTensor
from small_clouds import build, cloud, fields, subgroups
from torch import Tensor, nn

from escnn_relaxed import SoftnessEvidence, gate_softness
from escnn_relaxed.learning.soft_gradients import SoftWeights, gradients

CLOUDS = 12
SAME = 1e-8


class Network(nn.Module):
    """Two convolutions of clouds and a linear map, to numbers of each node or of each cloud."""

    def __init__(self, name: str, is_of_clouds: bool, relax: Any) -> None:
        super().__init__()
        of, self.is_of_clouds = fields(name), is_of_clouds
        options = {"initial_softness": 0.1, "domain_radius": 3.0, "relax": relax}
        self.first, self.second = build(of, **options), build(of, **options)
        self.last = nn.Linear(of.size, 2).double()

    def forward(self, x: GeometricTensor, edges: Tensor, batch: Tensor) -> Tensor:
        y = self.first(x, edges)
        y = self.second(GeometricTensor(y.tensor.tanh(), y.type, y.coords), edges)
        rows = self.last(y.tensor)
        if not self.is_of_clouds:
            return rows
        count = int(batch.max()) + 1
        return rows.new_zeros(count, 2).index_add(0, batch, rows.tanh())


class OfNodes(Network):
    """Without the clouds in its arguments."""

    def forward(self, x: GeometricTensor, edges: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, edges, torch.empty(0))


def clouds(name: str, count: int = CLOUDS) -> list[tuple[GeometricTensor, Tensor]]:
    """Clouds of several sizes."""
    return [cloud(fields(name), nodes=4 + number % 3, neighbours=2) for number in range(count)]


def joined(parts: list[tuple[GeometricTensor, Tensor]]) -> tuple[GeometricTensor, Tensor, Tensor]:
    sizes = torch.tensor([len(x.tensor) for x, _ in parts])
    starts = sizes.cumsum(0) - sizes
    edges = torch.cat([edges + start for (_, edges), start in zip(parts, starts, strict=True)], 1)
    features, places = (torch.cat([getattr(x, of) for x, _ in parts]) for of in ("tensor", "coords"))
    return GeometricTensor(features, parts[0][0].type, places), edges, torch.arange(len(parts)).repeat_interleave(sizes)


@pytest.mark.parametrize(
    ("name", "relax", "is_of_clouds"),
    [("SO(2)", None, True), ("SO(2)", None, False), ("SO(3)", "rotation", False), ("D4", "reflection", True)],
)
def test_gradients_of_each_cloud_equal_those_of_a_loop(name: str, relax: Any, is_of_clouds: bool) -> None:
    network = Network(name, is_of_clouds, relax or (*subgroups(fields(name)), "translation"))
    if relax == "reflection":
        assert network.first.kernel.input_modulation is not None
    parts = clouds(name)
    x, edges, batch = joined(parts)
    soft, cotangent = SoftWeights(network), torch.randn(CLOUDS if is_of_clouds else len(batch), 2).double()
    found = gradients(network, soft.parameters, (x, edges, batch), lambda _: cotangent, None, batch)
    expected = []
    for number, (one, own_edges) in enumerate(parts):
        output = network(one, own_edges, torch.zeros(len(one.tensor), dtype=torch.long))
        along = cotangent[number] if is_of_clouds else cotangent[batch == number]
        expected.append(torch.autograd.grad((output * along).sum(), soft.parameters))
    for of_clouds, *of_each in zip(found, *expected, strict=True):
        assert of_clouds.norm() > 0
        assert relative_error(of_clouds, torch.stack(of_each)) <= SAME


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
def test_evidence_of_outputs_of_nodes_is_in_units_of_the_loss(likelihood: str) -> None:
    network = OfNodes("SO(2)", False, "rotation")
    x, edges, batch = joined(clouds("SO(2)"))
    targets = torch.randn(len(batch), 2).double() if likelihood == "gaussian" else torch.randint(0, 2, (len(batch),))
    evidence = SoftnessEvidence(network, 100, likelihood=likelihood)
    evidence.check((x, edges), targets, batch)
    evidence.update((x, edges), targets, batch)
    kind = evidence._likelihood
    assert kind.outputs == pytest.approx(len(batch) / CLOUDS * (2 if likelihood == "gaussian" else 1))
    if likelihood == "gaussian":
        with torch.no_grad():
            assert kind.noise == pytest.approx((network(x, edges) - targets).square().mean().item())
    table = evidence.table()
    assert [row.subgroup for row in table] == ["rotation"] * 2
    assert all(0 < row.determined <= row.weights for row in table)
    assert evidence.penalty() > 0
    assert len(list(evidence.harden((x, edges), targets, batch))) > 0


def test_evidence_finds_the_clouds_among_the_arguments_and_leaves_outputs_of_no_class_out() -> None:
    network = Network("SO(2)", False, "rotation")
    x, edges, batch = joined(clouds("SO(2)"))
    labels = torch.randint(0, 2, (len(batch),))
    labels[::3] = -100
    evidence = SoftnessEvidence(network, 100)
    evidence.update((x, edges, batch), labels)
    assert evidence._likelihood.outputs == pytest.approx((labels >= 0).sum().item() / CLOUDS)


def test_what_the_evidence_of_clouds_needs_is_said() -> None:
    network = OfNodes("SO(2)", False, "rotation")
    x, edges, batch = joined(clouds("SO(2)"))
    evidence = SoftnessEvidence(network, 100)
    with pytest.raises(
        ValueError, match="batch must be given for a network of clouds: the number of the cloud of each"
    ):
        evidence.update((x, edges))
    with pytest.raises(TypeError, match="batch must be a tensor of integers"):
        evidence.update((x, edges), None, batch.double())
    for wrong in (batch[1:], batch + 1, batch * 2):
        with pytest.raises(ValueError, match="batch must have a number for each of the"):
            evidence.update((x, edges), None, wrong)
    with pytest.raises(ValueError, match="inputs must be 10 or more"):
        evidence.update((x, edges), None, torch.zeros_like(batch))
    with pytest.raises(ValueError, match="batch must give both nodes of each edge the same cloud"):
        evidence.update((x, edges), None, torch.arange(len(batch)) % CLOUDS)
    with gate_softness(network, 0.5), pytest.raises(ValueError, match="a gate is on the softness"):
        evidence.update((x, edges), None, batch)
