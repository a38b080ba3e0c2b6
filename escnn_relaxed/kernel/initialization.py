"""The start of a continuous kernel: how soft, in which units, and at which scale (docs/results/defaults.md)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from escnn.group import Representation
from escnn.gspaces import GSpace2D
from torch import Tensor

from ..group.elements import SUBGROUPS
from .calibration_maps import SyntheticFeatures, few_of, rectified, spread, synthetic_features
from .filter_bank import ContinuousFilterBank
from .nets import KernelNet

__all__ = [
    "DEFAULT_SOFTNESS",
    "continuous_features",
    "gain",
    "start_filter_bank",
    "start_soft_part",
]

_TINY = 1e-12
# Of a soft part beside a strict one, and of one kernel for both. Of the first ten times as much costs accuracy where it
# is not needed, and brings none where it is (docs/results/defaults.md).
DEFAULT_SOFTNESS = {"steerable": 0.001, "continuous": 0.01}
# A kernel of which steering leaves next to nothing is not scaled up beyond this: it would be made of rounding errors.
_LEAST_GAIN = 0.1
# Domain weights larger than this would make the kernel change faster over the group than ω′ says.
_MOST_SCALE = 3.0
# Layers after which synthetic features are as smooth as those inside a deep network; found by the variance through ten
# layers.
_LAYERS = 6


@contextlib.contextmanager
def _in_double_precision(bank: ContinuousFilterBank) -> Iterator[None]:
    """Features that the average leaves nothing of are 0 but for rounding, which must not be scaled up to a kernel."""
    dtype = bank.grid.taps.dtype
    bank.double()
    try:
        yield
    finally:
        bank.to(dtype)


@torch.no_grad()
def start_filter_bank(bank: ContinuousFilterBank, frequency: Mapping[str, Tensor], initial_softness: float) -> None:
    """Fix how soft a filter bank starts and the units of its weights, draw these and set their scale.

    Args:
        bank: the filter bank.
        frequency: ω′ at the start, none of them 0.
        initial_softness: expected part of the energy of K that depends on the domain.
    """
    with _in_double_precision(bank):
        ranks = _ranks(bank, frequency)
        if frequency:
            _soften(bank, frequency, ranks, initial_softness)
        bank.steered_average.initialize(_start_features(bank, bank.kernel, frequency), ranks)
    scale = gain(bank(frequency), continuous_features(bank), bank.out_representations, bank.gspace)
    for pair in bank.steered_average.block_pairs:
        pair.weights.div_(scale)


@torch.no_grad()
def start_soft_part(
    bank: ContinuousFilterBank,
    frequency: Mapping[str, Tensor],
    initial_softness: float,
    strict_energy: float,
) -> None:
    """Start a centred filter bank that is added to a strict one, as small as the wanted softness makes it.

    The units take the size, not the weights: so an optimiser's steps on the soft part are small too. Where none is
    wanted, they are those of the default, and the weights are 0.

    Args:
        bank: the centred filter bank.
        frequency: ω′ at the start, none of them 0.
        initial_softness: wanted energy of ``bank`` over that of the whole kernel.
        strict_energy: ‖·‖² of the strict part, where ρ is orthogonal.
    """
    with _in_double_precision(bank):
        ranks = _ranks(bank, frequency)
        features = _start_features(bank, bank.kernel, frequency)
        bank.steered_average.initialize(features, ranks)
        energy = float(bank.steered_average.energy(features)) / features.shape[2]
    softness = initial_softness or DEFAULT_SOFTNESS["steerable"]
    wanted = softness / (1 - softness) * strict_energy
    for pair in bank.steered_average.block_pairs:
        pair.units.mul_(math.sqrt(wanted / energy) if energy > _TINY else 1.0)
        if not initial_softness:
            pair.weights.zero_()


def _ranks(bank: ContinuousFilterBank, frequency: Mapping[str, Tensor]) -> list[int | None]:
    """Number of directions of each pair, counted on a kernel net of its own: it must not depend on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        reference = bank.build_kernel_net().to(bank.grid.taps)
    return bank.steered_average.count_directions(_start_features(bank, reference, frequency))


def _start_features(bank: ContinuousFilterBank, kernel: KernelNet, frequency: Mapping[str, Tensor]) -> Tensor:
    """Features at every position that the kernel sees: (J + 1, M, P, R, T)."""
    positions = bank.grid.image_positions if "translation" in frequency else None
    return bank.features(kernel, frequency, positions)


def _soften(
    bank: ContinuousFilterBank, frequency: Mapping[str, Tensor], ranks: list[int | None], wanted: float
) -> None:
    """Scale the domain weights of the kernel net until the expected softness is the wanted one.

    Small domain weights start a layer nearly strict while ω′ keeps its meaning (docs/results/defaults.md).
    """
    weight = bank.kernel.domain_weight
    if weight is None:
        return
    scale = 0.1
    weight.mul_(scale)
    for _ in range(6):
        softness = _expected_softness(bank, frequency, ranks)
        if softness < _TINY:
            return
        # Softness grows as the square of small weights.
        step = min(max(math.sqrt(wanted / softness), 0.1), 10.0, _MOST_SCALE / scale)
        weight.mul_(step)
        scale *= step


def _expected_softness(bank: ContinuousFilterBank, frequency: Mapping[str, Tensor], ranks: list[int | None]) -> float:
    """E‖K − PK‖² / E‖K‖² over the draw of the output weights."""
    features = _start_features(bank, bank.kernel, frequency)
    mean = bank.features(bank.kernel, frequency, averaged=SUBGROUPS)
    mean = mean.expand_as(features)
    average = bank.steered_average
    units = [average.units_of(pair, features, rank) for pair, rank in zip(average.block_pairs, ranks, strict=True)]
    described = zip(average.block_pairs, average.pair_counts(), units, average.weight_variances(units), strict=True)
    soft = total = 0.0
    for pair, count, unit, variance in described:
        steered, strict = pair.steering(features), pair.steering(mean)
        total += count * variance * float((unit @ steered.flatten(1)).square().sum())
        soft += count * variance * float((unit @ (steered - strict).flatten(1)).square().sum())
    return soft / total if total else 0.0


def gain(bank: Tensor, features: SyntheticFeatures, out_fields: Sequence[Representation], gspace: GSpace2D) -> float:
    """Root of the energy of a bank's rectified output over that of its input, 1 where there is no output.

    Args:
        bank: (C_out, C_in, k, k).
        features: its input.
        out_fields: its output.
        gspace: their symmetry.
    """
    with torch.no_grad():
        # Neighbouring outputs are alike: one for each half kernel will do.
        output = features.convolved(bank, stride=max(1, bank.shape[-1] // 2))
        energy = float(rectified(output, out_fields, gspace).square().mean())
    ratio = (energy / max(features.energy(), _TINY)) ** 0.5
    return max(ratio, _LEAST_GAIN) if ratio > _TINY else 1.0


def continuous_features(bank: ContinuousFilterBank) -> SyntheticFeatures:
    """Features as they lie behind strict continuous layers made as ``bank``."""
    few = few_of(bank.in_representations)
    strict = bank.strict_between(few).to(bank.grid.taps)
    average = strict.steered_average

    def draw_bank() -> Tensor:
        features = _start_features(strict, strict.kernel, {})
        average.initialize(features, average.count_directions(features))
        filter_bank: Tensor = strict({})
        return filter_bank

    features = synthetic_features(few, bank.kernel_size, bank.gspace, draw_bank, _LAYERS)
    return SyntheticFeatures(features, spread(bank.in_representations))
