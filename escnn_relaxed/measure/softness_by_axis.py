"""The softness of a network of volumes in the rotations about each axis."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ..checks import check_module
from ..group.rotation_axes import axis_in_words, rotation_axes
from ..layer.relaxed_r3conv import RelaxedR3Conv

__all__ = ["AxisSoftness", "softness_by_axis"]


@dataclass(frozen=True)
class AxisSoftness:
    """The softness of the softest layer in the rotations about an axis.

    Attributes:
        axis: a vector of length 1, (x, y, z); z is the first axis of a volume.
        fold: n; the rotations are those by multiples of 360°/n.
        softness: s, from 0 to 1.

    Example:
        >>> row = AxisSoftness((0.0, 0.0, 1.0), fold=4, softness=0.02)
        >>> row.name
        'z'
    """

    axis: tuple[float, float, float]
    fold: int
    softness: float

    @property
    def name(self) -> str:
        """``"x"``, ``"y"`` or ``"z"``, or the components as integers."""
        return axis_in_words(self.axis)


@torch.no_grad()
def softness_by_axis(network: nn.Module) -> tuple[AxisSoftness, ...]:
    """Return the softness of a network of volumes in the rotations about each axis; an axis of softness 0 is kept.

    It follows from the weights: of each layer it is
    :meth:`~escnn_relaxed.RelaxedR3Conv.softness_in` the rotations about the axis that map voxels to voxels. The largest
    of all layers counts. The octahedral group has 13 axes, of quarter turns, third turns and half turns. Axes of SO(3)
    and O(3) are the same 13. Axes without a rotation that maps voxels to voxels, as that of C3, are left out.

    Args:
        network: any module with layers ``RelaxedR3Conv``.

    Raises:
        TypeError: for a network that is no module.
        ValueError: for a network without such a layer.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR3Conv
        >>> gspace = gspaces.rot3dOnR3()
        >>> fields = nn.FieldType(gspace, [gspace.irrep(0), gspace.irrep(1)])
        >>> layer = RelaxedR3Conv(fields, fields, 3, keep="SO(2)", initial_softness=0.1)
        >>> [row.name for row in softness_by_axis(layer) if row.softness < 1e-6]
        ['z']
    """
    layers = [module for module in check_module("network", network).modules() if isinstance(module, RelaxedR3Conv)]
    if not layers:
        raise ValueError("network has no layer RelaxedR3Conv: softness by axis is that of volumes")
    largest: dict[tuple[tuple[float, float, float], int], float] = {}
    for layer in layers:
        for axis in rotation_axes(layer.space):
            key, softness = (axis.direction, axis.fold), layer.softness_in([axis.element]).item()
            largest[key] = max(largest.get(key, 0.0), softness)
    return tuple(AxisSoftness(*key, softness) for key, softness in largest.items())
