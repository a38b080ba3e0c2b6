"""The start of a continuous kernel: its softness and the units of its weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from escnn.group import Representation
from escnn.gspaces import GSpace
from torch import Tensor, nn

from ..checks import SUBGROUPS
from ..group.elements import CUBE, is_of_space, sample_group
from ..on_escnn.sampled_basis import in_float32_and_main_memory
from .nets import KernelNet
from .steering import SteeredAverage

_SIZE = 24
_BATCH = 4
_COPIES = 4
_SAMPLES = 16
# A seed of its own: feature maps are the same for all layers of a kind, and the user's generator stays as it is.
_SEED = 7_919
_TINY = 1e-12
# The number of layers after which synthetic feature maps are as smooth as those inside a deep network; found by the
# variance through ten layers.
_LAYERS = 6
# Where steering leaves next to nothing of a kernel, scaling it up further would enlarge rounding errors.
_LEAST_GAIN = 0.1


def few_of(fields: Sequence[Representation]) -> tuple[tuple[Representation, ...], Tensor]:
    """Return a few fields of each kind, and the channel of these that represents each channel of all fields, (C,)."""
    kinds = list(dict.fromkeys(fields))
    starts = np.cumsum([0, *(_COPIES * kind.size for kind in kinds)])
    seen: Counter[Representation] = Counter()
    channels: list[int] = []
    for field in fields:
        start = starts[kinds.index(field)] + seen[field] % _COPIES * field.size
        seen[field] += 1
        channels.extend(range(start, start + field.size))
    # Equal ones side by side; rectification might leave nothing of a single one.
    return tuple(kind for kind in kinds for _ in range(_COPIES)), torch.tensor(channels)


@torch.no_grad()
def gain(
    bank: Tensor,
    in_fields: Sequence[Representation],
    out_fields: Sequence[Representation],
    gspace: GSpace,
    draw_bank: Callable[[], Tensor],
) -> float:
    """Return the root of the energy of a bank's rectified output over that of its input; 1 where the output is 0."""
    # The input is noise after a few random strict layers with rectification, whose banks lead from a few fields of each
    # kind to themselves. The other fields are copies.
    few, channels = few_of(in_fields)
    axes, kernel_size = gspace.dimensionality, bank.shape[-1]
    convolve = {2: nn.functional.conv2d, 3: nn.functional.conv3d}[axes]
    margins = [(kernel_size - 1) // 2, kernel_size // 2] * axes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        maps = torch.randn(_BATCH, sum(field.size for field in few), *[max(_SIZE, 2 * kernel_size)] * axes)
        for _ in range(_LAYERS):
            drawn = draw_bank()
            padded = nn.functional.pad(maps.to(drawn), margins, mode="circular")
            maps = rectified(convolve(padded, drawn), few, gspace)
            maps = maps / maps.square().mean().sqrt().clamp_min(torch.finfo(drawn.dtype).tiny)
    # Filters for equal channels are added up. Neighbouring outputs are alike: one for each half kernel is enough.
    folded = bank.new_zeros(len(bank), maps.shape[1], *bank.shape[2:]).index_add_(1, channels, bank)
    output = rectified(convolve(maps, folded, stride=max(1, kernel_size // 2)), out_fields, gspace)
    of_input = float(maps.square().transpose(0, 1).flatten(1).mean(dim=1)[channels].mean())
    ratio = (float(output.square().mean()) / max(of_input, _TINY)) ** 0.5
    return max(ratio, _LEAST_GAIN) if ratio > _TINY else 1.0


def rectified(maps: Tensor, fields: Sequence[Representation], gspace: GSpace) -> Tensor:
    """Return feature maps after ReLU, on the group for sums of irreps (escnn's ``FourierPointwise``)."""
    maps_of_fields = maps.split([field.size for field in fields], dim=1)
    outputs = []
    matrices: dict[Representation, tuple[Tensor, Tensor] | None] = {}
    for part, field in zip(maps_of_fields, fields, strict=True):
        # A single irrep stays as it is, since the ReLU of its norm changes nothing.
        if "pointwise" in field.supported_nonlinearities:
            outputs.append(part.relu())
            continue
        if field not in matrices:
            matrices[field] = _group_samples(field, gspace)
        if (samples := matrices[field]) is not None:
            forward, backward = (matrix.to(part) for matrix in samples)
            part = torch.einsum("cg,bg...->bc...", backward, torch.einsum("gc,bc...->bg...", forward, part).relu())
        outputs.append(part)
    return torch.cat(outputs, dim=1)


def _group_samples(field: Representation, gspace: GSpace) -> tuple[Tensor, Tensor] | None:
    """Return the maps from a sum of irreps to its values on the group and back; None where this is not invertible."""
    if len(field.irreps) == 1:
        return None
    seed = []
    for number, irrep in enumerate(field.irreps):
        size = gspace.fibergroup.irrep(*irrep).size
        # The n-th copy of an irrep holds the n-th column of its matrix coefficients.
        copy = field.irreps[:number].count(irrep)
        seed.append(np.sqrt(size) * np.eye(size)[copy % size])
    vector = field.change_of_basis @ np.concatenate(seed)
    for samples in (CUBE, 2 * CUBE) if is_of_space(gspace.fibergroup) else (_SAMPLES,):
        forward = np.stack([field(element) @ vector for element in sample_group(gspace, samples).elements])
        if np.linalg.matrix_rank(forward, tol=1e-6) == field.size:
            return torch.from_numpy(forward), torch.from_numpy(np.linalg.pinv(forward))
    return None


# Makes the features (J + 1, M, P, R, T) of a net, as means over some subgroups.
Features = Callable[[KernelNet, Sequence[str]], Tensor]

# With domain weights above this, the kernel would change faster over the group than ω′ says.
_MOST_SCALE = 3.0


def start_weights(
    average: SteeredAverage,
    net: KernelNet,
    new_net: Callable[[], KernelNet],
    features: Features,
    softness: float | None,
) -> None:
    """Fix the softness at the start and the units of the weights of a continuous kernel, and draw the weights."""
    with torch.random.fork_rng(devices=[]), in_float32_and_main_memory():
        torch.manual_seed(0)
        # Directions are counted on the same net for every seed and default dtype of torch.
        reference = new_net().double()
    ranks = average.count_directions(features(reference, ()))
    if softness is not None and net.domain_weight is not None:
        # Small domain weights start a layer nearly strict while ω′ keeps its meaning.
        scale = 0.1
        net.domain_weight.mul_(scale)
        for _ in range(6):
            expected = _expected_softness(average, features(net, ()), features(net, SUBGROUPS), ranks)
            if expected < _TINY:
                break
            # Softness grows as the square of small weights.
            step = min(max(math.sqrt(softness / expected), 0.1), 10.0, _MOST_SCALE / scale)
            net.domain_weight.mul_(step)
            scale *= step
    average.initialize(features(net, ()), ranks)


def _expected_softness(average: SteeredAverage, features: Tensor, mean: Tensor, ranks: list[int | None]) -> float:
    """Return E‖K − PK‖² / E‖K‖² over the draw of the output weights, given the features of K and of PK."""
    mean = mean.expand_as(features)
    units = [pair.units_of(features, rank) for pair, rank in zip(average.block_pairs, ranks, strict=True)]
    soft = total = 0.0
    for pair, unit, variance in zip(average.block_pairs, units, average.weight_variances(units), strict=True):
        energy = math.prod(pair.counts) * variance
        steered, strict = pair.steered(features), pair.steered(mean)
        total += energy * float((unit @ steered.flatten(1)).square().sum())
        soft += energy * float((unit @ (steered - strict).flatten(1)).square().sum())
    return soft / total if total else 0.0
