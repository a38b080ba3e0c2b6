"""The start of a continuous kernel: how soft, in which units, and at which scale (design §4)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from escnn.group import Representation
from torch import Tensor, nn

from .filter_bank import ContinuousFilterBank
from .kernel import KernelNet
from .units import weight_units

__all__ = ["start_filter_bank", "start_soft_part"]

# Where a soft translation is sampled at the start: enough for energies, few enough for a quick construction.
_POSITIONS = torch.cartesian_prod(torch.tensor([-0.6, 0.0, 0.6]), torch.tensor([-0.6, 0.0, 0.6]))
_SYNTHETIC_SIZE = 24
_SYNTHETIC_LAYERS = 4
_MOST_FIELDS = 4
_MOST_CHANNELS = 64
_TINY = 1e-12


@torch.no_grad()
def start_filter_bank(
    bank: ContinuousFilterBank, frequency: Mapping[str, Tensor], initial_softness: float
) -> None:
    """Fix how soft a filter bank starts and the units of its weights, draw these and set their scale.

    Args:
        bank: the filter bank.
        frequency: ω′ at the start, none of them 0.
        initial_softness: expected part of the energy of K that depends on the domain.
    """
    ranks = _ranks(bank, frequency)
    if frequency:
        _soften(bank, frequency, ranks, initial_softness)
    bank.steered_average.initialize(_start_features(bank, bank.kernel, frequency), ranks)
    _scale(bank, _synthetic_features(bank), frequency)


@torch.no_grad()
def start_soft_part(
    bank: ContinuousFilterBank,
    frequency: Mapping[str, Tensor],
    initial_softness: float,
    strict_bank: Tensor,
) -> None:
    """Start a centred filter bank that is added to a strict one, as small as the wanted softness makes it.

    The units take the size, not the weights: so an optimiser's steps on the soft part are small too.

    Args:
        bank: the centred filter bank.
        frequency: ω′ at the start, none of them 0.
        initial_softness: wanted energy of ``bank`` over that of the whole kernel.
        strict_bank: the strict part, (C_out, C_in, k, k).
    """
    ranks = _ranks(bank, frequency)
    features = _start_features(bank, bank.kernel, frequency)
    bank.steered_average.initialize(features, ranks)
    positions = features.shape[-1] // len(bank.grid.support)
    energy = float(bank.steered_average(features).square().sum()) / positions
    wanted = initial_softness / (1 - initial_softness) * float(strict_bank.square().sum())
    for pair in bank.steered_average.pairs:
        pair.units.mul_(math.sqrt(wanted / energy) if energy > _TINY else 1.0)


def _ranks(bank: ContinuousFilterBank, frequency: Mapping[str, Tensor]) -> list[int | None]:
    """Number of directions of each pair, counted on a kernel net of its own: it must not depend on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        reference = bank.build_kernel_net().to(bank.grid.taps)
    return bank.steered_average.count_directions(_start_features(bank, reference, frequency))


def _start_features(
    bank: ContinuousFilterBank, kernel: KernelNet, frequency: Mapping[str, Tensor]
) -> Tensor:
    """Features on the support at a few positions: (J + 1, M, R, T·P)."""
    positions = _POSITIONS.to(bank.grid.taps) if "translation" in frequency else None
    return bank.features(kernel, frequency, bank.grid.domain_points(frequency, positions)).flatten(3)


def _soften(
    bank: ContinuousFilterBank, frequency: Mapping[str, Tensor], ranks: list[int | None], wanted: float
) -> None:
    """Scale the domain weights of the kernel net until the expected softness is the wanted one.

    Small domain weights start a layer nearly strict while ω′ keeps its meaning (design §4, "How soft").
    """
    weight = bank.kernel.domain_weight
    scale = 0.1
    weight.mul_(scale)
    for _ in range(4):
        softness = _expected_softness(bank, frequency, ranks)
        if softness < _TINY:
            return
        # Softness grows as the square of small weights.
        step = min(max(math.sqrt(wanted / softness), 0.1), 10.0)
        weight.mul_(step)


def _expected_softness(
    bank: ContinuousFilterBank, frequency: Mapping[str, Tensor], ranks: list[int | None]
) -> float:
    """E‖K − PK‖² / E‖K‖² over the draw of the output weights."""
    features = _start_features(bank, bank.kernel, frequency)
    mean = bank.strict_features(bank.kernel, frequency)
    mean = mean.expand(*mean.shape[:-1], features.shape[-1] // mean.shape[-2]).flatten(3)
    soft = total = 0.0
    for pair, count, rank in zip(
        bank.steered_average.pairs, bank.steered_average.pair_counts(), ranks, strict=True
    ):
        steered, strict = pair.steering(features), pair.steering(mean)
        units = weight_units(steered, pair.steering.entries, rank)
        total += count * float((units @ steered.flatten(1)).square().sum())
        soft += count * float((units @ (steered - strict).flatten(1)).square().sum())
    return soft / total if total else 0.0


def _scale(bank: ContinuousFilterBank, features: Tensor, frequency: Mapping[str, Tensor]) -> None:
    """Scale the output weights so that the answer to ``features`` has twice their energy (He's rule for ReLU).

    No closed form serves smooth kernels that meet smooth features of non-zero mean (design §4).
    """
    answer = nn.functional.conv2d(features, bank(frequency)[:_MOST_CHANNELS])
    gain = float(answer.square().mean() / features.square().mean() / 2) ** 0.5
    if gain > 1e-6:
        for pair in bank.steered_average.pairs:
            pair.weights.div_(gain)


def _synthetic_features(bank: ContinuousFilterBank) -> Tensor:
    """Rectified noise, as smooth as a few strict layers of this kind make it: (4, C_in, size, size)."""
    fields = bank.in_representations
    kinds = list(dict.fromkeys(fields))
    few = [field for field in kinds for _ in range(min(_MOST_FIELDS, fields.count(field)))]
    settings = replace(bank.settings, domain_subgroups=())
    size = max(_SYNTHETIC_SIZE, 2 * settings.kernel_size)
    features = torch.randn(4, sum(field.size for field in few), size, size).to(bank.grid.taps)
    for _ in range(_SYNTHETIC_LAYERS):
        strict = ContinuousFilterBank(few, few, bank.gspace, settings).to(features)
        average = strict.steered_average
        hidden = _start_features(strict, strict.kernel, {})
        average.initialize(hidden, average.count_directions(hidden))
        before, after = (settings.kernel_size - 1) // 2, settings.kernel_size // 2
        padded = nn.functional.pad(features, (before, after, before, after), mode="circular")
        features = _rectified(nn.functional.conv2d(padded, strict({})), few)
        features = features / features.square().mean().sqrt().clamp_min(_TINY)
    return torch.cat([_field(features, few, field, number) for field, number in _numbered(fields)], dim=1)


def _rectified(features: Tensor, fields: list[Representation]) -> Tensor:
    """ReLU on the fields that allow it."""
    parts = features.split([field.size for field in fields], dim=1)
    return torch.cat(
        [
            part.relu() if "pointwise" in field.supported_nonlinearities else part
            for part, field in zip(parts, fields, strict=True)
        ],
        dim=1,
    )


def _numbered(fields: list[Representation]) -> Iterator[tuple[Representation, int]]:
    """Each field with its number among its equals, counted modulo the fields that are drawn."""
    seen: dict[Representation, int] = {}
    for field in fields:
        number = seen.get(field, 0)
        seen[field] = number + 1
        yield field, number % _MOST_FIELDS


def _field(features: Tensor, fields: list[Representation], field: Representation, number: int) -> Tensor:
    """The channels of the ``number``-th of the fields equal to ``field``."""
    index = [i for i, other in enumerate(fields) if other == field][number]
    start = sum(other.size for other in fields[:index])
    return features[:, start : start + field.size]
