"""The units in which output weights are trained; no other file decides them (docs/results/soft-part.md).

Optimisers change every weight by about the same amount in each step. With features of unequal size, that
would be a different step for each direction of the kernel, and layers with a right start would still learn
slowly. So the weights multiply features that are centred, orthogonal and of unit energy on the grid at the
start. The map from the plain features is linear, fixed and saved with the layer. It does not change the set
of functions that the layer can represent nor, for permutation fields, the number of its parameters.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

__all__ = ["count_directions", "weight_units"]

# Directions of an average that are smaller than this part of the largest are dropped.
_SMALLEST = 0.1
# Directions smaller than this part of the largest are scaled up no further. They are rough between the taps.
_LEAST = 0.3
# Features are of order one: below this they are zero, and an average has left nothing.
_ROUNDING = 1e-6
# Energies, or lengths, that differ by less than this part are equal up to rounding.
_SAME = 1e-8


def count_directions(steered: Tensor) -> int:
    """Return the number of directions of features (P, |A|, |B|, T) above a tenth of the largest."""
    size = torch.linalg.svdvals(steered.double().flatten(1))
    return int((size > max(_SMALLEST * float(size[0]), _ROUNDING)).sum())


def weight_units(steered: Tensor, entries: int, rank: int | None, unsteered: float = 0.0) -> Tensor:
    """Return the map from P = entries·(J + 1) plain features (P, |A|, |B|, T) to r = rank normalised ones, (r, P)."""
    out_size = steered.shape[1]
    # Directions of which steering leaves less than a tenth would otherwise start as large as strict ones.
    smallest = _SMALLEST * unsteered / out_size**0.5
    features = steered.double().flatten(1)
    identity = torch.eye(len(features), dtype=features.dtype, device=features.device)
    # The sum of a feature over input channels and taps is its output for a constant input.
    sums = steered.double().sum(dim=(2, 3)).mean(dim=1)
    # The constant feature is the last of each entry of κ.
    constant = len(features) - 1
    # Each value has the rounding error of single precision, and the error of the sum grows with their number.
    rounding = _ROUNDING * steered.shape[2] * steered.shape[3]
    if entries > 1 or abs(sums[constant]) < rounding:
        return _whitened(features, identity, out_size, rank, smallest).to(steered.dtype)
    centring = identity[:-1] - torch.outer(sums[:-1] / sums[constant], identity[constant])
    varying = _whitened(centring @ features, centring, out_size, None if rank is None else max(rank - 1, 0), smallest)
    # Inputs of non-zero mean add up over a constant kernel. So it is scaled to an output of 1, not to unit energy.
    return torch.cat([varying, identity[constant:] / sums[constant]]).to(steered.dtype)


def _whitened(features: Tensor, combination: Tensor, out_size: int, rank: int | None, smallest: float) -> Tensor:
    """Return the ``rank`` largest orthonormal combinations; energy is summed over input channels and taps."""
    energy, direction = torch.linalg.eigh(features @ features.mT / out_size)
    size = energy.clamp_min(0).sqrt().flip(0)
    direction = _canonical(energy.flip(0), direction.flip(1), len(energy) if rank is None else rank)
    # Features that do not vary at all (ω = 0) keep their own units.
    least = max(_LEAST * float(size[0]), smallest)
    scale = size.clamp_min(least) if size[0] > _ROUNDING else torch.ones_like(size)
    return (direction / scale).mT[:rank] @ combination


def _canonical(energy: Tensor, direction: Tensor, wanted: int) -> Tensor:
    """Return eigenvectors whose first ``wanted`` columns do not depend on the order of the solver's sums."""
    # Each of distinct energy gets a fixed sign. Those of equal energies could be any basis of a space. They become the
    # projections of the coordinate axes on it: the longest first, then the longest of what is left.
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
    """Return the number of the largest of each column, the first of those equal up to rounding: (1, columns)."""
    is_longest = lengths > (1 - _SAME) * lengths.amax(dim=0)
    return is_longest.int().argmax(dim=0, keepdim=True)
