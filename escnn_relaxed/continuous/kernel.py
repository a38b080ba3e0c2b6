"""The paper's kernel K: one continuous kernel κ for the strict and the soft part, steered over the group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from escnn.nn import FieldType
from torch import Tensor, nn

from ..checks import warn_once
from ..group.fields import FieldStructure
from ..group.regions import RegionPartition, region_limit
from ..kernel.domain_frequency import DEFAULT_FREQUENCY, DomainFrequency, Limit
from ..kernel.kernel import Kernel, KernelPlace
from .calibration import SyntheticMaps, few_of, gain, spread, synthetic_maps
from .coordinates import DomainPoints, FilterPoints
from .nets import KernelNet
from .start import in_double_precision, start_weights
from .steered_average import SteeredAverage
from .steering import sees_relative_element

__all__ = ["SteeredKernel"]

# The number of layers after which synthetic feature maps are as smooth as those inside a deep network; found by the
# variance through ten layers.
_LAYERS = 6


class SteeredKernel(Kernel):
    """K of equation (2): the mean over the group of κ, steered. Its mean over the domain is the strict part."""

    default_softness = 0.01

    def __init__(
        self,
        place: KernelPlace,
        net: type[KernelNet],
        hidden_size: int,
        filter_frequency: Mapping[str, float],
        support: str,
    ) -> None:
        super().__init__(place)
        _warn_ignored(place.basis_arguments)
        self._options = net, hidden_size, filter_frequency, support
        sample = place.domain.sample
        inputs, outputs = (FieldStructure(of.representations, sample) for of in (place.in_type, place.out_type))
        sees_relative = any(sees_relative_element(b, a) for a in outputs.blocks for b in inputs.blocks)
        self.filter_points = FilterPoints(place, filter_frequency, sees_relative, support)
        self.domain_points = DomainPoints(place.domain, tuple(place.relax))
        self.net = self._new_net()
        self.steered_average = SteeredAverage(inputs, outputs, sample)
        self.frequency = DomainFrequency(place.relax, place.learn_relaxation, place.domain.dimension)
        self.frequency.limits = _limits(place)
        for name, value in self.frequency.values().items():
            self.frequency.warn_of_aliasing("relax", name, value.tolist())

    def _new_net(self) -> KernelNet:
        """Return a newly drawn kernel net for the coordinates of this kernel."""
        columns = self.filter_points.columns, self.domain_points.columns
        build: Callable[..., KernelNet] = self._options[0]
        net = build(*map(len, columns), self._options[1])
        if self.place.domain.form == "log":
            net.make_periodic(*([n for n, name in enumerate(of) if name == "rotation"] for of in columns))
        return net

    def forward(
        self, weights: Tensor | None, partition: RegionPartition | None = None, averaged: Sequence[str] = ()
    ) -> Tensor:
        """Return K, (C_out, C_in, k, …), or in each region of an output, (regions, C_out, C_in, k, …)."""
        features = self.features(self.net, self.frequency, averaged, partition is not None)
        if partition is not None and features.shape[2] > 1:
            features = partition.means(features, 2)
        banks = self._banks(features)
        return banks.squeeze(0) if partition is None else banks.expand(math.prod(partition.counts), *banks.shape[1:])

    def features(
        self, net: KernelNet, frequency: DomainFrequency, averaged: Sequence[str] = (), at_cells: bool = False
    ) -> Tensor:
        """Return the features of κ: φ times the window, and the window, (J + 1, M, P, R, T)."""
        window = self.filter_points.window
        hidden = net.domain_mean(
            self.filter_points.taps.flatten(1, 2), self.domain_points(frequency, averaged, at_cells)
        )
        values = hidden.unflatten(-1, (-1, len(window))) * window
        return torch.cat([values, window.expand_as(values[:1])])

    def _banks(self, features: Tensor) -> Tensor:
        """Return filter banks (P, C_out, C_in, k, …) of features (J + 1, M, P, R, T)."""
        banks: Tensor = self.steered_average(features)
        return banks.unflatten(-1, (self.place.kernel_size,) * self.place.domain.dimension)

    @torch.no_grad()
    def start(self, weights: Tensor | None, softness: float) -> None:
        """Draw the output weights, and fix the softness of the start and the scale of the output."""
        if self.relaxed_subgroups and not softness:
            raise ValueError(
                "initial_softness must be above 0 with kernel=ContinuousKernel(), where the same weights make the "
                "strict part; relax={'rotation': 0.0} starts strict"
            )
        frequency = self._frequency_at_start()

        def features(net: KernelNet, averaged: Sequence[str]) -> Tensor:
            return self.features(net, frequency, averaged, at_cells="translation" in frequency.names)

        with in_double_precision(self, self.filter_points.taps.dtype):
            wanted = softness if self.relaxed_subgroups else None
            start_weights(self.steered_average, self.net, self._new_net, features, wanted)
        bank = self._banks(self.features(self.net, frequency)).squeeze(0)
        scale = gain(bank, self.feature_maps(), self.place.out_type.representations, self.place.in_type.gspace)
        for pair in self.steered_average.block_pairs:
            pair.weights.div_(scale)

    def _frequency_at_start(self) -> DomainFrequency:
        """Return ω′ with the default in place of 0: a layer that may become soft later starts alike."""
        own = {name: value.tolist() for name, value in self.frequency.values().items()}
        start = {name: [of or DEFAULT_FREQUENCY for of in values] for name, values in own.items()}
        return DomainFrequency(start, axes=self.place.domain.dimension)

    def feature_maps(self) -> SyntheticMaps:
        """Return feature maps like those behind strict continuous layers of the same options."""
        fields, gspace = self.place.in_type.representations, self.place.in_type.gspace
        few = FieldType(gspace, few_of(fields))
        place = replace(self.place, in_type=few, out_type=few, relax={}, learn_relaxation=False, basis_arguments={})
        strict = SteeredKernel(place, *self._options)
        strict.to(self.filter_points.taps)

        def draw_bank() -> Tensor:
            features = strict.features(strict.net, strict.frequency)
            average = strict.steered_average
            average.initialize(features, average.count_directions(features))
            return strict(None)

        maps = synthetic_maps(few.representations, self.place.kernel_size, gspace, draw_bank, _LAYERS)
        return SyntheticMaps(maps, spread(fields))

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield ω′ where it is learned, and the weights of the domain coordinates; all others make the strict part."""
        yield from self.frequency.parameters()
        if self.net.domain_weight is not None:
            yield self.net.domain_weight

    def adopt_earlier_state(self, state: dict[str, Any], prefix: str) -> None:
        """Rename the entries of a state that an earlier version saved, in place."""
        super().adopt_earlier_state(state, prefix)
        earlier = f"{prefix}kernel.kernel."
        for key in [key for key in state if key.startswith(earlier)]:
            state[f"{prefix}kernel.net.{key.removeprefix(earlier)}"] = state.pop(key)

    def describe(self) -> dict[str, Any]:
        """Return the facts that decide which function the tensors of a state dict stand for."""
        place = self.place
        net, hidden_size, filter_frequency, support = self._options
        return {
            **super().describe(),
            "strict kernel": "continuous",
            "samples": place.domain.samples if place.domain.gspace.fibergroup.continuous else None,
            "kernel net": [net.state_name or net.__name__, hidden_size],
            "dilation": place.dilation,
            "support": support,
            "filter frequency": filter_frequency,
            "rotation coordinates": self._rotation_coordinates(),
            # Earlier versions could take positions in the frame of the image.
            "frame": "group",
        }

    def _rotation_coordinates(self) -> str:
        """Return the form of the coordinates in words; earlier versions told the elements of a kept coset apart."""
        domain = self.place.domain
        known = np.unique(domain.elements(["rotation"]).round(6), axis=0)
        is_of_cosets = domain.kept.axis is None and len(known) < len(domain.sample.rotations)
        return f"{domain.form}, of cosets" if is_of_cosets and "rotation" in self.relaxed_subgroups else domain.form


def _limits(place: KernelPlace) -> dict[str, Limit]:
    """Return the largest ω′ of each subgroup that the samples resolve."""
    cells, is_log = place.domain.cells, place.domain.form == "log"
    limits = {"translation": Limit(region_limit(cells), f"G/4 for regions = {cells}, more of which resolve more")}
    resolved = place.domain.resolved_frequency()
    rotations = round(resolved * (2 if is_log else 4 * math.pi), 6)
    # Any function of two rotations is resolved.
    if rotations > 2:
        formula = "N/2" if is_log else "N/4π, above which features hold harmonics over N/2,"
        limits["rotation"] = Limit(resolved, f"{formula} for N = {rotations:g} rotations in a turn")
    return limits


def _warn_ignored(arguments: Mapping[str, Any]) -> None:
    """Warn once of arguments of ``R2Conv`` that only shape escnn's own basis."""
    given = sorted(name for name, value in arguments.items() if value is not None and value is not False)
    if given:
        warn_once(
            f"{', '.join(given)}: ignored, because these only shape the basis of escnn's R2Conv; a layer without "
            f"kernel=ContinuousKernel() uses them"
        )
