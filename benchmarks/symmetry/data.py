"""The data of one seed, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.shared.training import Split
from benchmarks.shared.turns import Element, turned

# Images have an odd side that halves to odd sides or to 8, unless opposite sides are one: only then do strides map the
# pixel grid to itself under turns, and a strict network is invariant.
SIDE = 33
# Number of images for validation.
VALIDATION = 1000


@dataclass(frozen=True)
class Data:
    """The data of one seed."""

    train: Split
    # By which training ends and rates are chosen.
    validation: Split
    # What is tried once, at the end, and the part of it that is tried turned, too.
    test: Split
    copied: Split
    act: Callable[[Tensor, Element], Tensor] = turned


def split_off(known: Split, held_out: int, test: Split, copied: Split) -> Data:
    """Return data whose first images that are known are held out for validation."""
    return Data((known[0][held_out:], known[1][held_out:]), first(known, held_out), test, copied)


def first(split: Split, count: int) -> Split:
    """Return the first inputs and targets."""
    return split[0][:count], split[1][:count]


def draw(count: int, seed: int) -> tuple[Tensor, torch.Generator]:
    """Return a random order of so many images, and the generator that goes on."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randperm(count, generator=generator), generator
