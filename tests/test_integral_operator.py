"""Equation (1): the sum over taps against torch's convolution, and against unfolded patches where K varies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformations import relative_error

from escnn_relaxed.integral_operator import (
    ConvolutionGeometry,
    integrate_non_stationary,
    integrate_stationary,
)

ROUNDING = 1e-12  # sums of some dozen terms in float64, in two orders

GEOMETRIES = {
    "plain": ConvolutionGeometry(3),
    "one by one": ConvolutionGeometry(1),
    "even": ConvolutionGeometry(2, padding=(1, 1)),
    "padding": ConvolutionGeometry(3, padding=(1, 1)),
    "unequal padding": ConvolutionGeometry(3, padding=(0, 2)),
    "stride": ConvolutionGeometry(3, padding=(1, 1), stride=2),
    "stride beyond the kernel": ConvolutionGeometry(2, stride=3),
    "dilation": ConvolutionGeometry(3, padding=(2, 2), dilation=2),
    "groups": ConvolutionGeometry(3, padding=(1, 1), groups=2),
    "reflect": ConvolutionGeometry(3, padding=(2, 1), padding_mode="reflect"),
    "replicate": ConvolutionGeometry(3, padding=(1, 3), padding_mode="replicate"),
    "circular": ConvolutionGeometry(4, padding=(2, 1), padding_mode="circular", stride=2),
    "everything": ConvolutionGeometry(3, (2, 3), "circular", stride=2, dilation=2, groups=2),
}
EACH = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())


def problem(geometry: ConvolutionGeometry) -> tuple[Tensor, Tensor, Tensor]:
    """An image of 6×7 with 4 channels, a bank to 6 channels, a bias."""
    k = geometry.kernel_size
    return (
        torch.randn(2, 4, 6, 7, dtype=torch.float64, requires_grad=True),
        torch.randn(6, 4 // geometry.groups, k, k, dtype=torch.float64, requires_grad=True),
        torch.randn(6, dtype=torch.float64),
    )


def torch_convolution(geometry: ConvolutionGeometry, bank: Tensor, bias: Tensor | None) -> nn.Conv2d:
    convolution = nn.Conv2d(
        4,
        6,
        geometry.kernel_size,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        geometry.groups,
        bias is not None,
        geometry.padding_mode,
    ).double()
    convolution.weight.data = bank.detach()
    if bias is not None:
        convolution.bias.data = bias
    return convolution


@EACH
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
def test_stationary_bank_is_a_convolution(geometry: ConvolutionGeometry, biased: bool) -> None:
    features, bank, bias = problem(geometry)
    found = integrate_stationary(features, bank, bias if biased else None, geometry)
    expected = torch_convolution(geometry, bank, bias if biased else None)(features)
    assert torch.equal(found, expected)
    assert found.shape[2:] == geometry.output_size(6, 7)


@EACH
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
def test_sum_over_taps_of_one_bank_is_a_convolution(geometry: ConvolutionGeometry, biased: bool) -> None:
    """Values and gradients."""
    features, bank, bias = problem(geometry)
    height, width = geometry.output_size(6, 7)

    def bank_at(tap: int, window: tuple[slice, slice]) -> Tensor:
        return bank.flatten(2)[..., tap, None].expand(-1, -1, height * width)

    taps = list(range(geometry.kernel_size**2))
    found = integrate_non_stationary(features, bank_at, taps, bias if biased else None, geometry)
    convolution = torch_convolution(geometry, bank, bias if biased else None)
    expected = convolution(features)
    assert relative_error(found.detach(), expected.detach()) <= ROUNDING
    cotangent = torch.randn_like(found)
    gradients = torch.autograd.grad(found, [features, bank], cotangent)
    expected_gradients = torch.autograd.grad(expected, [features, convolution.weight], cotangent)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert relative_error(gradient, expected_gradient) <= ROUNDING


@EACH
def test_bank_that_varies_with_the_input_position_acts_on_unfolded_patches(geometry: ConvolutionGeometry) -> None:
    features, _, _ = problem(geometry)
    padded = geometry.pad(features)
    taps, groups = geometry.kernel_size**2, geometry.groups
    # One matrix for each tap and each cell of the padded image.
    banks = torch.randn(taps, 6, 4 // groups, *padded.shape[2:], dtype=torch.float64)

    def bank_at(tap: int, window: tuple[slice, slice]) -> Tensor:
        return banks[tap][..., window[0], window[1]].flatten(-2)

    found = integrate_non_stationary(features, bank_at, list(range(taps)), None, geometry)
    k, stride, dilation = geometry.kernel_size, geometry.stride, geometry.dilation

    def patches(image: Tensor) -> Tensor:
        """(B, C, H, W) → (B, C, taps, outputs)."""
        return functional.unfold(image, k, dilation, stride=stride).unflatten(1, (image.shape[1], taps))

    values = patches(padded).unflatten(1, (groups, -1))
    kernels = torch.stack([patches(banks[tap])[:, :, tap] for tap in range(taps)], dim=2).unflatten(0, (groups, -1))
    expected = torch.einsum("goitx,bgitx->bgox", kernels, values).flatten(1, 2).view_as(found)
    assert relative_error(found.detach(), expected.detach()) <= ROUNDING


def test_taps_off_the_support_are_left_out() -> None:
    geometry = ConvolutionGeometry(3)
    features, bank, _ = problem(geometry)
    corners = [0, 2, 6, 8]
    masked = bank.detach().flatten(2).clone()
    masked[..., corners] = 0

    def bank_at(tap: int, window: tuple[slice, slice]) -> Tensor:
        assert tap not in corners
        return masked[..., tap, None].expand(-1, -1, 20)

    found = integrate_non_stationary(features, bank_at, [1, 3, 4, 5, 7], None, geometry)
    expected = functional.conv2d(features, masked.unflatten(2, (3, 3)))
    assert relative_error(found.detach(), expected.detach()) <= ROUNDING


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_is_that_of_torch(mode: str) -> None:
    features = torch.randn(1, 2, 5, 6)
    found = ConvolutionGeometry(3, padding=(2, 3), padding_mode=mode).pad(features)
    assert torch.equal(found, functional.pad(features, (3, 3, 2, 2), mode=mode))
