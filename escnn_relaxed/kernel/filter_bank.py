"""The continuous kernel as a whole: coordinates → features → kernel values → filter bank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ..group.coordinate_grid import CoordinateGrid
from ..group.elements import SUBGROUPS
from ..group.fields import FieldStructure
from ..group.frame import GroupFrame
from ..group.regions import RegionPartition
from ..group.remembered import Remembered, StateTensors
from .continuous_kernel import ContinuousKernel
from .domain_means import DomainMeans, domain_of_means
from .nets import KernelNet
from .soft_part import SoftPart
from .steered_average import SteeredAverage
from .steering import sees_relative_element

if TYPE_CHECKING:
    from escnn.group import Representation

    from .steerable_basis import StrictPart

__all__ = ["ContinuousFilterBank"]


class ContinuousFilterBank(SoftPart):
    """K of equation (2) for two lists of fields; a subclass says how the domain enters and how it starts.

    Args:
        in_representations: fields of (one group of) the input.
        out_representations: fields of the output.
        frame: their symmetry.
        kernel: the options of κ.
        kernel_size: k.
        dilation: spacing of the taps in pixels.
        domain_subgroups: subgroups that may be soft.
        cells: number of positions along each axis of the image over which the kernel varies.
        remembered: the layer's store.

    Attributes:
        default_hidden_size: J where ``kernel`` does not give it.
        bandwidth_per_pixel: ω of the position, per pixel of the radius, where ``kernel`` does not give it.
    """

    grid: CoordinateGrid
    kernel: KernelNet
    default_hidden_size: ClassVar[int]
    bandwidth_per_pixel: ClassVar[float]

    def __init__(
        self,
        in_representations: Sequence[Representation],
        out_representations: Sequence[Representation],
        frame: GroupFrame,
        kernel: ContinuousKernel,
        *,
        kernel_size: int,
        dilation: int,
        domain_subgroups: tuple[str, ...] = (),
        cells: int = 1,
        remembered: Remembered | None = None,
    ) -> None:
        super().__init__(frame, domain_subgroups, remembered)
        self.in_representations = list(in_representations)
        self.out_representations = list(out_representations)
        self.options = kernel.completed(kernel_size, self.default_hidden_size, self.bandwidth_per_pixel)
        self.kernel_size = kernel_size
        self.dilation = dilation
        in_structure, out_structure = self._structures(frame)
        self.grid = CoordinateGrid(
            frame,
            kernel_size,
            dilation,
            1.0 if kernel.support == "smooth" else 0.0,
            frame.subgroups if _is_relative(in_structure, out_structure) else (),
            self.options.frequencies,
            domain_subgroups,
            kernel.frame,
            cells,
        )
        self.taps = self.grid.support
        self.kernel = self.build_kernel_net()
        self._buffers_of_net = StateTensors(("_buffers", "__dict__"))
        has_constant = self.holds_strict_part
        features = (self.options.hidden_size or 0) + has_constant
        self.steered_average = SteeredAverage(
            in_structure, out_structure, frame.sample, features, has_constant, self.remembered
        )

    def build_kernel_net(self) -> KernelNet:
        """Return a newly drawn kernel net for the coordinates of this kernel."""
        columns = self.grid.filter_columns, self.grid.domain_columns
        build: Callable[..., KernelNet] = self.options.net
        net = build(*map(len, columns), self.options.hidden_size)
        if self.options.rotation_coordinates == "log":
            net.make_periodic(*([n for n, name in enumerate(of) if name == "rotation"] for of in columns))
        return net

    def forward(
        self,
        frequency: Mapping[str, Tensor],
        averaged: Sequence[str] = (),
        strict: StrictPart | None = None,
        partition: RegionPartition | None = None,
    ) -> Tensor:
        """Return K with both parts: (C_out, C_in, k, k), or for each region (regions, C_out, C_in, k, k)."""
        added = None if strict is None else strict.between(self.steered_average.pair_channels)
        if partition is None:
            features = self.features(self.kernel, frequency, averaged=averaged)
            return self._banks(features, added).squeeze(0)
        positions = self.grid.image_positions
        features = self.features(self.kernel, frequency, positions, averaged=averaged)
        weights = self.remembered.get(("weights of regions", partition), lambda: partition.weights(positions), [])
        # K is linear in its features: their mean over a region is that of K.
        return self._banks(partition.means(features, 2, weights), added)

    def at_pixels(
        self,
        frequency: Mapping[str, Tensor],
        tap: int,
        positions: Tensor,
        averaged: Sequence[str] = (),
        strict: Tensor | None = None,
    ) -> Tensor:
        """Return K with both parts at a tap for positions (P, d): (C_out, C_in, P)."""
        added = None if strict is None else strict[..., tap].unsqueeze(-1)
        if tap not in self.grid.support:
            size = self.steered_average.assembly.size
            zero = self.grid.taps.new_zeros(*size, 1) if added is None else added
            return zero.expand(-1, -1, len(positions))
        features = self.features(self.kernel, frequency, positions, tap, averaged)
        kernel = self.steered_average(features).squeeze(-1).permute(1, 2, 0)
        return kernel if added is None else kernel + added

    def features(
        self,
        kernel: KernelNet,
        frequency: Mapping[str, Tensor],
        positions: Tensor | None = None,
        tap: int | None = None,
        averaged: Sequence[str] = (),
    ) -> Tensor:
        """Return the features that the output weights multiply after steering: φ times the window, and a constant.

        Args:
            kernel: the kernel net that gives φ.
            frequency: ω′ of each subgroup of the domain.
            positions: x over half of the image along each axis, (P, d).
            tap: number of one tap, all of them by default.
            averaged: subgroups over which the mean of φ is taken. This projects K on the kernels that are equivariant
                to them (equation (6)).

        Returns:
            (J + 1, M, P, R, T). It is (J, M, P, R, T) where the kernel is centred, since a constant would be 0. P is 1
            where the features do not depend on the position.
        """
        taps, window = self.grid.taps, self.grid.window
        if tap is not None:
            taps, window = taps[:, :, tap : tap + 1], window[tap : tap + 1]
        of_taps = self._kept(
            ("features of taps",) if tap is None else None,
            lambda: kernel.filter_features(taps.flatten(1, 2)),
            kernel,
        )
        of_domain, means = self._features_of_domain(kernel, frequency, positions, tuple(averaged))
        hidden = kernel.domain_mean(of_taps, of_domain, means)
        values = hidden.unflatten(-1, (-1, len(window))) * window
        return torch.cat([values, window.expand_as(values[:1])]) if self.holds_strict_part else values

    def _features_of_domain(
        self,
        kernel: KernelNet,
        frequency: Mapping[str, Tensor],
        positions: Tensor | None,
        averaged: tuple[str, ...],
    ) -> tuple[Tensor, DomainMeans]:
        """Return the net's features (points, D) of the domain points, and the means to take of its hidden values."""
        is_known = positions is None or positions is self.grid.image_positions
        setting = (averaged, positions is None) if is_known else None
        coordinates, *means = self._kept(
            setting and ("points", *setting),
            lambda: domain_of_means(self.grid, averaged, positions, not self.holds_strict_part),
        )
        features = self._kept(
            setting and ("features of points", *setting),
            lambda: kernel.domain_features(coordinates * self.grid.scale(frequency)),
            kernel,
            *frequency.values(),
        )
        return features, DomainMeans(*means)

    def _kept(
        self, key: tuple[object, ...] | None, build: Callable[[], Any], kernel: KernelNet | None = None, *others: Tensor
    ) -> Any:
        """Return a result of constants, of the buffers of the layer's own kernel net and of other tensors."""
        is_own = kernel is None or kernel is self.kernel
        if key is None or self.frame.offset or not is_own:
            return build()
        return self.remembered.get(key, build, others if kernel is None else [*others, *self._buffers_of_net(kernel)])

    def energies(
        self,
        frequency: Mapping[str, Tensor],
        hardened: Sequence[str],
        subgroups: Sequence[str],
        strict: StrictPart | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return ‖K − PK‖² and ‖PK‖² of this part alone, as means over the positions."""
        positions = self.positions(frequency)
        joint = tuple(name for name in SUBGROUPS if name in (*hardened, *subgroups))
        features = self.features(self.kernel, frequency, positions, averaged=hardened)
        projected = self.features(self.kernel, frequency, positions, averaged=joint)
        energy = self.steered_average.energy
        return energy(features - projected) / features.shape[2], energy(projected) / projected.shape[2]

    def scale(self, factor: float) -> None:
        """Multiply the units of the weights, so that steps of an optimiser are as small as the soft part is."""
        for pair in self.steered_average.block_pairs:
            pair.units.mul_(factor)

    def start_at_zero(self, growth: float) -> None:
        """Set the weights to 0 and make their units fit another strict part, of another norm."""
        self.scale(growth)
        for pair in self.steered_average.block_pairs:
            nn.init.zeros_(pair.weights)

    def describe(self) -> dict[str, Any]:
        """Return the facts that decide which function the tensors of a state dict stand for."""
        net = self.options.net
        return {
            **super().describe(),
            "kernel net": [net.state_name or net.__name__, self.options.hidden_size],
            "dilation": self.dilation,
            "support": self.options.support,
            "filter frequency": self.options.frequencies,
            "rotation coordinates": self.options.rotation_coordinates,
            "frame": self.options.frame,
        }

    def _set_frame(self, frame: GroupFrame) -> None:
        super()._set_frame(frame)
        self.steered_average.set_structures(*self._structures(frame))

    def without_escnn(self) -> ContinuousFilterBank:
        """Return a copy that holds no object of escnn. Its grid can no longer be turned."""
        bank = super().without_escnn()
        bank.in_representations, bank.out_representations = [], []
        return bank

    def _structures(self, frame: GroupFrame) -> tuple[FieldStructure, FieldStructure]:
        return (
            FieldStructure(self.in_representations, frame.sample),
            FieldStructure(self.out_representations, frame.sample),
        )

    def _banks(self, features: Tensor, strict: Tensor | list[Tensor] | None) -> Tensor:
        """Return filter banks (P, C_out, C_in, k, k) of features (J, M, P, R, T), with a kernel added to each."""
        banks: Tensor = self.steered_average(features, strict)
        return banks.unflatten(-1, (self.kernel_size,) * self.grid.image_positions.shape[-1])


def _is_relative(in_structure: FieldStructure, out_structure: FieldStructure) -> bool:
    """Whether the kernel of a pair of blocks sees the relative element."""
    return any(sees_relative_element(b, a) for a in out_structure.blocks for b in in_structure.blocks)
