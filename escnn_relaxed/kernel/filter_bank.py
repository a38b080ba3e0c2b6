"""Coordinates → features → kernel values → filter bank: the continuous kernel of a layer, whole."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from torch import Tensor, nn

from ..group.coordinate_grid import CoordinateGrid
from ..group.elements import NOTHING_KEPT, SUBGROUPS, GroupSample, KeptGroup, has_subgroup, sample_group
from ..group.exact_constants import put_back
from ..group.fields import FieldStructure
from ..group.regions import RegionPartition
from .continuous_kernel import ContinuousKernel
from .nets import KernelNet
from .remembered import Remembered
from .steered_average import SteeredAverage
from .steering import sees_relative_element

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
        kept: subgroup of the fiber group to which K is equivariant whatever is soft: a mean as equation (6) takes it.

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
        kept: KeptGroup = NOTHING_KEPT,
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
            kept,
        )
        self.kernel = self.build_kernel_net()
        self._filter_features = Remembered()
        self._domain_points = Remembered()
        self._domain_features = Remembered()
        self._region_weights = Remembered()
        features = (kernel.hidden_size or 0) + (not centred)
        self.steered_average = SteeredAverage(in_structure, out_structure, sample, features, has_constant=not centred)

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

    def forward(
        self, frequency: Mapping[str, Tensor], averaged: Sequence[str] = (), strict: Tensor | list[Tensor] | None = None
    ) -> Tensor:
        """K where it does not depend on the position: (C_out, C_in, k, k).

        Args:
            frequency: ω′ of each subgroup of the domain.
            averaged: subgroups to project on.
            strict: a kernel that is added, as :class:`SteeredAverage` takes it.
        """
        return self._banks(self.features(self.kernel, frequency, averaged=averaged), strict).squeeze(0)

    def at_regions(
        self,
        frequency: Mapping[str, Tensor],
        partition: RegionPartition,
        averaged: Sequence[str] = (),
        strict: Tensor | list[Tensor] | None = None,
    ) -> Tensor:
        """K in each region of an output, row after row: (regions, C_out, C_in, k, k).

        Args:
            frequency: ω′ of each subgroup of the domain.
            partition: the regions.
            averaged: subgroups to project on.
            strict: a kernel that is added, as :class:`SteeredAverage` takes it.
        """
        positions = self.grid.image_positions
        features = self.features(self.kernel, frequency, positions, averaged=averaged)
        weights = self._region_weights.get(lambda: partition.weights(positions), [positions], partition)
        # K is linear in its features: their mean over a region is that of K.
        return self._banks(partition.means(features, 2, weights), strict)

    def at_pixels(
        self, frequency: Mapping[str, Tensor], tap: int, positions: Tensor, averaged: Sequence[str] = ()
    ) -> Tensor:
        """K at a tap for positions (P, 2): (C_out, C_in, P)."""
        features = self.features(self.kernel, frequency, positions, tap, averaged)
        return rearrange(self.steered_average(features), "position o i 1 -> o i position")

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
            tap: number of one tap, all of them by default.
            averaged: subgroups over which φ is replaced by its mean, which projects K on the kernels that are
                equivariant to them (equation (6)).

        Returns:
            (J + 1, M, P, R, T); (J, M, P, R, T) where the bank is centred, and a constant would be 0. P is 1 where
            the features do not depend on the position.
        """
        steered, window = self.grid.taps, self.grid.window
        if tap is not None:
            steered, window = steered[:, :, tap : tap + 1], window[tap : tap + 1]
        of_taps = self._features_of_taps(kernel, steered, tap)
        hidden = kernel.domain_mean(of_taps, *self._features_of_domain(kernel, frequency, positions, tuple(averaged)))
        values = rearrange(hidden, "j m p (r t) -> j m p r t", t=len(window)) * window
        return values if self.centred else torch.cat([values, window.expand_as(values[:1])])

    def _features_of_taps(self, kernel: KernelNet, taps: Tensor, tap: int | None) -> Tensor:
        def build() -> tuple[Tensor, ...]:
            return (kernel.filter_features(taps.flatten(1, 2)),)

        if kernel is not self.kernel or tap is not None:
            return build()[0]
        return self._filter_features.get(build, [self.grid.taps, *kernel.buffers()])[0]

    def _features_of_domain(
        self,
        kernel: KernelNet,
        frequency: Mapping[str, Tensor],
        positions: Tensor | None,
        averaged: tuple[str, ...],
    ) -> tuple[Tensor, list[tuple[int, int, int]]]:
        """Those of the points over which φ is averaged and, in a centred bank, of those whose mean is subtracted.

        Returns:
            Features (points, D), set after set, and (M, P, L) of each set.
        """

        def points() -> tuple[Any, ...]:
            own = self.grid.domain_points(averaged, positions)
            sets = [own, self.grid.domain_points(SUBGROUPS)] if self.centred else [own]
            return torch.cat([of.flatten(0, 2) for of in sets]), [tuple(of.shape[:3]) for of in sets]

        given = [] if positions is None else [positions]
        coordinates, sets = self._domain_points.get(points, [self.grid.orbit_points, *given], averaged)

        def features() -> tuple[Any, ...]:
            return (kernel.domain_features(coordinates * self.grid.scale(frequency)),)

        if kernel is not self.kernel:
            return features()[0], sets
        return self._domain_features.get(features, [coordinates, *frequency.values(), *kernel.buffers()])[0], sets

    def forget(self) -> None:
        """Make anew what is kept of constants: they may have been written to past their counters of versions."""
        self._filter_features.forget()
        self._domain_points.forget()
        self._domain_features.forget()
        self._region_weights.forget()
        self.steered_average.forget()

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

    def _banks(self, features: Tensor, strict: Tensor | list[Tensor] | None) -> Tensor:
        """Features (J, M, P, R, T) → (P, C_out, C_in, k, k), with a kernel added to each."""
        banks: Tensor = self.steered_average(features, strict)
        return banks.unflatten(-1, (self.kernel_size, self.kernel_size))


def _relative_subgroups(
    in_structure: FieldStructure, out_structure: FieldStructure, gspace: GSpace2D
) -> tuple[str, ...]:
    relative = any(sees_relative_element(b, a) for a in out_structure.blocks for b in in_structure.blocks)
    names = ("rotation", "reflection") if relative else ()
    return tuple(name for name in names if has_subgroup(gspace, name))
