"""``check_equivariance``, with the arguments and the meaning of ``R2Conv``'s: images are turned, outputs compared.

Images are smooth and made here in closed form, so that no input is interpolated. Outputs are averaged over a few pixels
and compared in a disk about their centre, where nothing of the border is seen.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from escnn.nn import FieldType
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ..checks import FIBER_SUBGROUPS, check_bool, check_number
from ..group.elements import sample_group
from ..integral.geometry import Geometry, TransposedGeometry

if TYPE_CHECKING:
    from escnn.group import GroupElement

__all__ = ["SOFTNESS_OF_ROUNDING", "check_equivariance", "compared", "copy_to_check", "warn_of_softness"]

Array = NDArray[np.float64]

# Pixels of the output along an axis, at least, and those over which it is averaged, as in R2Conv's check.
_PIXELS = 65
_AVERAGED = 5
# The shortest waves, in steps of the layer. Found with 1×1 to 9×9 kernels of R2Conv on C8, D8, SO(2) and O(2): errors
# below half of the tolerance where the kernel is steerable, beyond seven times the tolerance where it is not.
_SHORTEST = 16
_WAVES = 12
_SEED = 3_407
# Softness that is rounding in float32.
SOFTNESS_OF_ROUNDING = 1e-10


@torch.no_grad()
def check_equivariance(
    layer: Any, atol: float, rtol: float, assertion: bool, verbose: bool, device: str
) -> list[tuple[GroupElement, float]]:
    """Return the mean error for each element in which a layer is strict; see :meth:`EscnnLayer.check_equivariance`.

    Args:
        layer: a layer of the plane; it is left as it is.
        atol: error allowed of any value of the output.
        rtol: error allowed as a part of the value.
        assertion: raise an error beyond the tolerance.
        verbose: print a line for each element.
        device: where to compute.
    """
    layer = copy_to_check(layer, atol, rtol, assertion, verbose, device)
    images = _Images(layer.in_type.size, layer.geometry)
    still = _output(layer, images.turned(np.eye(2)))
    errors = []
    for element in _strict_elements(layer):
        action = np.asarray(layer.space.basespace_action(element), dtype=np.float64)
        expected = _at_centre(_turned(still, layer.out_type, element, action), layer.geometry)
        image = layer.in_type.transform_fibers(images.turned(action), element)
        found = _at_centre(_output(layer, image), layer.geometry)
        errors.append((element, compared(element, found, expected, atol, rtol, assertion, verbose)))
    return errors


def copy_to_check(layer: Any, atol: float, rtol: float, assertion: bool, verbose: bool, device: str) -> Any:
    """Return a copy of a layer on a device, in float32 and eval mode. The arguments of a check are checked."""
    check_number("atol", atol)
    check_number("rtol", rtol)
    check_bool("assertion", assertion)
    check_bool("verbose", verbose)
    return copy.deepcopy(layer).to(device=torch.device(device), dtype=torch.float32).eval()


def compared(
    element: GroupElement,
    found: Tensor,
    expected: Tensor,
    atol: float,
    rtol: float,
    assertion: bool,
    verbose: bool,
) -> float:
    """Return the mean error of an element, with a line of text; raise an ``AssertionError`` beyond the tolerance."""
    error = (found - expected).abs()
    largest, mean = error.max().item(), error.mean().item()
    if verbose:
        print(f"{element}: error {largest:.3g} at most, {mean:.3g} in the mean")
    allowed = atol + rtol * torch.maximum(found.abs(), expected.abs())
    if assertion and not (error < allowed).all():
        raise AssertionError(
            f'The error found during equivariance check with element "{element}" is too high: max = {largest:.3g}, '
            f"mean = {mean:.3g}, where atol={atol:g} and rtol={rtol:g} allow {allowed.max().item():.3g} at most"
        )
    return mean


def warn_of_softness(is_soft: Mapping[str, bool], left_out: int, elements: int) -> None:
    """Warn of the elements that are not checked, since the layer is soft in some subgroups."""
    names = ", ".join(name for name in is_soft if is_soft[name])
    if names:
        warnings.warn(
            f"check_equivariance: the layer is soft in {names}: {left_out} of {elements} elements are not checked; see "
            f"equivariance_error",
            stacklevel=7,  # the user's line, past the method and no_grad
        )


def _strict_elements(layer: Any) -> list[GroupElement]:
    """The elements in which a layer is strict of those that escnn tests; a warning names what it is soft in."""
    is_soft = {name: layer.softness(name).item() > SOFTNESS_OF_ROUNDING for name in FIBER_SUBGROUPS}
    is_soft["translation"] = not layer.is_stationary
    reflection, kept = sample_group(layer.space, samples=1).reflection, layer.kernel.place.domain.kept
    elements = list(layer.space.testing_elements)
    strict = []
    for element in elements:
        action = np.asarray(layer.space.basespace_action(element), dtype=np.float64)
        is_reflected = bool(np.linalg.det(action) < 0)
        rotation = action @ reflection.T if is_reflected else action
        if is_soft["rotation"] and not kept.holds(rotation):
            continue
        if is_soft["reflection"] and is_reflected:
            continue
        # Regions of a kernel that depends on the position are squares.
        if is_soft["translation"] and not _is_whole(action):
            continue
        strict.append(element)
    warn_of_softness(is_soft, len(elements) - len(strict), len(elements))
    return strict


def _is_whole(value: Array) -> bool:
    return np.allclose(value, np.round(value), rtol=0, atol=1e-6)


class _Images:
    """Smooth images of random waves, of mean square 1, for a layer.

    Args:
        channels: number of channels.
        geometry: of the layer; images are as smooth as its taps, or its steps, are far apart.
    """

    def __init__(self, channels: int, geometry: Geometry) -> None:
        generator = torch.Generator().manual_seed(_SEED)
        self._size = _input_size(geometry)
        angle = 2 * math.pi * torch.rand(_WAVES, generator=generator)
        length = _SHORTEST * max(geometry.stride, geometry.dilation) / torch.rand(_WAVES, generator=generator).sqrt()
        self._waves = 2 * math.pi * torch.stack([angle.cos(), angle.sin()]) / length
        self._amplitudes = torch.randn(channels, 2 * _WAVES, generator=generator) / math.sqrt(_WAVES)

    def turned(self, action: Array) -> Tensor:
        """f(A⁻¹p) on the pixels, (1, channels, H, W); y up, as in escnn."""
        rows, columns = (torch.arange(side) - (side - 1) / 2 for side in self._size)
        y, x = torch.meshgrid(-rows, columns, indexing="ij")
        points = torch.stack([x, y], dim=-1) @ torch.from_numpy(action).float()  # rows p become A⁻¹p
        phase = points @ self._waves
        values = torch.cat([phase.cos(), phase.sin()], dim=-1) @ self._amplitudes.T
        return values.movedim(-1, 0).unsqueeze(0)


def _input_size(geometry: Geometry) -> tuple[int, ...]:
    """Height and width of an image that strides fit, large enough that the middle of the output sees no border."""
    extent, stride = geometry.extent, geometry.stride
    if isinstance(geometry, TransposedGeometry):
        return tuple(math.ceil((_PIXELS + 4 * extent + 2 * side) / stride) for side in geometry.padding)
    pixels = _PIXELS + 4 * max(geometry.padding)
    return tuple((pixels - 1) * stride + extent - 2 * side for side in geometry.padding)


def _output(layer: Any, image: Tensor) -> Tensor:
    """The output of a layer on the CPU, without the rows and columns that lie behind on one side only."""
    device = next(layer.parameters()).device
    output: Tensor = layer(layer.in_type(image.to(device))).tensor.cpu()
    if isinstance(layer.geometry, TransposedGeometry):
        rows, columns = layer.geometry.output_padding
        output = output[..., : output.shape[2] - rows, : output.shape[3] - columns]
    return output


def _turned(features: Tensor, field_type: FieldType, element: GroupElement, action: Array) -> Tensor:
    """ρ(g) h(A⁻¹x), between pixels by cubic interpolation."""
    height, width = features.shape[2:]
    # Coordinates of torch are y down, and in [−1, 1] along each axis.
    down, side = np.diag([1.0, -1.0]), np.diag([width - 1.0, height - 1.0])
    matrix = torch.from_numpy(np.linalg.inv(side) @ down @ action.T @ down @ side).float()
    affine = torch.cat([matrix, torch.zeros(2, 1)], dim=1).unsqueeze(0)
    grid = functional.affine_grid(affine, [1, 1, height, width], align_corners=True)
    moved = functional.grid_sample(features, grid, mode="bicubic", padding_mode="border", align_corners=True)
    turned: Tensor = field_type.transform_fibers(moved, element)
    return turned


def _at_centre(output: Tensor, geometry: Geometry) -> Tensor:
    """Means over a few pixels, in a disk about the centre: (1, C, places)."""
    # A transposed convolution treats as many neighbours differently as its stride has pixels.
    window = _AVERAGED * (geometry.stride if isinstance(geometry, TransposedGeometry) else 1)
    means = functional.avg_pool2d(output, window, stride=1)
    rows, columns = (torch.arange(side) - (side - 1) / 2 for side in means.shape[2:])
    return means[..., rows[:, None] ** 2 + columns**2 < (min(means.shape[2:]) / 4) ** 2]
