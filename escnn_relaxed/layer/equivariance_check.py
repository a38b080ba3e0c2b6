"""``check_equivariance``, with the arguments and the meaning of ``R2Conv``'s.

Inputs are waves, made here in closed form at every point, so that none is interpolated. Outputs are compared about
their centre, where nothing of the border is seen: of the plane between pixels, as means over a few of them; of space at
the elements alone that map voxels to voxels.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from escnn.group import GroupElement
from escnn.nn import GeometricTensor
from torch import Tensor
from torch.nn import functional

from ..checks import WHOLE_GROUP, check_number, warn
from ..group.elements import sample_group
from ..group.points import Array, centred_grid
from ..integral.geometry import TransposedGeometry
from ..on_escnn.sampled_basis import in_float32_and_main_memory

# By the dimension of the base space: points of the output along an axis, at least; those over which it is averaged, as
# in R2Conv's check; and the shortest waves, in steps of the layer. Those of the plane are found with 1×1 to 9×9 kernels
# of R2Conv on C8, D8, SO(2) and O(2): errors below half of the tolerance where the kernel is steerable, beyond seven
# times the tolerance where it is not.
_POINTS = {0: 1, 2: 65, 3: 3}
_AVERAGED = {0: 1, 2: 5, 3: 1}
_SHORTEST = {0: 1, 2: 16, 3: 3}
_WAVES = 12
_NODES, _NEIGHBOURS = 30, 6
_SEED = 3_407
# Softness that is rounding in float32.
_ROUNDING = 1e-10


@in_float32_and_main_memory()
@torch.no_grad()
def check_equivariance(
    layer: Any, atol: float, rtol: float, assertion: bool, verbose: bool, device: str
) -> list[tuple[GroupElement, float]]:
    """Return the mean error for each element in which a layer is strict; see :class:`RelaxedLayer`."""
    check_number("atol", atol)
    check_number("rtol", rtol)
    layer = copy.deepcopy(layer).to(device=torch.device(device), dtype=torch.float32).eval()
    # Nothing of the border is seen, so that all paddings are alike.
    none = dict.fromkeys({"padding", "output_padding"} & vars(layer.geometry).keys(), (0,) * layer.space.dimensionality)
    layer.geometry = replace(layer.geometry, **none)
    probe = _Cloud(layer) if layer.is_of_clouds else _Waves(layer)
    still = probe.output(np.eye(layer.space.dimensionality))
    errors = []
    for element, action in _strict_elements(layer):
        actual = probe.at_centre(probe.output(action, element))
        expected = probe.at_centre(layer.out_type.transform_fibers(probe.moved(still, action), element))
        error = (actual - expected).abs()
        largest, mean = error.max().item(), error.mean().item()
        if verbose:
            print(f"{element}: error {largest:.3g} at most, {mean:.3g} in the mean")
        allowed = atol + rtol * torch.maximum(actual.abs(), expected.abs())
        if assertion and not (error < allowed).all():
            raise AssertionError(
                f'The error found during equivariance check with element "{element}" is too high: max = {largest:.3g}, '
                f"mean = {mean:.3g}, where atol={atol:g} and rtol={rtol:g} allow {allowed.max().item():.3g} at most"
            )
        errors.append((element, mean))
    return errors


def _strict_elements(layer: Any) -> list[tuple[GroupElement, Array]]:
    """Return the elements in which a layer is strict, with their matrices; a warning names what it is soft in."""
    domain = layer.domain
    is_soft = {name: layer.softness(name).item() > _ROUNDING for name in domain.fiber_subgroups}
    is_soft["translation"] = not layer.is_stationary
    # Features of a group of which no action is known have a domain of another group.
    space = domain.gspace if domain.gspace.fibergroup == layer.space.fibergroup else None
    elements = list(layer.space.testing_elements)
    if layer.space.dimensionality == 3:
        sampled = sample_group(layer.space).elements
        elements = [element for element in sampled if _is_whole(layer.space.basespace_action(element))]
    strict = []
    for element in elements:
        action = np.eye(domain.dimension) if space is None else np.asarray(space.basespace_action(element))
        is_reflected = bool(np.linalg.det(action) < 0)
        rotation = action @ domain.sample.reflection.T if is_reflected else action
        if domain.is_abstract:
            is_broken = is_soft[WHOLE_GROUP]
        else:
            is_turned = is_soft["rotation"] and not domain.kept.holds(rotation)
            is_broken = is_turned or (is_soft["reflection"] and is_reflected)
        # Positions of a kernel that depends on them are those of pixels.
        if (domain.kept.holds(action) or not is_broken) and (not is_soft["translation"] or _is_whole(action)):
            strict.append((element, action))
    names = ", ".join(name for name in is_soft if is_soft[name])
    if names:
        warn(
            f"check_equivariance: the layer is soft in {names}: {len(elements) - len(strict)} of {len(elements)} "
            f"elements are not checked; see equivariance_error"
        )
    return strict


def _is_whole(value: Array) -> bool:
    return np.allclose(value, np.round(value), rtol=0, atol=1e-6)


class _Waves:
    """Random waves of mean square 1 as input of a layer; noise vectors without a base space."""

    def __init__(self, layer: Any) -> None:
        self._layer, geometry = layer, layer.geometry
        self._axes = axes = layer.space.dimensionality
        # A size that strides fit, so large that the middle of the output sees no border.
        if isinstance(geometry, TransposedGeometry):
            self._size = [math.ceil((_POINTS[axes] + 4 * geometry.extent) / geometry.stride)] * axes
            # A transposed convolution treats as many neighbours differently as its stride has pixels.
            self._averaged = _AVERAGED[axes] * (geometry.stride if axes == 2 else 1)
        else:
            self._size = [(_POINTS[axes] - 1) * geometry.stride + geometry.extent] * axes
            self._averaged = _AVERAGED[axes]
        generator = torch.Generator().manual_seed(_SEED)
        directions = functional.normalize(torch.randn(axes, _WAVES, generator=generator), dim=0)
        # As smooth as taps, or steps, are far apart.
        shortest = _SHORTEST[axes] * max(geometry.stride, geometry.dilation)
        lengths = shortest / torch.rand(_WAVES, generator=generator).sqrt()
        self._waves = 2 * math.pi * directions / lengths
        self._noise = torch.randn(2 * _WAVES, layer.in_type.size, generator=generator)

    def output(self, action: Array, element: GroupElement | None = None) -> Tensor:
        """Return the output on the CPU of f(A⁻¹p)."""
        features = self._noise
        if self._axes:
            points = _points(self._size) @ torch.from_numpy(action).float()  # rows p become A⁻¹p
            phase = points @ self._waves
            values = torch.cat([phase.cos(), phase.sin()], dim=-1) @ (self._noise / math.sqrt(_WAVES))
            features = values.movedim(-1, 0).unsqueeze(0)
        if element is not None:
            features = self._layer.in_type.transform_fibers(features, element)
        features = features.to(next(self._layer.parameters()).device)
        return self._layer(self._layer.in_type(features)).tensor.cpu()

    def moved(self, features: Tensor, action: Array) -> Tensor:
        """Return h(A⁻¹x), between pixels by cubic interpolation."""
        if not self._axes:
            return features
        size = features.shape[2:]
        points = _points(size) @ torch.from_numpy(action).float()
        # torch has y down, and coordinates in [−1, 1] along each axis.
        signs = torch.tensor([1.0, -1.0, -1.0][: self._axes])
        grid = 2 * signs * points / (torch.tensor(size[::-1]) - 1)
        mode = "bicubic" if self._axes == 2 else "bilinear"
        return functional.grid_sample(features, grid.unsqueeze(0), mode=mode, padding_mode="border", align_corners=True)

    def at_centre(self, output: Tensor) -> Tensor:
        """Return the means over a few points in a disk, or a ball, about the centre: (1, C, places)."""
        if not self._axes:
            return output
        means = functional.avg_pool2d(output, self._averaged, stride=1) if self._averaged > 1 else output
        size = means.shape[2:]
        radius = min(size) / 4 if self._axes == 2 else 1.8
        return means[..., _points(size).square().sum(-1) < radius**2]


class _Cloud:
    """A random cloud whose nodes hear their nearest ones, with the interface of waves."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        generator = torch.Generator().manual_seed(_SEED)
        self._features = torch.randn(_NODES, layer.in_type.size, generator=generator)
        places = torch.randn(_NODES, layer.d, generator=generator)
        near = torch.cdist(places, places).topk(_NEIGHBOURS, largest=False).indices
        # Neighbours are at most as far as the kernel reaches.
        reach = max(layer._rings) or 1.0
        self._places = places * (reach / (places[near] - places.unsqueeze(1)).norm(dim=-1).max())
        self._edges = torch.stack([near.flatten(), torch.arange(_NODES).repeat_interleave(_NEIGHBOURS)])

    def output(self, action: Array, element: GroupElement | None = None) -> Tensor:
        """Return the output on the CPU for the cloud that an element moves."""
        features, device = self._features, next(self._layer.parameters()).device
        if element is not None:
            features = self._layer.in_type.transform_fibers(features, element)
        places = self._places @ torch.from_numpy(action.T).float()
        cloud = GeometricTensor(features.to(device), self._layer.in_type, places.to(device))
        return self._layer(cloud, self._edges.to(device)).tensor.cpu()

    def moved(self, features: Tensor, action: Array) -> Tensor:
        """Return the features of the nodes, which stay theirs."""
        return features

    def at_centre(self, output: Tensor) -> Tensor:
        """Return the features of all nodes."""
        return output


def _points(size: Sequence[int]) -> Tensor:
    """Return the coordinates of all pixels from their centre, in pixels and escnn's order, y up."""
    return torch.from_numpy(centred_grid(size)).float().unflatten(0, size)
