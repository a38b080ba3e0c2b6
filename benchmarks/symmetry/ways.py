"""The ways that are compared: layers, head, augmentation, and what each leaves to choose."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from escnn import nn as enn
from escnn.nn import FieldType, R2Conv
from torch import nn

from benchmarks.symmetry.bodies import GSPACES, Module
from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.baselines import PartialR2Conv, ResidualR2Conv
from escnn_relaxed.kernel import TiedKernel

# For each group another one of as many elements, and the subgroup that an oracle may choose.
OTHER_GROUP = {"C4": "D2", "C8": "D4", "D2": "C4", "D4": "C8"}
SUBGROUP = {"C4": "C2", "C8": "C4", "D2": "D1", "D4": "C4"}
# Makes a layer all of whose fields may change by direction where the image changes.
WITH_DIRECTIONS = functools.partial(RelaxedR2Conv, kernel=functools.partial(TiedKernel, all_directions=True))


class PlainConvolution(Module):
    """``Conv2d`` between fields of the trivial group, whose channels have no symmetry."""

    def __init__(self, in_type: FieldType, out_type: FieldType, kernel_size: int, **arguments: Any) -> None:
        super().__init__()
        self.in_type, self.out_type = in_type, out_type
        self.convolution = nn.Conv2d(in_type.size, out_type.size, kernel_size, **arguments)

    def forward(self, input: enn.GeometricTensor) -> enn.GeometricTensor:
        """(batch, C_in, H, W) → (batch, C_out, H_out, W_out)."""
        return self.out_type(self.convolution(input.tensor))


@dataclass(frozen=True)
class Setting:
    """What a way leaves to choose beside the rate: arguments of its layers, and σ of the prior on free weights."""

    options: dict[str, Any] = field(default_factory=dict)
    deviation: float | None = None


# A way is equal to itself alone, so that it can be the key of a cache.
@dataclass(frozen=True, eq=False)
class Way:
    """A way to build and train a network."""

    layer: Callable[..., nn.Module] = R2Conv
    # "pooled", "free" or "soft".
    head: str = "pooled"
    # All but the last layer or stage are strict.
    only_last: bool = False
    # The share of the images of a batch that an element moves: of 1 any that is drawn, of less any but the identity.
    turned: float = 0.0
    # The evidence says how soft layers are.
    is_learned: bool = False
    # Its prior shrinks the weights beside the steps of the optimiser, and is no part of the loss.
    is_decoupled: bool = False
    # The last layer or stage is of the trivial group, after a ``RestrictionModule``.
    restricts: bool = False
    # The group that takes the place of the task's.
    groups: dict[str, str] = field(default_factory=dict)
    # Layers have as many channels as those of ``R2Conv``, and not as many parameters.
    is_as_wide: bool = False
    # After each layer a bias for each channel.
    has_free_biases: bool = False
    # What validation chooses among; the rate is chosen with the first.
    settings: tuple[Setting, ...] = (Setting(),)

    def layers(self, setting: Setting, relax: Any = None) -> tuple[Callable[..., nn.Module], Callable[..., nn.Module]]:
        """Return what makes the convolutions, and those of the last layer or stage, soft in ``relax`` if not None."""
        options = dict(setting.options)
        if relax is not None and self.layer in (RelaxedR2Conv, WITH_DIRECTIONS):
            options["relax"] = relax
        last = functools.partial(self.layer, bias=False, **options)
        return functools.partial(R2Conv, bias=False) if self.only_last else last, last

    def gspace(self, group: str) -> Any:
        """Return the symmetry of the layers on a task of a group."""
        return GSPACES["C1" if self.is_plain else self.groups.get(group, group)]()

    @property
    def is_plain(self) -> bool:
        """Whether its layers know no group."""
        return self.layer is PlainConvolution


_STARTS = tuple(Setting({"initial_softness": softness}) for softness in (0.1, 0.01))
_DEVIATIONS = tuple(Setting(deviation=deviation) for deviation in (0.1, 0.03, 0.3))
# The ten of the first tables.
MAIN_WAYS: dict[str, Way] = {
    "R2Conv": Way(),
    "R2Conv, free head": Way(head="free"),
    "RelaxedR2Conv": Way(RelaxedR2Conv),
    "RelaxedR2Conv, free head": Way(RelaxedR2Conv, "free"),
    "RelaxedR2Conv, evidence": Way(RelaxedR2Conv, is_learned=True),
    "R2Conv, soft head": Way(head="soft"),
    "R2Conv, free head, turned copies": Way(head="free", turned=1.0),
    "RestrictionModule": Way(restricts=True),
    "Conv2d": Way(PlainConvolution),
    "Conv2d, turned copies": Way(PlainConvolution, turned=1.0),
}
FURTHER_WAYS: dict[str, Way] = {
    "RelaxedR2Conv, turned copies": Way(RelaxedR2Conv, turned=1.0),
    "PartialR2Conv": Way(PartialR2Conv, settings=_STARTS),
    "ResidualR2Conv": Way(ResidualR2Conv, settings=_DEVIATIONS),
    "Conv2d, equal time": Way(PlainConvolution, is_as_wide=True),
    "ResidualR2Conv, equal time": Way(ResidualR2Conv, is_as_wide=True, settings=_DEVIATIONS),
    "R2Conv, subgroup": Way(groups=SUBGROUP),
    "R2Conv, other group": Way(groups=OTHER_GROUP),
}
# Marked in the protocol as added later.
ADDED_WAYS: dict[str, Way] = {
    "RelaxedR2Conv, last stage": Way(RelaxedR2Conv, only_last=True),
    "RelaxedR2Conv, decoupled evidence": Way(RelaxedR2Conv, is_learned=True, is_decoupled=True),
    "R2Conv, free biases": Way(has_free_biases=True),
    "RelaxedR2Conv, free biases": Way(RelaxedR2Conv, has_free_biases=True),
    # Of soft translation alone.
    "RelaxedR2Conv, directions": Way(WITH_DIRECTIONS),
}
WAYS = {**MAIN_WAYS, **FURTHER_WAYS, **ADDED_WAYS}
