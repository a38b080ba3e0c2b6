"""The nets of a continuous kernel, by the paper's formulas, and the units in which their output weights are trained."""

import math

import pytest
import small
import torch
from errors import DECOMPOSED, ROUNDING, relative_error
from small import options_of
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.continuous import FourierKernel, KernelNet, SirenKernel, start, steering
from escnn_relaxed.continuous.steering import weight_units


def gamma(projection: Tensor, point: Tensor) -> Tensor:
    """γ(α) = D^{-1/2} [cos 2πWα; sin 2πWα]."""
    phases = 2 * math.pi * (projection @ point)
    return torch.cat([phases.cos(), phases.sin()]) / math.sqrt(len(projection))


@torch.no_grad()
def test_fourier_kernel_is_the_papers_formula() -> None:
    """φ = cos(A γ(α) + A′ γ′(α′) + b)."""
    kernel = FourierKernel(3, 2, 5, 7).double()
    filter_point, domain_point = torch.randn(3, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    phase = kernel.filter_weight @ gamma(kernel.filter_projection, filter_point) + kernel.bias
    phase = phase + kernel.domain_weight @ gamma(kernel.domain_projection, domain_point)
    assert relative_error(kernel(filter_point, domain_point), phase.cos()) <= ROUNDING
    assert {"filter_projection", "domain_projection"} <= set(kernel.state_dict()) - dict(
        kernel.named_parameters()
    ).keys()


@torch.no_grad()
def test_siren_kernel_is_two_sine_layers_on_the_concatenated_coordinates() -> None:
    kernel = SirenKernel(3, 2, 5).double()
    filter_points, domain_points = torch.randn(4, 1, 3).double(), torch.randn(4, 6, 2).double()
    found = kernel(filter_points, domain_points)
    assert found.shape == (5, 4, 6)
    point = torch.cat([filter_points[2, 0], domain_points[2, 5]])
    weight = torch.cat([kernel.filter_weight, kernel.domain_weight], dim=1)
    first = torch.sin(2 * math.pi * (weight @ point + kernel.bias))
    assert relative_error(found[:, 2, 5], torch.sin(kernel.hidden_weight @ first + kernel.hidden_bias)) <= ROUNDING


@pytest.mark.whole
@torch.no_grad()
@pytest.mark.parametrize(("elements", "positions"), [(4, 5), (1, 5), (4, 1), (1, 1)])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("make", [FourierKernel, SirenKernel])
def test_domain_mean_is_the_mean_over_points(make: type[KernelNet], count: int, elements: int, positions: int) -> None:
    """Also of a net without domain coordinates."""
    axes = 0 if count == elements == positions == 1 else 2
    net = make(3, axes, 5).double()
    assert (net.domain_weight is None) == (axes == 0)
    filter_points = torch.randn(4, 6, 3, dtype=torch.float64)
    points = torch.randn(elements, positions, count, axes, dtype=torch.float64)
    expected = sum(net(filter_points[:, None], points[:, :, None, number]) for number in range(count)) / count
    found = net.domain_mean(filter_points, points)
    assert found.shape == (5, 4, positions, 6)
    assert relative_error(found, expected) <= ROUNDING


@pytest.mark.parametrize(("dimension", "outputs", "published"), [(2, 3 * 32, 4320), (3, 32 * 32, 34976)])
def test_siren_has_the_published_parameter_count(dimension: int, outputs: int, published: int) -> None:
    """The paper's counts: the lifting kernel 3→32, and one of the two group convolutions 32→32 of 69,952 together."""
    kernel = SirenKernel(dimension, 0, hidden_size=32)
    assert sum(p.numel() for p in kernel.parameters()) + 32 * outputs + outputs == published


def steered(count: int) -> Tensor:
    """Random steered features (P, |A|, |B|, T); the last one constant."""
    return torch.cat([torch.randn(count - 1, 4, 3, 9, dtype=torch.float64), torch.ones(1, 4, 3, 9).double()])


@pytest.mark.parametrize("count", [2, 5, 12])
def test_varying_features_become_orthonormal_and_do_not_answer_a_constant_input(count: int) -> None:
    features = steered(count)
    normalised = torch.einsum("rp,paib->raib", weight_units(features, 1, None), features)
    gram = torch.einsum("paib,qaib->pq", normalised[:-1], normalised[:-1]) / 4
    assert torch.allclose(gram, torch.eye(count - 1, dtype=torch.float64), rtol=0, atol=DECOMPOSED)
    answer = normalised.sum(dim=(2, 3)).mean(dim=1)
    expected = torch.tensor([0.0] * (count - 1) + [1.0], dtype=torch.float64)
    assert torch.allclose(answer, expected, rtol=0, atol=DECOMPOSED)


def test_directions_of_equal_energy_do_not_depend_on_rounding() -> None:
    """Six directions of one energy and four of another: solvers return any basis of each space."""
    scales = torch.tensor([1.0] * 6 + [0.5] * 4, dtype=torch.float64)
    orthogonal, turned = (torch.linalg.qr(torch.randn(rows, 10, dtype=torch.float64)).Q for rows in (12, 10))
    features = (turned @ (scales[:, None] * orthogonal.mT)).view(10, 1, 3, 4)
    for rank in (None, 6):
        found, other = (weight_units(features + noise * torch.randn_like(features), 2, rank) for noise in (0, 1e-14))
        assert (found - other).abs().max() <= 1e-10  # the noise, over the gap between energies


@pytest.mark.parametrize("kernel_size", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_no_direction_lies_so_near_the_threshold_that_rounding_decides(
    kernel_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else weights would have other shapes on other machines: the nearest is 6e-5 away, where rounding is 1e-15."""
    distances: list[float] = []
    svdvals = torch.linalg.svdvals

    def recorded(features: Tensor) -> Tensor:
        size = svdvals(features)
        threshold = max(steering._SMALLEST * float(size[0]), steering._ROUNDING)
        distances.append(float((size / threshold - 1).abs().min()))
        return size

    monkeypatch.setattr(torch.linalg, "svdvals", recorded)
    # How large each direction is drawn, and how soft, takes most of the time, and does not decide which there are.
    monkeypatch.setattr(steering, "_whitened", lambda _, combination, size, rank, least: combination[:rank])
    monkeypatch.setattr(start, "_expected_softness", lambda *_: 0.0)
    for space in small.GSPACES:
        RelaxedR2Conv(*small.types(space, "irreps -> irreps"), kernel_size, **options_of("continuous"))
    assert len(distances) > 50
    assert min(distances) > 1e-6
