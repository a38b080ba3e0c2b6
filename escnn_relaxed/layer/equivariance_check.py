"""``check_equivariance``, with the arguments and the meaning of ``R2Conv``'s: inputs are turned, outputs compared.

In the plane inputs are smooth images, made here in closed form, so that none is interpolated. Outputs are averaged over
a few pixels and compared in a disk about their centre, where nothing of the border is seen. In space inputs are noise,
turned by the elements that map voxels to voxels. Features without a base space are noise, too.
"""

from __future__ import annotations

import copy
import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ..checks import FIBER_SUBGROUPS, check_number
from ..group.elements import sample_group, steered_taps
from ..group.points import tap_grid
from ..integral.geometry import TransposedGeometry
from ..on_escnn.sampled_basis import in_float32_and_main_memory

if TYPE_CHECKING:
    from escnn.group import GroupElement

Array = NDArray[np.float64]

# Pixels of the output along an axis, at least, and those over which it is averaged, as in R2Conv's check; and voxels.
_PIXELS = 65
_AVERAGED = 5
_VOXELS = 3
# The shortest waves, in steps of the layer. Found with 1×1 to 9×9 kernels of R2Conv on C8, D8, SO(2) and O(2): errors
# below half of the tolerance where the kernel is steerable, beyond seven times the tolerance where it is not.
_SHORTEST = 16
_WAVES = 12
_SEED = 3_407
# Softness that is rounding in float32.
_ROUNDING = 1e-10


@in_float32_and_main_memory()
@torch.no_grad()
def check_equivariance(
    layer: Any, atol: float, rtol: float, assertion: bool, verbose: bool, device: str
) -> list[tuple[GroupElement, float]]:
    """Return the mean error for each element in which a layer is strict; see :meth:`EscnnLayer.check_equivariance`."""
    check_number("atol", atol)
    check_number("rtol", rtol)
    layer = copy.deepcopy(layer).to(device=torch.device(device), dtype=torch.float32).eval()
    probes: dict[int, type[Any]] = {0: _Features, 2: _Images, 3: _Voxels}
    probe = probes[layer.space.dimensionality](layer)
    still = probe.output(probe.turned(np.eye(layer.space.dimensionality)))
    errors = []
    for element, action in _strict_elements(layer, probe.elements()):
        found = probe.at_centre(probe.output(layer.in_type.transform_fibers(probe.turned(action), element)))
        expected = probe.at_centre(layer.out_type.transform_fibers(probe.moved(still, action), element))
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
        errors.append((element, mean))
    return errors


def _strict_elements(layer: Any, elements: list[GroupElement]) -> list[tuple[GroupElement, Array]]:
    """Return the elements in which a layer is strict, with their matrices; a warning names what it is soft in."""
    is_soft = {name: layer.softness(name).item() > _ROUNDING for name in FIBER_SUBGROUPS}
    is_soft["translation"] = not layer.is_stationary
    domain = layer.kernel.place.domain
    # Features of a group of which no action is known have a domain of another group.
    space = domain.gspace if domain.gspace.fibergroup == layer.space.fibergroup else None
    reflection, kept = domain.sample.reflection, domain.kept
    strict = []
    for element in elements:
        action = np.eye(domain.dimension) if space is None else np.asarray(space.basespace_action(element))
        is_reflected = bool(np.linalg.det(action) < 0)
        rotation = action @ reflection.T if is_reflected else action
        is_broken = (is_soft["rotation"] and not kept.holds(rotation)) or (is_soft["reflection"] and is_reflected)
        # Regions of a kernel that depends on the position are squares.
        if (kept.holds(action) or not is_broken) and (not is_soft["translation"] or _is_whole(action)):
            strict.append((element, action))
    names = ", ".join(name for name in is_soft if is_soft[name])
    if names:
        warnings.warn(
            f"check_equivariance: the layer is soft in {names}: {len(elements) - len(strict)} of {len(elements)} "
            f"elements are not checked; see equivariance_error",
            stacklevel=7,  # the user's line, past the method and the decorators
        )
    return strict


def _is_whole(value: Array) -> bool:
    return np.allclose(value, np.round(value), rtol=0, atol=1e-6)


class _Images:
    """Smooth images of random waves, of mean square 1, for a layer of the plane."""

    def __init__(self, layer: Any) -> None:
        self._layer, self._geometry = layer, layer.geometry
        geometry, generator = self._geometry, torch.Generator().manual_seed(_SEED)
        extent, stride = geometry.extent, geometry.stride
        self._is_transposed = isinstance(geometry, TransposedGeometry)
        # A size that strides fit, so large that the middle of the output sees no border.
        if self._is_transposed:
            self._size = [math.ceil((_PIXELS + 4 * extent + 2 * side) / stride) for side in geometry.padding]
        else:
            pixels = _PIXELS + 4 * max(geometry.padding)
            self._size = [(pixels - 1) * stride + extent - 2 * side for side in geometry.padding]
        angle = 2 * math.pi * torch.rand(_WAVES, generator=generator)
        # As smooth as taps, or steps, are far apart.
        length = _SHORTEST * max(stride, geometry.dilation) / torch.rand(_WAVES, generator=generator).sqrt()
        self._waves = 2 * math.pi * torch.stack([angle.cos(), angle.sin()]) / length
        amplitudes = torch.randn(layer.in_type.size, 2 * _WAVES, generator=generator)
        self._amplitudes = amplitudes / math.sqrt(_WAVES)

    def elements(self) -> list[GroupElement]:
        """Return the elements that escnn tests."""
        return list(self._layer.space.testing_elements)

    def turned(self, action: Array) -> Tensor:
        """f(A⁻¹p) on the pixels, (1, channels, H, W); y up, as in escnn."""
        rows, columns = (torch.arange(side) - (side - 1) / 2 for side in self._size)
        y, x = torch.meshgrid(-rows, columns, indexing="ij")
        points = torch.stack([x, y], dim=-1) @ torch.from_numpy(action).float()  # rows p become A⁻¹p
        phase = points @ self._waves
        values = torch.cat([phase.cos(), phase.sin()], dim=-1) @ self._amplitudes.T
        return values.movedim(-1, 0).unsqueeze(0)

    def output(self, image: Tensor) -> Tensor:
        """The output of the layer on the CPU, without the rows and columns that lie behind on one side only."""
        device = next(self._layer.parameters()).device
        output: Tensor = self._layer(self._layer.in_type(image.to(device))).tensor.cpu()
        if self._is_transposed:
            rows, columns = self._geometry.output_padding
            output = output[..., : output.shape[2] - rows, : output.shape[3] - columns]
        return output

    def moved(self, features: Tensor, action: Array) -> Tensor:
        """h(A⁻¹x), between pixels by cubic interpolation."""
        height, width = features.shape[2:]
        # Coordinates of torch are y down, and in [−1, 1] along each axis.
        down, side = np.diag([1.0, -1.0]), np.diag([width - 1.0, height - 1.0])
        matrix = torch.from_numpy(np.linalg.inv(side) @ down @ action.T @ down @ side).float()
        affine = torch.cat([matrix, torch.zeros(2, 1)], dim=1).unsqueeze(0)
        grid = functional.affine_grid(affine, [1, 1, height, width], align_corners=True)
        return functional.grid_sample(features, grid, mode="bicubic", padding_mode="border", align_corners=True)

    def at_centre(self, output: Tensor) -> Tensor:
        """Means over a few pixels, in a disk about the centre: (1, C, places)."""
        # A transposed convolution treats as many neighbours differently as its stride has pixels.
        means = functional.avg_pool2d(
            output, _AVERAGED * (self._geometry.stride if self._is_transposed else 1), stride=1
        )
        rows, columns = (torch.arange(side) - (side - 1) / 2 for side in means.shape[2:])
        return means[..., rows[:, None] ** 2 + columns**2 < (min(means.shape[2:]) / 4) ** 2]


class _Features:
    """Noise for a layer on features without a base space."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._noise = torch.randn(10, layer.in_type.size, generator=torch.Generator().manual_seed(_SEED))

    def elements(self) -> list[GroupElement]:
        """Return the elements that escnn tests."""
        return list(self._layer.space.testing_elements)

    def turned(self, action: Array) -> Tensor:
        """The noise, (10, channels): nothing moves."""
        return self._noise

    def output(self, noise: Tensor) -> Tensor:
        """The output of the layer on the CPU."""
        device = next(self._layer.parameters()).device
        output: Tensor = self._layer(self._layer.in_type(noise.to(device))).tensor.cpu()
        return output

    def moved(self, features: Tensor, action: Array) -> Tensor:
        """The features as they are."""
        return features

    def at_centre(self, output: Tensor) -> Tensor:
        """The output as it is."""
        return output


class _Voxels:
    """Noise on a cube of which a layer of volumes needs the middle, so that its outputs see no border.

    A transposed layer gets all of a cube: the zeros around it are the same after a turn.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        geometry, generator = layer.geometry, torch.Generator().manual_seed(_SEED)
        most = max(geometry.padding)
        self._is_transposed = isinstance(geometry, TransposedGeometry)
        if self._is_transposed:
            side = _VOXELS + math.ceil(2 * most / geometry.stride)
        else:
            side = (2 * most + _VOXELS - 1) * geometry.stride + geometry.extent
        self._noise = torch.randn(1, layer.in_type.size, side, side, side, generator=generator)

    def elements(self) -> list[GroupElement]:
        """Return the elements that map voxels to voxels."""
        sample = sample_group(self._layer.space)
        return [of for of, action in zip(sample.elements, sample.action, strict=True) if _is_whole(action)]

    def turned(self, action: Array) -> Tensor:
        """f(g⁻¹x) of the noise."""
        return self.moved(self._noise, action)

    def output(self, noise: Tensor) -> Tensor:
        """The middle voxels of the output on the CPU."""
        device = next(self._layer.parameters()).device
        if self._is_transposed:
            output = self._layer(self._layer.in_type(noise.to(device))).tensor.cpu()
            # Without what lies behind on one side only.
            added = self._layer.geometry.output_padding
            sides = [side - behind for side, behind in zip(output.shape[2:], added, strict=True)]
            output = output[:, :, : sides[0], : sides[1], : sides[2]]
            return _middle(output, [min(sides)] * 3)
        sides = [noise.shape[-1] - 2 * padding for padding in self._layer.geometry.padding]
        output = self._layer(self._layer.in_type(_middle(noise, sides).to(device))).tensor.cpu()
        return _middle(output, [_VOXELS] * 3)

    def moved(self, volumes: Tensor, action: Array) -> Tensor:
        """f(g⁻¹x) of a cube."""
        steered = steered_taps(action.round(), tap_grid(volumes.shape[-1], dimension=3))
        return volumes.flatten(2)[..., steered].view(volumes.shape)

    def at_centre(self, output: Tensor) -> Tensor:
        """The output as it is."""
        return output


def _middle(volumes: Tensor, sides: list[int]) -> Tensor:
    for axis, side in enumerate(sides, start=2):
        volumes = volumes.narrow(axis, (volumes.shape[axis] - side) // 2, side)
    return volumes
