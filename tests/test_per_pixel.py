"""A kernel for every pixel of the output: the sum over taps against unfolded patches, and what a layer gives it."""

from __future__ import annotations

from types import SimpleNamespace

import battery
import pytest
import torch
from geometries import EACH_GEOMETRY
from layers import SOFT_PARTS, build
from test_stationary import problem, torch_convolution
from tolerances import ROUNDING
from torch import Tensor
from torch.nn import functional
from transformations import relative_error

from escnn_relaxed.integral.per_pixel import PixelKernel, integrate_per_pixel
from escnn_relaxed.integral.stationary import ConvolutionGeometry

EVERY_KERNEL = pytest.mark.parametrize("soft_part", SOFT_PARTS)


class Given:
    """A kernel for every pixel as numbers, (taps, C_out, C_in/groups, H, W), in place of a continuous one.

    Args:
        banks: the numbers.
        known: the taps that may be asked for.
    """

    def __init__(self, banks: Tensor, known: list[int] | None = None) -> None:
        self._banks = banks
        self._known = list(range(len(banks))) if known is None else known
        self.bank = SimpleNamespace(grid=SimpleNamespace(pixel_grid=self._pixel_numbers))

    def _pixel_numbers(self, height: int, width: int) -> Tensor:
        assert (height, width) == tuple(self._banks.shape[-2:])
        return torch.arange(height * width)

    def taps(self) -> list[int]:
        return self._known

    def at(self, tap: int, positions: Tensor) -> Tensor:
        assert tap in self._known
        return self._banks[tap].flatten(-2)[..., positions]


@pytest.mark.whole
@EACH_GEOMETRY
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
def test_sum_over_taps_of_one_bank_is_a_convolution(geometry: ConvolutionGeometry, biased: bool) -> None:
    """Values and gradients."""
    features, bank, bias = problem(geometry)
    banks = bank.flatten(2).permute(2, 0, 1)[..., None, None].expand(-1, -1, -1, *geometry.output_size(6, 7))
    found = integrate_per_pixel(features, Given(banks), bias if biased else None, geometry)
    convolution = torch_convolution(geometry, bank, bias if biased else None)
    expected = convolution(features)
    assert relative_error(found.detach(), expected.detach()) <= ROUNDING
    cotangent = torch.randn_like(found)
    gradients = torch.autograd.grad(found, [features, bank], cotangent)
    expected_gradients = torch.autograd.grad(expected, [features, convolution.weight], cotangent)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert relative_error(gradient, expected_gradient) <= ROUNDING


@EACH_GEOMETRY
def test_kernel_of_each_pixel_acts_on_its_patch(geometry: ConvolutionGeometry) -> None:
    features, _, _ = problem(geometry)
    k, groups = geometry.kernel_size, geometry.groups
    banks = torch.randn(k**2, 6, 4 // groups, *geometry.output_size(6, 7), dtype=torch.float64)
    found = integrate_per_pixel(features, Given(banks), None, geometry)
    patches = functional.unfold(geometry.pad(features), k, geometry.dilation, stride=geometry.stride)
    values = patches.unflatten(1, (groups, -1, k**2))
    kernels = banks.flatten(-2).unflatten(1, (groups, -1))
    expected = torch.einsum("tgoix,bgitx->bgox", kernels, values).flatten(1, 2).view_as(found)
    assert relative_error(found.detach(), expected.detach()) <= ROUNDING


def test_taps_off_the_support_are_left_out() -> None:
    geometry = ConvolutionGeometry(3)
    features, bank, _ = problem(geometry)
    masked = bank.detach().clone()
    masked[..., ::2, ::2] = 0  # the corners
    banks = masked.flatten(2).permute(2, 0, 1)[..., None, None].expand(-1, -1, -1, 4, 5)
    found = integrate_per_pixel(features, Given(banks, known=[1, 3, 4, 5, 7]), None, geometry)
    assert relative_error(found.detach(), functional.conv2d(features, masked).detach()) <= ROUNDING


def layer_of(soft_part: str, **arguments: object):
    return build(
        *battery.types("C4", "regular -> irreps"),
        padding=1,
        relax={"rotation": 0.2, "translation": (0.3, 0.5)},
        initial_softness=0.3,
        support="disk",
        soft_part=soft_part,
        **arguments,
    )


@torch.no_grad()
@pytest.mark.parametrize("soft_part", ["continuous", "centred"])
def test_kernel_of_a_layer_is_its_strict_part_and_its_soft_part(soft_part: str) -> None:
    """The hard disk leaves the corners to the steerable basis, if there is one."""
    layer = layer_of(soft_part, regions=None)
    strict = None if layer.steerable_basis is None else layer.steerable_basis(layer.weights)
    kernel = PixelKernel(layer.bank, strict, layer.domain_frequency, ())
    corners, cross = [0, 2, 6, 8], [1, 3, 4, 5, 7]
    assert kernel.taps() == (cross if strict is None else list(range(9)))
    positions = layer.bank.grid.pixel_grid(2, 3)
    for tap in kernel.taps():
        expected = torch.zeros(()) if strict is None else strict.flatten(2)[..., tap, None]
        if tap not in corners:
            expected = expected + layer.bank.at_pixels(layer.domain_frequency, tap, positions)
        found = kernel.at(tap, positions)
        assert found.shape == (layer.out_type.size, layer.in_type.size, 6)
        assert relative_error(found, expected.expand_as(found)) <= ROUNDING


@torch.no_grad()
@EVERY_KERNEL
def test_kernels_of_as_many_pixels_are_those_of_the_cells(soft_part: str) -> None:
    """An output of 8×8 pixels has a pixel at the centre of each of 8×8 cells."""
    pixels, regions = layer_of(soft_part, regions=None), layer_of(soft_part, regions=8)
    regions.load_state_dict(dict(pixels.state_dict()))
    strict = None if pixels.steerable_basis is None else pixels.steerable_basis(pixels.weights)
    kernel = PixelKernel(pixels.bank, strict, pixels.domain_frequency, ())
    positions = pixels.bank.grid.pixel_grid(8, 8)
    expected = torch.zeros(pixels.out_type.size, pixels.in_type.size, 9, 64, dtype=torch.float64)
    for tap in kernel.taps():
        expected[:, :, tap] = kernel.at(tap, positions)
    banks = regions.region_banks((32, 32)).flatten(0, 1).flatten(3)
    assert relative_error(banks.movedim(0, -1), expected) <= ROUNDING
    assert relative_error(banks[0], banks[-1]) > 1e-2


@EVERY_KERNEL
def test_layer_with_a_kernel_for_every_pixel_has_no_banks_of_regions(soft_part: str) -> None:
    layer = layer_of(soft_part, regions=None)
    with pytest.raises(RuntimeError, match="region_banks: this layer has a kernel for every pixel"):
        layer.region_banks((8, 8))
    with pytest.raises(RuntimeError, match="soft in translation"):
        layer.filter_bank()
