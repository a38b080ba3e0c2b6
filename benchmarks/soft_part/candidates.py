"""Forms that the soft part of a layer may have, for the study that decides: research code, on the package's own parts.

``TiedR2Conv`` and ``TiedPlane``: the strict kernel, modulated by a few numbers of each field. ``harmonics``: kernel
nets for ``ContinuousKernel(net=…)`` whose features are a function of the tap times a fixed function of the domain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from escnn.group import Representation
from escnn.nn import FieldType
from numpy.typing import NDArray
from torch import Tensor, nn

from escnn_relaxed.baselines.strict_kernel import BaselineConvolution, StrictKernel, strict_layer
from escnn_relaxed.group.elements import GroupSample, steer
from escnn_relaxed.group.exact_constants import ExactConstants
from escnn_relaxed.group.frame import GroupFrame
from escnn_relaxed.group.points import pixel_positions, tap_grid
from escnn_relaxed.group.regions import RegionPartition
from escnn_relaxed.integral.regions import integrate_regions
from escnn_relaxed.kernel import KernelNet
from escnn_relaxed.kernel.softness import soft_share

__all__ = ["FixedHarmonics", "Harmonics", "TiedPlane", "TiedR2Conv", "direction_basis", "element_basis", "lowest"]

Array = NDArray[np.float64]

# ω′ where nothing else is said, as of RelaxedR2Conv.
FREQUENCY = 0.25
# A function of which so little is left besides those before it, as a part of its size, is none of its own.
LEAST = 0.1
REGIONS = 4


def lowest(points: Array, count: int) -> Array:
    """The first ``count`` functions of points (M, D), centred and of rms 1, (≤ count, M): sin, cos, products of sines.

    Args:
        points: ω′ ⊙ a of all of the domain.
        count: how many are wanted; those that depend on the ones before are left out.
    """
    sines, cosines = np.sin(2 * np.pi * points.T), np.cos(2 * np.pi * points.T)
    pairs = [a * b for a, b in itertools.combinations(sines, 2)]
    found = [f - f.mean() for f in (*sines, *cosines, *pairs)]
    return _independent(np.array(found))[:count]


def element_basis(field: Representation, sample: GroupSample, functions: Array) -> Array:
    """Matrices mean_g h(g) ρ(g) E ρ(g)⁻¹ of a field that are independent, each of rms 1, (n, size, size).

    E is the first channel alone where the group permutes channels, so that the matrices are diagonal; else every
    symmetric matrix of two entries. The mean of ρ(u) A ρ(u)⁻¹ over u is 0, since h is centred.

    Args:
        field: the representation.
        sample: the elements g.
        functions: h at the elements, (J, M).
    """
    matrices = np.stack([field(element) for element in sample.elements]).astype(np.float64)
    seeds = np.zeros((1, field.size, field.size))
    seeds[0, 0, 0] = 1.0
    if not _permutes(matrices):
        pairs = list(itertools.combinations_with_replacement(range(field.size), 2))
        seeds = np.zeros((len(pairs), field.size, field.size))
        for seed, (row, column) in zip(seeds, pairs, strict=True):
            seed[row, column] = seed[column, row] = 1.0
    turned = np.einsum("gab,sbc,gcd->sgad", matrices, seeds, np.linalg.inv(matrices))
    found = np.einsum("jg,sgad->jsad", functions, turned).reshape(-1, field.size**2) / len(sample)
    # Of rms 1 on a channel: ‖A‖² = size.
    return _independent(found).reshape(-1, field.size, field.size) * math.sqrt(field.size)


def direction_basis(sample: GroupSample, functions: Array, points: Array) -> Array:
    """mean_g h(g) ψ(g⁻¹d) at points d (T, 2), ψ the dipoles p / |p|, those that are independent, of rms 1, (n, T).

    Of two dipoles, since one that a reflection turns round leaves nothing.
    """
    steered = steer(sample, points)
    length = np.linalg.norm(steered, axis=-1)[..., None]
    dipoles = np.divide(steered, length, out=np.zeros_like(steered), where=length > 1e-9)
    return _independent(np.einsum("jg,gtc->cjt", functions, dipoles).reshape(-1, len(points)) / len(sample))


def _independent(rows: Array) -> Array:
    """Rows that add something to those before, at rms 1."""
    kept: list[Array] = []
    largest = max((np.sqrt(np.square(row).mean()) for row in rows), default=0.0)
    for row in rows:
        size = np.sqrt(np.square(row).mean())
        if size <= 1e-3 * max(largest, 1e-9):
            continue
        row = row / size
        rest = row
        if kept:
            rest = row - np.stack(kept).T @ np.linalg.lstsq(np.stack(kept).T, row, rcond=None)[0]
        if np.sqrt(np.square(rest).mean()) > LEAST:
            kept.append(row)
    return np.array(kept).reshape(len(kept), rows.shape[1] if rows.ndim > 1 else 0)


def _permutes(matrices: Array) -> bool:
    return bool(np.allclose(np.sort(matrices, axis=-1)[..., :-1], 0, atol=1e-6) and matrices.min() > -1e-6)


class Modulation(ExactConstants):
    """Σ_n α_n A_n of fixed tensors A_n, times a unit."""

    basis: Tensor

    def __init__(self, basis: Array, unit: float) -> None:
        super().__init__()
        self.set_constant("basis", basis * unit)
        self.weights = nn.Parameter(torch.zeros(len(basis)))

    def forward(self) -> Tensor:
        """Of the shape of A_n."""
        return torch.tensordot(self.weights, self.basis, 1)


class _Tied(BaselineConvolution):
    """What both tied layers share: the strict kernel, parts that modulate it, their start."""

    def __init__(
        self, in_type: FieldType, out_type: FieldType, kernel_size: int, padding: Any, keywords: dict[str, Any]
    ) -> None:
        layer = strict_layer(type(self).__name__, in_type, out_type, kernel_size, padding, keywords)
        super().__init__(layer)
        self.strict = StrictKernel(layer)
        self.parts = nn.ModuleDict()

    def _add(self, name: str, basis: Array, unit: float) -> None:
        if len(basis):
            self.parts[name] = Modulation(basis, unit)

    @torch.no_grad()
    def _start(self, softness: float) -> None:
        """Draw the modulations and scale them to a softness; 0 leaves them 0."""
        if not softness or not self.parts:
            return
        for part in self.parts.values():
            nn.init.normal_(part.weights)
        for _ in range(3):
            now = float(self.softness())
            if now > 0:
                factor = math.sqrt(softness / (1 - softness) * (1 - now) / now)
                for part in self.parts.values():
                    part.weights.mul_(factor)

    @torch.no_grad()
    def make_strict(self) -> None:
        """Set all modulations to 0 in place."""
        for part in self.parts.values():
            part.weights.zero_()


class TiedR2Conv(_Tied):
    """K = K_s + A K_s + K_s B + m(d) K_s, A and B of each field's element, m of the tap's direction; P K = K_s.

    Args:
        in_type: field type of the input.
        out_type: field type of the output.
        kernel_size: k.
        padding: pixels on both sides.
        functions: how many functions of the domain.
        parts: of ``"o"``, A; ``"i"``, B; ``"d"``, m; ``"p"``, A with a number for each pair of fields.
        unit: rms of a modulation whose weight is 1.
        initial_softness: s at the start.
        **keywords: the other arguments of a strict layer.
    """

    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        padding: int | tuple[int, int] = 0,
        *,
        functions: int = 2,
        parts: str = "oid",
        unit: float = 0.1,
        initial_softness: float = 0.001,
        **keywords: Any,
    ) -> None:
        super().__init__(in_type, out_type, kernel_size, padding, keywords)
        frame = GroupFrame(in_type.gspace, samples=16)
        sample, coordinates = frame.sample, frame.translates(()).coordinates
        names = [name for name in ("rotation", "reflection") if name in self.relaxed_subgroups]
        points = np.concatenate([coordinates[name][:, 0] for name in names], axis=-1)
        harmonics = lowest(FREQUENCY * points, functions)
        fields_in, fields_out = (fields.representations for fields in self.kernel_types)
        if "o" in parts:
            self._add("output", _on_fields(fields_out, lambda field: element_basis(field, sample, harmonics)), unit)
        if "i" in parts:
            self._add("input", _on_fields(fields_in, lambda field: element_basis(field, sample, harmonics)), unit)
        if "d" in parts:
            directions = direction_basis(sample, harmonics, tap_grid(kernel_size, self.dilation))
            blocks = _on_fields(fields_out, lambda field: np.ones((len(directions), 1, 1)) * np.eye(field.size))
            pixels = np.tile(directions, (len(fields_out), 1)).reshape(len(blocks), 1, kernel_size, kernel_size)
            diagonal = np.einsum("naa->na", blocks)[:, :, None, None] if len(blocks) else blocks
            self._add("direction", diagonal * pixels if len(blocks) else blocks, unit)
        if "p" in parts:
            self._add("pairs", _on_pairs(fields_out, fields_in, sample, harmonics), unit)
        self._start(initial_softness)

    def filter_bank(self) -> Tensor:
        """K, (C_out, C_in/groups, k, k)."""
        strict: Tensor = self.strict()
        if self.hardened:
            return strict
        bank = strict
        if "output" in self.parts:
            bank = bank + torch.einsum("ab,bcyx->acyx", self.parts["output"](), strict)
        if "input" in self.parts:
            bank = bank + torch.einsum("abyx,bc->acyx", strict, self.parts["input"]())
        if "direction" in self.parts:
            bank = bank + strict * self.parts["direction"]().unsqueeze(1)
        if "pairs" in self.parts:
            bank = bank + strict * self.parts["pairs"]()[:, :, None, None]
        return bank

    def projected_bank(self, subgroups: tuple[str, ...]) -> Tensor:
        """K_s for any subgroups: what is not wholly soft is not looked at here."""
        return self.strict() if subgroups else self.filter_bank()

    def _softness(self, subgroups: tuple[str, ...]) -> Tensor:
        strict = self.strict()
        soft = self.orthogonal_basis.energy(self.filter_bank() - strict)
        return soft_share(soft, self.orthogonal_basis.energy(strict))


def _on_fields(fields: list[Representation], basis: Callable[[Representation], Array]) -> Array:
    """The matrices of each field, block-diagonal on all channels, field after field, (n, C, C)."""
    known: dict[str, Array] = {}
    size = sum(field.size for field in fields)
    found, first = [], 0
    for field in fields:
        blocks = known.setdefault(field.name, basis(field))
        whole = np.zeros((len(blocks), size, size))
        whole[:, first : first + field.size, first : first + field.size] = blocks
        found.append(whole)
        first += field.size
    return np.concatenate(found)


def _on_pairs(
    fields_out: list[Representation], fields_in: list[Representation], sample: GroupSample, harmonics: Array
) -> Array:
    """The diagonals of the output's elements between each pair of fields, (n, C_out, C_in); of permutations alone."""
    sides = np.zeros((len(fields_in), sum(field.size for field in fields_in)))
    first = 0
    for row, field in zip(sides, fields_in, strict=True):
        row[first : first + field.size] = 1.0
        first += field.size
    diagonals = np.einsum("naa->na", _on_fields(fields_out, lambda field: element_basis(field, sample, harmonics)))
    return np.einsum("na,mc->nmac", diagonals, sides).reshape(-1, diagonals.shape[1], sides.shape[1])


class TiedPlane(_Tied):
    """The same for soft translation, between fields of no group: K(x) = K_s ⊙ (1 + m_o(x) + m_i(x)), x by regions.

    Args:
        in_type: field type of the input.
        out_type: field type of the output.
        kernel_size: k.
        padding: pixels on both sides.
        functions: how many functions of the position.
        parts: of ``"o"``, ``"i"``.
        unit: rms of a modulation whose weight is 1.
        initial_softness: s at the start.
        **keywords: the other arguments of a strict layer.
    """

    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        padding: int | tuple[int, int] = 0,
        *,
        functions: int = 2,
        parts: str = "oid",
        unit: float = 0.1,
        initial_softness: float = 0.001,
        **keywords: Any,
    ) -> None:
        super().__init__(in_type, out_type, kernel_size, padding, keywords)
        harmonics = lowest(FREQUENCY * pixel_positions(REGIONS, REGIONS), functions)
        for name, fields in (("input", self.kernel_types[0]), ("output", out_type)):
            if name[0] in parts:
                basis = np.einsum("jp,cd->cjpd", harmonics, np.eye(fields.size))
                self._add(name, basis.reshape(-1, *basis.shape[2:]), unit)
        self._start(initial_softness)

    def banks(self, partition: RegionPartition) -> Tensor:
        """K in each region, (regions, C_out, C_in, k, k)."""
        factor = 1 + sum(
            part().unsqueeze(2 if name == "output" else 1) for name, part in self.parts.items()
        )  # (cells, C_out, C_in)
        return partition.means(factor, 0)[..., None, None] * self.strict()

    def filter_bank(self) -> Tensor:
        """None: K depends on the position."""
        raise RuntimeError("filter_bank: this layer has several")

    def projected_bank(self, subgroups: tuple[str, ...]) -> Tensor:
        """K_s."""
        bank: Tensor = self.strict()
        return bank

    @property
    def is_stationary(self) -> bool:
        """False."""
        return False

    @property
    def relaxed_subgroups(self) -> tuple[str, ...]:
        """Translation."""
        return ("translation",)

    def _softness(self, subgroups: tuple[str, ...]) -> Tensor:
        strict = self.strict()
        soft = (self.banks(RegionPartition.of_cells(REGIONS)) - strict).square().sum() / REGIONS**2
        return soft_share(soft, strict.square().sum())

    def _integrate(self, features: Tensor, is_biased: bool = True) -> Tensor:
        bias = self.expanded_bias() if is_biased else None
        partition = RegionPartition.of(self.geometry.output_size(*features.shape[2:]), REGIONS)
        return integrate_regions(features, self.banks(partition), bias, self.geometry, partition)


class FixedHarmonics(KernelNet):
    """φ_j = h_j(ω′ ⊙ a), the sines, then the cosines of the domain coordinates: constant within the window.

    Args:
        filter_dimension: number F of filter coordinates.
        domain_dimension: number D of domain coordinates.
        hidden_size: J, of those 2 D functions.
    """

    def __init__(self, filter_dimension: int, domain_dimension: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size

    def of_taps(self, filter_coordinates: Tensor) -> Tensor | float:
        """ψ_j, (…, J)."""
        return filter_coordinates.new_ones((*filter_coordinates.shape[:-1], self.hidden_size))

    def forward(self, filter_coordinates: Tensor, domain_coordinates: Tensor) -> Tensor:
        """Hidden values (J, …) at coordinates (…, F) and (…, D)."""
        angle = 2 * math.pi * domain_coordinates
        of_domain = torch.cat([angle.sin(), angle.cos()], dim=-1)[..., : self.hidden_size]
        return (self.of_taps(filter_coordinates) * of_domain).movedim(-1, 0)


class Harmonics(FixedHarmonics):
    """The same times ψ_j = cos(2π w_j · α + b_j), w_j and b_j trained: w_j starts at 0, b_j at −π/4."""

    def __init__(self, filter_dimension: int, domain_dimension: int, hidden_size: int) -> None:
        super().__init__(filter_dimension, domain_dimension, hidden_size)
        self.wave = nn.Parameter(torch.zeros(hidden_size, filter_dimension))
        self.phase = nn.Parameter(torch.full((hidden_size,), -math.pi / 4))

    def of_taps(self, filter_coordinates: Tensor) -> Tensor | float:
        """ψ_j, (…, J)."""
        return torch.cos(2 * math.pi * filter_coordinates @ self.wave.T + self.phase)
