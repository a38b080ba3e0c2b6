"""Means of functions on the group, and of kernels, over a subgroup."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from escnn.group import GroupElement, Representation
from escnn.gspaces import GSpace2D
from numpy.typing import NDArray
from torch import Tensor

from ..group.elements import GroupSample, grid_symmetries, relative_elements, sample_group
from ..group.exact_constants import ExactConstants
from ..group.frame import FIBER_SUBGROUPS
from ..group.points import tap_grid

__all__ = ["FunctionMean", "KernelMean"]


class FunctionMean(ExactConstants):
    """The mean of a function on the group over left translates, w(g) → mean_h w(h⁻¹g) over a subgroup.

    Where a strict kernel is multiplied by weights that are functions on the group, their means project the product.

    Args:
        sample: all M elements of the group.

    Example:
        >>> from escnn import gspaces
        >>> mean = FunctionMean(sample_group(gspaces.flipRot2dOnR2(2), samples=1))
        >>> turn_and_reflect = torch.tensor([1.0, 2.0, 3.0, 4.0])  # two of each
        >>> mean(turn_and_reflect, ("rotation",)).tolist()
        [1.5, 1.5, 3.5, 3.5]
    """

    def __init__(self, sample: GroupSample) -> None:
        super().__init__()
        inverse_times = relative_elements(sample)
        for name in FIBER_SUBGROUPS:
            members = np.flatnonzero(_belongs(sample, (name,)))
            mean = np.zeros((len(sample), len(sample)))
            for member in members:
                mean[np.arange(len(sample)), inverse_times[member]] += 1 / len(members)
            self.set_constant(name, mean)

    def forward(self, function: Tensor, subgroups: Sequence[str]) -> Tensor:
        """Return the means over some subgroups: (…, M) → (…, M)."""
        for name in FIBER_SUBGROUPS:
            if name in subgroups:
                function = function @ getattr(self, name).mT
        return function


class KernelMean(ExactConstants):
    """The mean of any kernel, mean_h ρ_out(h) K(h⁻¹d) ρ_in(h)⁻¹, over elements that map taps to taps.

    Args:
        gspace: the symmetry.
        in_fields: fields of (one group of) the input.
        out_fields: fields of the output.
        kernel_size: k.
        dilation: spacing of the taps in pixels.

    Example:
        >>> from escnn import gspaces
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> mean = KernelMean(gspace, [gspace.trivial_repr], [gspace.trivial_repr], 2, 1)
        >>> mean(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), ("rotation",)).flatten().tolist()
        [2.5, 2.5, 2.5, 2.5]
    """

    steered: Tensor

    def __init__(
        self,
        gspace: GSpace2D,
        in_fields: Sequence[Representation],
        out_fields: Sequence[Representation],
        kernel_size: int,
        dilation: int,
    ) -> None:
        super().__init__()
        symmetries = grid_symmetries(gspace, tap_grid(kernel_size, dilation))
        elements = [element for element, _ in symmetries]
        self.set_constant("steered", np.array([steered for _, steered in symmetries], dtype=np.int64))
        in_channels, out_channels = _channels_by_field(in_fields), _channels_by_field(out_fields)
        self._counts = len(out_channels), len(in_channels)
        for number, (field, columns) in enumerate(in_channels.items()):
            self.set_constant(f"in_{number}", np.stack([_matrix(field, ~element) for element in elements]))
            self.set_constant(f"columns_{number}", columns)
        for number, (field, rows) in enumerate(out_channels.items()):
            self.set_constant(f"out_{number}", np.stack([_matrix(field, element) for element in elements]))
            self.set_constant(f"rows_{number}", rows[:, :, None, None])
        sample = sample_group(gspace, samples=4)
        self._numbers: dict[tuple[str, ...], list[int]] = {}
        for names in (("rotation",), ("reflection",), FIBER_SUBGROUPS):
            members = [sample.elements[number] for number in np.flatnonzero(_belongs(sample, names))]
            is_sampled = gspace.fibergroup.continuous and "rotation" in names
            if not is_sampled and all(member in elements for member in members):
                self._numbers[names] = [elements.index(member) for member in members]

    def is_defined(self, subgroups: tuple[str, ...]) -> bool:
        """Whether all elements of some subgroups map taps to taps."""
        return subgroups in self._numbers

    def forward(self, kernel: Tensor, subgroups: tuple[str, ...]) -> Tensor:
        """Return the mean of a kernel (C_out, C_in/groups, k, k) in the same shape."""
        taps = kernel.flatten(2)
        result = torch.zeros_like(taps)
        out_count, in_count = self._counts
        for out_number in range(out_count):
            for in_number in range(in_count):
                place = getattr(self, f"rows_{out_number}"), getattr(self, f"columns_{in_number}")
                # (fields, |A|, fields, |B|, T)
                block = taps[place]
                mean = torch.zeros_like(block)
                for number in self._numbers[subgroups]:
                    left, right = getattr(self, f"out_{out_number}")[number], getattr(self, f"in_{in_number}")[number]
                    mean = mean + torch.einsum("ac,ncmdt,db->nambt", left, block[..., self.steered[number]], right)
                result = result.index_put(place, mean / len(self._numbers[subgroups]))
        return result.view_as(kernel)


def _belongs(sample: GroupSample, subgroups: Sequence[str]) -> NDArray[np.bool_]:
    """Return for each element whether it is in a subgroup: rotations, the identity and f, or all."""
    turns = np.abs(sample.angle) > 1e-9
    is_allowed = np.ones(len(sample), dtype=np.bool_)
    if "rotation" not in subgroups:
        is_allowed &= ~turns
    if "reflection" not in subgroups:
        is_allowed &= sample.reflected == 0
    return is_allowed


def _channels_by_field(fields: Sequence[Representation]) -> dict[Representation, NDArray[np.int64]]:
    """Return a dict from each different field to the channels of its copies, (copies, size)."""
    channels: dict[Representation, list[NDArray[np.int64]]] = {}
    start = 0
    for field in fields:
        channels.setdefault(field, []).append(np.arange(start, start + field.size))
        start += field.size
    return {field: np.stack(copies) for field, copies in channels.items()}


def _matrix(field: Representation, element: GroupElement) -> NDArray[np.float64]:
    return np.asarray(field(element), dtype=np.float64)
