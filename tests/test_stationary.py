"""Equation (1) where one kernel serves all positions, against torch's convolution; and its padding."""

from __future__ import annotations

import pytest
import torch
from geometries import EACH_GEOMETRY
from torch import Tensor, nn
from torch.nn import functional

from escnn_relaxed.integral.geometry import ConvolutionGeometry, integrate_stationary


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


@pytest.mark.whole
@EACH_GEOMETRY
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
def test_stationary_bank_is_a_convolution(geometry: ConvolutionGeometry, biased: bool) -> None:
    features, bank, bias = problem(geometry)
    found = integrate_stationary(features, bank, bias if biased else None, geometry)
    expected = torch_convolution(geometry, bank, bias if biased else None)(features)
    assert torch.equal(found, expected)
    assert found.shape[2:] == geometry.output_size(6, 7)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_is_that_of_torch(mode: str) -> None:
    features = torch.randn(1, 2, 5, 6)
    found = ConvolutionGeometry(3, padding=(2, 3), padding_mode=mode).pad(features)
    assert torch.equal(found, functional.pad(features, (3, 3, 2, 2), mode=mode))
