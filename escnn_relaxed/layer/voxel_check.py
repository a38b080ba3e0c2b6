"""``check_equivariance`` of volumes: by the elements that map voxels to voxels, on noise, where no border is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..group.elements import sample_group, steered_taps
from ..group.points import tap_grid
from .equivariance_check import SOFTNESS_OF_ROUNDING, compared, copy_to_check, warn_of_softness

if TYPE_CHECKING:
    from escnn.group import GroupElement

__all__ = ["check_on_voxels"]

# Voxels of the output along an axis that are compared.
_VOXELS = 3
_SEED = 3_407


@torch.no_grad()
def check_on_voxels(
    layer: Any, atol: float, rtol: float, assertion: bool, verbose: bool, device: str
) -> list[tuple[GroupElement, float]]:
    """Return the mean error of each element that maps voxels to voxels and in which the layer is strict.

    Args:
        layer: a layer of volumes; it is left as it is.
        atol: error allowed of any value of the output.
        rtol: error allowed as a part of the value.
        assertion: raise an error beyond the tolerance.
        verbose: print a line for each element.
        device: where to compute.
    """
    layer = copy_to_check(layer, atol, rtol, assertion, verbose, device)
    noise = _noise(layer)
    still = _output(layer, noise)
    errors = []
    for element in _strict_elements(layer):
        found = _output(layer, _turned(noise, layer.in_type, element))
        expected = _turned(still, layer.out_type, element)
        errors.append((element, compared(element, found, expected, atol, rtol, assertion, verbose)))
    return errors


def _strict_elements(layer: Any) -> list[GroupElement]:
    kept = layer.kernel.place.domain.kept
    sample = sample_group(layer.space)
    identity = np.eye(sample.dimension)
    is_soft = {name: name in layer.relaxed_subgroups for name in ("rotation", "reflection")}
    is_soft = {name: of and layer.softness(name).item() > SOFTNESS_OF_ROUNDING for name, of in is_soft.items()}
    elements, strict = 0, []
    for element, action, rotation, reflected in zip(
        sample.elements, sample.action, sample.rotation, sample.reflected, strict=True
    ):
        if not np.allclose(action, action.round(), rtol=0, atol=1e-6):
            continue
        elements += 1
        is_turned = not np.allclose(rotation, identity, rtol=0, atol=1e-6)
        if kept.holds(action) or not ((is_soft["rotation"] and is_turned) or (is_soft["reflection"] and reflected)):
            strict.append(element)
    warn_of_softness(is_soft, elements - len(strict), elements)
    return strict


def _noise(layer: Any) -> Tensor:
    """Noise on a cube of which the layer's outputs need the middle, (1, C, n, n, n)."""
    geometry = layer.geometry
    border = 2 * max(geometry.padding) + _VOXELS - 1
    side = border * geometry.stride + geometry.extent
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randn(1, layer.in_type.size, *[side] * len(geometry.padding), generator=generator)


def _output(layer: Any, noise: Tensor) -> Tensor:
    """The middle voxels of the output on the CPU."""
    device = next(layer.parameters()).device
    sides = [noise.shape[-1] - 2 * padding for padding in layer.geometry.padding]
    output = layer(layer.in_type(_middle(noise, sides).to(device))).tensor.cpu()
    return _middle(output, [_VOXELS] * len(sides))


def _middle(volumes: Tensor, sides: list[int]) -> Tensor:
    for axis, side in enumerate(sides, start=2):
        volumes = volumes.narrow(axis, (volumes.shape[axis] - side) // 2, side)
    return volumes


def _turned(volumes: Tensor, field_type: Any, element: GroupElement) -> Tensor:
    """ρ(g) f(g⁻¹x) of a cube."""
    size = volumes.shape[2:]
    action = np.asarray(field_type.gspace.basespace_action(element), dtype=np.float64)
    steered = steered_taps(action.round(), tap_grid(size[0], dimension=len(size)))
    turned: Tensor = field_type.transform_fibers(volumes.flatten(2)[..., steered].view(volumes.shape), element)
    return turned
