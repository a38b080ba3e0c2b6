"""Kernel nets: the paper's equations, means over the domain, broadcasting."""

from __future__ import annotations

import math

import pytest
import torch
from tolerances import ROUNDING
from torch import Tensor

from escnn_relaxed.continuous import FourierKernel, KernelNet, SirenKernel

NETS = {
    "fourier": lambda filter_dimension, domain_dimension: FourierKernel(filter_dimension, domain_dimension, 5, 7),
    "siren": lambda filter_dimension, domain_dimension: SirenKernel(filter_dimension, domain_dimension, 5),
}


def net(name: str, filter_dimension: int, domain_dimension: int) -> KernelNet:
    return NETS[name](filter_dimension, domain_dimension).double()


def points(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def fourier_by_loops(kernel: FourierKernel, filter_point: Tensor, domain_point: Tensor) -> list[float]:
    """φ_j = cos(A γ(α) + A′ γ′(α′) + b) with γ(α) = D^{-1/2} [cos 2πWα; sin 2πWα]."""

    def gamma(projection: Tensor, point: Tensor) -> list[float]:
        phases = [2 * math.pi * sum(float(w) * float(p) for w, p in zip(row, point, strict=True)) for row in projection]
        scale = 1 / math.sqrt(len(projection))
        return [scale * math.cos(phase) for phase in phases] + [scale * math.sin(phase) for phase in phases]

    features = gamma(kernel.filter_projection, filter_point)
    domain_features = gamma(kernel.domain_projection, domain_point)
    return [
        math.cos(
            sum(float(a) * f for a, f in zip(kernel.filter_weight[j], features, strict=True))
            + sum(float(a) * f for a, f in zip(kernel.domain_weight[j], domain_features, strict=True))
            + float(kernel.bias[j])
        )
        for j in range(kernel.hidden_size)
    ]


@torch.no_grad()
def test_fourier_kernel_is_the_papers_formula() -> None:
    kernel = net("fourier", 3, 2)
    filter_point, domain_point = points(3), points(2)
    expected = fourier_by_loops(kernel, filter_point, domain_point)
    assert kernel(filter_point, domain_point).tolist() == pytest.approx(expected, abs=ROUNDING)


@torch.no_grad()
def test_siren_kernel_is_two_sine_layers_on_the_concatenated_coordinates() -> None:
    kernel = net("siren", 3, 2)
    filter_point, domain_point = points(3), points(2)
    weight = torch.cat([kernel.filter_weight, kernel.domain_weight], dim=1)
    first = torch.sin(2 * math.pi * (weight @ torch.cat([filter_point, domain_point]) + kernel.bias))
    expected = torch.sin(kernel.hidden_weight @ first + kernel.hidden_bias)
    assert torch.allclose(kernel(filter_point, domain_point), expected, rtol=0, atol=ROUNDING)


@torch.no_grad()
@pytest.mark.parametrize("name", NETS)
def test_leading_dimensions_broadcast(name: str) -> None:
    kernel = net(name, 3, 2)
    filter_points, domain_points = points(4, 1, 6, 3), points(4, 5, 1, 2)
    hidden = kernel(filter_points, domain_points)
    assert hidden.shape == (5, 4, 5, 6)
    one = kernel(filter_points[2, 0, 3], domain_points[2, 4, 0])
    assert torch.allclose(hidden[:, 2, 4, 3], one, rtol=0, atol=ROUNDING)


@pytest.mark.whole
@torch.no_grad()
@pytest.mark.parametrize(("elements", "positions"), [(4, 5), (1, 5), (4, 1), (1, 1)])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", NETS)
def test_domain_mean_is_the_mean_over_points(name: str, count: int, elements: int, positions: int) -> None:
    kernel = net(name, 3, 2)
    filter_points, domain_points = points(4, 6, 3), points(elements, positions, count, 2)
    values = [kernel(filter_points[:, None], domain_points[:, :, None, number]) for number in range(count)]
    expected = sum(values) / count
    found = kernel.domain_mean(filter_points, domain_points)
    assert found.shape == expected.shape == (5, 4, positions, 6)
    assert torch.allclose(found, expected, rtol=0, atol=ROUNDING)


@torch.no_grad()
@pytest.mark.parametrize("name", NETS)
def test_net_without_domain_coordinates_takes_an_empty_domain(name: str) -> None:
    kernel = net(name, 3, 0)
    assert kernel.domain_weight is None
    filter_points = points(4, 6, 3)
    hidden = kernel(filter_points, points(4, 1, 0))
    assert hidden.shape == (5, 4, 6)
    mean = kernel.domain_mean(filter_points, points(1, 1, 1, 0)).squeeze(2)
    assert torch.allclose(mean, hidden, rtol=0, atol=ROUNDING)


@torch.no_grad()
@pytest.mark.parametrize("name", NETS)
def test_equal_domain_coordinates_give_equal_values_and_others_do_not(name: str) -> None:
    """ω′ = 0 makes all domain coordinates 0: what strictness rests on."""
    kernel = net(name, 3, 2)
    filter_point = points(3)
    zero = torch.zeros(2, dtype=torch.float64)
    assert torch.equal(kernel(filter_point, zero), kernel(filter_point, 0 * points(2)))
    assert not torch.allclose(kernel(filter_point, zero), kernel(filter_point, points(2)))


def test_projections_are_saved_and_not_trained() -> None:
    kernel = FourierKernel(3, 2)
    trained = [name for name, _ in kernel.named_parameters()]
    assert set(trained) == {"filter_weight", "domain_weight", "bias"}
    assert {"filter_projection", "domain_projection"} <= set(kernel.state_dict())


def test_projections_of_log_rotation_are_integers() -> None:
    kernel = FourierKernel(4, 2)
    kernel.make_periodic([2], [0])
    assert torch.equal(kernel.filter_projection[:, 2], kernel.filter_projection[:, 2].round())
    assert torch.equal(kernel.domain_projection[:, 0], kernel.domain_projection[:, 0].round())
    assert not torch.equal(kernel.filter_projection[:, 1], kernel.filter_projection[:, 1].round())


@pytest.mark.parametrize(("dimension", "outputs", "published"), [(2, 3 * 32, 4320), (3, 32 * 32, 34976)])
def test_siren_has_the_published_parameter_count(dimension: int, outputs: int, published: int) -> None:
    """The paper's counts: the lifting kernel 3→32, and one of the two group convolutions 32→32 of 69,952 together."""
    kernel = SirenKernel(dimension, 0, hidden_size=32)
    output_layer = 32 * outputs + outputs
    assert sum(p.numel() for p in kernel.parameters()) + output_layer == published


@pytest.mark.parametrize("name", NETS)
def test_gradients_of_a_net(name: str) -> None:
    kernel = net(name, 2, 1)
    names = [parameter for parameter, _ in kernel.named_parameters()]

    def call(filter_points: Tensor, domain_points: Tensor, *values: Tensor) -> Tensor:
        state = dict(zip(names, values, strict=True))
        return torch.func.functional_call(kernel, state, (filter_points, domain_points))

    inputs = [points(3, 2).requires_grad_(), points(3, 1).requires_grad_()]
    assert torch.autograd.gradcheck(call, [*inputs, *(p.detach().requires_grad_() for p in kernel.parameters())])
