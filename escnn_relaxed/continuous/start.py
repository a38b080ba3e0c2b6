"""The start of a continuous kernel: its softness and the units of its weights (docs/results/soft-part.md)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ..group.elements import SUBGROUPS
from .filter_bank import ContinuousFilterBank
from .nets import KernelNet

__all__ = ["start_at_softness", "start_centred", "start_features"]

_TINY = 1e-12
# With domain weights above this, the kernel would change faster over the group than ω′ says.
_MOST_SCALE = 3.0


@contextlib.contextmanager
def _in_double_precision(bank: ContinuousFilterBank) -> Iterator[None]:
    """Put a continuous kernel into float64 for a ``with`` block, so that no rounding is scaled up to a kernel.

    Rounding is all that an average leaves of some features.
    """
    dtype = bank.grid.taps.dtype
    bank.double()
    try:
        yield
    finally:
        bank.to(dtype)


@contextlib.contextmanager
def _drawn_in_single_precision() -> Iterator[None]:
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)


@torch.no_grad()
def start_at_softness(bank: ContinuousFilterBank, frequency: Mapping[str, Tensor], initial_softness: float) -> None:
    """Fix the softness at which a continuous kernel starts and the units of its weights, and draw the weights.

    Args:
        bank: the continuous kernel.
        frequency: ω′ at the start, none of them 0.
        initial_softness: expected part of the energy of K that depends on the domain.
    """
    with _in_double_precision(bank):
        ranks = _ranks(bank, frequency)
        if frequency:
            _soften(bank, frequency, ranks, initial_softness)
        bank.steered_average.initialize(start_features(bank, bank.kernel, frequency), ranks)


@torch.no_grad()
def start_centred(
    bank: ContinuousFilterBank, frequency: Mapping[str, Tensor], softness: float, strict_energy: float
) -> None:
    """Fix the units of the weights of a centred kernel by the wanted softness, and draw the weights.

    Args:
        bank: the centred kernel.
        frequency: ω′ at the start, none of them 0.
        softness: wanted energy of ``bank`` over that of the whole kernel.
        strict_energy: ‖·‖² of the strict part, where ρ is orthogonal.
    """
    with _in_double_precision(bank):
        ranks = _ranks(bank, frequency)
        features = start_features(bank, bank.kernel, frequency)
        bank.steered_average.initialize(features, ranks)
        energy = float(bank.steered_average.energy(features)) / features.shape[2]
    wanted = softness / (1 - softness) * strict_energy
    if energy > _TINY:
        bank.scale(math.sqrt(wanted / energy))


def _ranks(bank: ContinuousFilterBank, frequency: Mapping[str, Tensor]) -> list[int | None]:
    """Return the number of directions of each pair, counted on a net of its own, so that layers agree everywhere.

    It depends neither on the seed nor on torch's default dtype, with which other numbers are drawn.
    """
    with torch.random.fork_rng(devices=[]), _drawn_in_single_precision():
        torch.manual_seed(0)
        # Torch draws other numbers in another dtype.
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            reference = bank.build_kernel_net().to(bank.grid.taps)
        finally:
            torch.set_default_dtype(default)
    return bank.steered_average.count_directions(start_features(bank, reference, frequency))


def start_features(bank: ContinuousFilterBank, kernel: KernelNet, frequency: Mapping[str, Tensor]) -> Tensor:
    """Return the features at every position that the kernel sees: (J + 1, M, P, R, T)."""
    return bank.features(kernel, frequency, bank.positions(frequency))


def _soften(
    bank: ContinuousFilterBank, frequency: Mapping[str, Tensor], ranks: list[int | None], wanted: float
) -> None:
    """Scale the domain weights of the kernel net until the expected softness is the wanted one.

    Small domain weights start a layer nearly strict while ω′ keeps its meaning (docs/results/soft-part.md).
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
    """Return E‖K − PK‖² / E‖K‖² over the draw of the output weights."""
    features = start_features(bank, bank.kernel, frequency)
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
