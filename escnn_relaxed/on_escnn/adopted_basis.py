"""Weights of an ``R2Conv`` or ``R3Conv`` whose basis is another one of the same kernels.

escnn saves its sampled basis beside the weights. It was drawn by the process that built the layer first.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["adopt_basis"]

# In float32 two samples of the same kernel differ by less than this, samples of two kernels by more.
_SAME = 1e-4


def adopt_basis(state: MutableMapping[str, Tensor], prefix: str, basis: Any) -> list[str]:
    """Express weights that escnn saved with another basis in a layer's; return in words what does not fit."""
    found: list[str] = []
    weights = state.get(f"{prefix}weights")
    if weights is None or len(weights) != basis.dimension:
        return found  # torch says so
    converted = weights
    for names, place, own in basis.by_pair(exact=True):
        saved = state.get(f"{prefix}_basisexpansion.block_expansion_{_escaped(names)}.sampled_basis")
        if saved is None or saved.is_meta:
            continue
        theirs = saved.to(own).flatten(1)
        if saved.shape == own.shape and (theirs - own.flatten(1)).abs().max() < _SAME:
            continue
        change = _change(theirs, own.flatten(1)) if saved.shape == own.shape else None
        if change is None:
            found.append(
                f"the steerable basis of {prefix.rstrip('.') or 'this layer'!r} from {names[0]} to {names[1]} "
                f"holds other kernels than the one here"
            )
            continue
        part = weights[place].view(-1, len(own))
        converted = converted.clone() if converted is weights else converted
        converted[place] = (part.to(change) @ change).flatten().to(weights)
    state[f"{prefix}weights"] = converted
    return found


def _escaped(names: tuple[str, str]) -> tuple[str, ...]:
    """Return the names as escnn writes them in the names of its modules."""
    return tuple(name.replace(".", "^") for name in names)


def _change(theirs: Tensor, own: Tensor) -> Tensor | None:
    """Return T with ``theirs = T own``, or None where the rows do not span the same kernels."""
    change: Tensor = torch.linalg.lstsq(own.T, theirs.T).solution.T
    spans = (change @ own - theirs).abs().max() < _SAME and torch.linalg.matrix_rank(change) == len(own)
    return change if bool(spans) else None
