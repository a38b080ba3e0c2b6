"""Coordinates → features → kernel values → filter bank: the continuous kernel of a layer, whole."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..group.coordinate_grid import CoordinateGrid
from ..group.elements import SUBGROUPS, GroupSample, has_subgroup, sample_group
from ..group.exact_constants import put_back
from ..group.fields import FieldStructure
from ..group.regions import RegionPartition
from .continuous_kernel import ContinuousKernel
from .nets import KernelNet
from .steering import SteeredAverage, sees_relative_element

if TYPE_CHECKING:
    from escnn.group import Representation
    from escnn.gspaces import GSpace2D

__all__ = ["ContinuousFilterBank"]


class ContinuousFilterBank(nn.Module):
    """K of equation (2) for two lists of fields.

    Args:
        in_representations: fields of (one group of) the input.
        out_representations: fields of the output.
        gspace: their symmetry.
        kernel: what shapes κ, complete.
        kernel_size: k.
        dilation: spacing of the taps in pixels.
        samples: number of rotations by which a continuous group is sampled.
        domain_subgroups: subgroups that may be soft.
        cells: number of positions along each axis of the image over which the kernel varies.
        centred: subtract from φ its mean over the domain, so that K has no strict part (equation (9)).

    Attributes:
        offset: angle in radians by which the sampled grid of a continuous group is turned.
    """

    def __init__(
        self,
        in_representations: Sequence[Representation],
        out_representations: Sequence[Representation],
        gspace: GSpace2D,
        kernel: ContinuousKernel,
        *,
        kernel_size: int,
        dilation: int,
        samples: int,
        domain_subgroups: tuple[str, ...] = (),
        cells: int = 1,
        centred: bool = False,
    ) -> None:
        super().__init__()
        self.in_representations = list(in_representations)
        self.out_representations = list(out_representations)
        self.gspace = gspace
        self.options = kernel
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.samples = samples
        self.domain_subgroups = domain_subgroups
        self.centred = centred
        self.offset = 0.0
        sample = sample_group(gspace, samples)
        in_structure, out_structure = self._structures(sample)
        self.grid = CoordinateGrid(
            sample,
            kernel_size,
            dilation,
            1.0 if kernel.support == "smooth" else 0.0,
            _relative_subgroups(in_structure, out_structure, gspace),
            kernel.frequencies,
            domain_subgroups,
            kernel.rotation_coordinates,
            kernel.frame,
            cells,
        )
        self.kernel = self.build_kernel_net()
        self.steered_average = SteeredAverage(in_structure, out_structure, sample, has_constant=not centred)

    def build_kernel_net(self) -> KernelNet:
        """A kernel net for the coordinates of this filter bank, newly drawn."""
        columns = self.grid.filter_columns, self.grid.domain_columns
        build: Callable[..., KernelNet] = self.options.net
        net = build(*map(len, columns), self.options.hidden_size)
        if self.options.rotation_coordinates == "log":
            net.make_periodic(*([n for n, name in enumerate(of) if name == "rotation"] for of in columns))
        return net

    def strict_between(self, fields: Sequence[Representation]) -> ContinuousFilterBank:
        """A strict filter bank from these fields to themselves, otherwise made as this one, newly drawn."""
        return ContinuousFilterBank(
            fields,
            fields,
            self.gspace,
            self.options,
            kernel_size=self.kernel_size,
            dilation=self.dilation,
            samples=self.samples,
        )

    def forward(self, frequency: Mapping[str, Tensor], averaged: Sequence[str] = ()) -> Tensor:
        """K where it does not depend on the position: (C_out, C_in, k, k).

        Args:
            frequency: ω′ of each subgroup of the domain.
            averaged: subgroups to project on.
        """
        return self._banks(self.features(self.kernel, frequency, averaged=averaged), None).squeeze(0)

    def at_regions(
        self,
        frequency: Mapping[str, Tensor],
        partition: RegionPartition,
        averaged: Sequence[str] = (),
        strict: Tensor | None = None,
    ) -> Tensor:
        """K in each region of an output, row after row: (regions, C_out, C_in, k, k).

        Args:
            frequency: ω′ of each subgroup of the domain.
            partition: the regions.
            averaged: subgroups to project on.
            strict: a kernel that is added, (C_out, C_in, k, k).
        """
        features = self.features(self.kernel, frequency, self.grid.image_positions, averaged=averaged)
        # K is linear in its features: their mean over a region is that of K.
        return self._banks(partition.means(features, dimension=-1), strict)

    def at_pixels(
        self, frequency: Mapping[str, Tensor], number: int, positions: Tensor, averaged: Sequence[str] = ()
    ) -> Tensor:
        """K at the n-th tap of the support for positions (P, 2): (C_out, C_in, P)."""
        features = self.features(self.kernel, frequency, positions, number, averaged)
        return self.steered_average(features.transpose(3, 4)).squeeze(-1).permute(1, 2, 0)

    def features(
        self,
        kernel: KernelNet,
        frequency: Mapping[str, Tensor],
        positions: Tensor | None = None,
        tap: int | None = None,
        averaged: Sequence[str] = (),
    ) -> Tensor:
        """What the output weights multiply before steering: φ and a constant, within the window.

        Args:
            kernel: the kernel net that gives φ.
            frequency: ω′ of each subgroup of the domain.
            positions: x over half of the image along each axis, (P, 2).
            tap: number of one tap of the support, all of them by default.
            averaged: subgroups over which φ is replaced by its mean, which projects K on the kernels that are
                equivariant to them (equation (6)).

        Returns:
            (J + 1, M, R, T, P); (J, M, R, T, P) where the bank is centred, and a constant would be 0. P is 1 where
            the features do not depend on the position.
        """
        wanted = slice(None) if tap is None else slice(tap, tap + 1)
        taps = self.grid.taps[:, :, wanted].unsqueeze(3)
        window = self.grid.window[wanted].unsqueeze(-1)
        if averaged:
            points = self.grid.mean_points(frequency, averaged, positions)
            hidden = kernel.domain_mean(taps, points[:, None, None])
        else:
            hidden = kernel(taps, self.grid.domain_points(frequency, positions)[:, None, None])
        if self.centred:
            points = self.grid.mean_points(frequency, SUBGROUPS)
            return (hidden - kernel.domain_mean(taps, points[:, None, None])) * window
        return torch.cat([hidden, torch.ones_like(hidden[:1])]) * window

    def turn(self, offset: float) -> None:
        """Turn the sampled grid of a continuous group by an angle in radians."""
        if offset == self.offset:
            return
        sample = sample_group(self.gspace, self.samples, offset)
        self.grid.set_sample(sample)
        self.steered_average.set_structures(*self._structures(sample))
        self.offset = offset

    @contextlib.contextmanager
    def turned(self, offset: float) -> Iterator[None]:
        """Within it the grid is turned by an angle in radians."""
        before = self.offset
        with put_back(self):
            self.turn(offset)
            try:
                yield
            finally:
                self.offset = before

    def random_offset(self) -> float:
        """An angle uniform over one step of the sampled grid, in radians."""
        return float(torch.rand((), device="cpu")) * 2 * math.pi / self.samples

    def without_escnn(self) -> ContinuousFilterBank:
        """A copy that holds nothing of escnn; its grid cannot be turned any more."""
        kept = self.__dict__
        escnn_objects: dict[str, Any] = {"in_representations": [], "out_representations": [], "gspace": None}
        self.__dict__ = {**kept, **escnn_objects}
        try:
            return copy.deepcopy(self)
        finally:
            self.__dict__ = kept

    def _structures(self, sample: GroupSample) -> tuple[FieldStructure, FieldStructure]:
        return (
            FieldStructure(self.in_representations, sample),
            FieldStructure(self.out_representations, sample),
        )

    def _banks(self, features: Tensor, strict: Tensor | None) -> Tensor:
        """Features (J, M, R, T, P) → (P, C_out, C_in, k, k), with a kernel (C_out, C_in, k, k) added to each."""
        size = self.kernel_size
        on_grid = self._on_grid(features.transpose(3, 4))
        banks: Tensor = self.steered_average(on_grid, None if strict is None else strict.flatten(2))
        return banks.unflatten(-1, (size, size))

    def _on_grid(self, hidden: Tensor) -> Tensor:
        """Hidden values (…, T) of the support on the whole grid (…, k²), zero off the support."""
        support, taps = self.grid.support, self.kernel_size**2
        if len(support) == taps:
            return hidden
        index = support.new_full((taps,), len(support))
        index[support] = torch.arange(len(support), device=support.device)
        return nn.functional.pad(hidden, (0, 1)).index_select(-1, index)


def _relative_subgroups(
    in_structure: FieldStructure, out_structure: FieldStructure, gspace: GSpace2D
) -> tuple[str, ...]:
    relative = any(sees_relative_element(b, a) for a in out_structure.blocks for b in in_structure.blocks)
    names = ("rotation", "reflection") if relative else ()
    return tuple(name for name in names if has_subgroup(gspace, name))
