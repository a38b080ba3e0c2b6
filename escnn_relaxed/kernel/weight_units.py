"""In which units output weights are trained: the one place that decides it (docs/results/defaults.md).

Optimisers change every weight by about the same amount in each step. Features of unequal size would make
that a different step for each direction of the kernel, and layers that are started right would still learn
slowly. So the weights multiply features that are centred, orthogonal and of unit energy on the grid at the
start. The map from the plain features is linear, fixed and saved with the layer; it changes neither the
functions that the layer can take nor, for permutation fields, the number of its parameters.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

__all__ = ["count_directions", "weight_units"]

# Directions of an average that are smaller than this part of the largest are dropped.
_SMALLEST = 0.1
# Directions smaller than this part of the largest are scaled up no further: they are the rough ones.
_LEAST = 0.3
# Features are of order one: below this they are zero, and an average has left nothing.
_ROUNDING = 1e-6
# Energies, or lengths, that differ by less than this part are the same but for rounding.
_SAME = 1e-8


def count_directions(steered: Tensor) -> int:
    """Number of directions that steering does not (nearly) average away.

    Args:
        steered: features (P, |A|, |B|, T).
    """
    size = torch.linalg.svdvals(steered.double().flatten(1))
    return int((size > max(_SMALLEST * float(size[0]), _ROUNDING)).sum())


def weight_units(
    steered: Tensor, entries: int, rank: int | None, has_constant: bool = True, unsteered: float = 0.0
) -> Tensor:
    """The map from P plain features to r normalised ones, (r, P).

    Args:
        steered: features (P, |A|, |B|, T) on the support; of each entry of κ the constant feature is last.
        entries: number of entries of κ, P = entries·(J + 1).
        unsteered: root of the energy of a feature over the taps before steering: directions of which steering
            leaves less than a tenth are scaled up no further, else what is soft alone would start as large as
            what is strict.
        has_constant: without, there is no constant feature, and P = entries·J.
        rank: r, the number of directions to keep, for irreps about the dimension of the space of equivariant
            kernels; None keeps all, r = P.
    """
    out_size = steered.shape[1]
    smallest = _SMALLEST * unsteered / out_size**0.5
    features = steered.double().flatten(1)
    identity = torch.eye(len(features), dtype=features.dtype, device=features.device)
    # Sum of each feature over input channels and taps: its output of a constant input.
    sums = steered.double().sum(dim=(2, 3)).mean(dim=1)
    constant = len(features) - 1
    # Of single precision is left as much of each value as of the others, and the sum grows with them.
    rounding = _ROUNDING * steered.shape[2] * steered.shape[3]
    if entries > 1 or not has_constant or abs(sums[constant]) < rounding:
        return _whitened(features, identity, out_size, rank, smallest).to(steered.dtype)
    centring = identity[:-1] - torch.outer(sums[:-1] / sums[constant], identity[constant])
    varying = _whitened(centring @ features, centring, out_size, None if rank is None else max(rank - 1, 0), smallest)
    # Inputs of non-zero mean add up coherently over the constant kernel: an output of 1, not unit energy.
    return torch.cat([varying, identity[constant:] / sums[constant]]).to(steered.dtype)


def _whitened(features: Tensor, combination: Tensor, out_size: int, rank: int | None, smallest: float) -> Tensor:
    """The ``rank`` largest orthonormal combinations; energy is summed over input channels and taps."""
    energy, direction = torch.linalg.eigh(features @ features.mT / out_size)
    size = energy.clamp_min(0).sqrt().flip(0)
    direction = _canonical(energy.flip(0), direction.flip(1), len(energy) if rank is None else rank)
    # Features that do not vary at all (ω = 0) keep their own units.
    least = max(_LEAST * float(size[0]), smallest)
    scale = size.clamp_min(least) if size[0] > _ROUNDING else torch.ones_like(size)
    return (direction / scale).mT[:rank] @ combination


def _canonical(energy: Tensor, direction: Tensor, wanted: int) -> Tensor:
    """Eigenvectors, the first columns that are wanted, that do not depend on the order of the solver's sums.

    Those of equal energies are any basis of a space, of which the same one is taken: the projections of the coordinate
    axes that are longest, one after the other. A single one gets a sign.
    """
    result = direction * direction.gather(0, _longest(direction.square())).sign()
    starts = [0, *(torch.nonzero(-energy.diff() > _SAME * energy[0].abs()).flatten() + 1).tolist(), len(energy)]
    for start, end in itertools.pairwise(starts):
        if end == start + 1 or start >= wanted:
            continue
        space = direction[:, start:end]
        projection = space @ space.mT
        for column in range(start, end):
            axis = int(_longest(projection.diagonal().unsqueeze(1)))
            result[:, column] = projection[:, axis] / projection[axis, axis].sqrt()
            projection = projection - torch.outer(result[:, column], result[:, column])
    return result


def _longest(lengths: Tensor) -> Tensor:
    """Number of the largest of each column, the first of those that are equal but for rounding, (1, columns)."""
    is_longest = lengths > (1 - _SAME) * lengths.amax(dim=0)
    return is_longest.int().argmax(dim=0, keepdim=True)
