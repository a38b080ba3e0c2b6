"""A first pass without training: trials that make layers strict, and a hint for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn

from ..checks import ordered_subgroups
from ..measure.reports import Report
from ..network.relaxed_layers import relaxed_layers
from .posterior import occam_factor_of
from .prior import LearnedGroup
from .soft_gradients import SoftGroup, mean_and_error, soft_groups

# Layers that share soft weights, and those of the weights that go.
Sharers: TypeAlias = tuple[Iterable[str], list[SoftGroup]]
# Softness stays where it gains more than this many times its Occam factor, since other weights have counted on it and
# do not adapt in a trial, and at odds of 20 to 1. Where nothing needs it, the rise is up to two Occam factors.
_COUNTED_ON, ODDS = 2.0, math.log(20)


@dataclass(frozen=True)
class HardeningTrial:
    """A hint: a subgroup that was made strict for a trial, and whether it stays so.

    Attributes:
        subgroup: the subgroup, or several that the layers can be strict in only together.
        layers: names of the layers.
        weights: n, the number of soft weights that go, those of functions of several subgroups with them.
        determined: γ, the number of them that the data determine.
        occam_factor: by how much log p(data) falls for having these weights where they fit nothing better.
        needed: the rise that softness has to be worth: twice the Occam factor, plus log 20.
        rise: the rise Δ that was found: by how much the negative log likelihood of all observations is higher where the
            layers are strict.
        error: its standard error, by the spread over the inputs.
        is_hardened: whether the layers stay strict, since the rise less its error is not above the one that is needed.

    Example:
        >>> HardeningTrial("rotation", ("a", "b"), 40, 3.5, 12.0, 27.0, 3.0, 1.0, True).cells()
        ('rotation', '2 layers', '40', '3.5', '12.0', '27.0', '3.0 ± 1.0', 'strict')
    """

    subgroup: str
    layers: tuple[str, ...]
    weights: int
    determined: float
    occam_factor: float
    needed: float
    rise: float
    error: float
    is_hardened: bool

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        where = self.layers[0] if len(self.layers) == 1 else f"{len(self.layers)} layers"
        numbers = f"{self.determined:.1f}", f"{self.occam_factor:.1f}", f"{self.needed:.1f}"
        rise = f"{round(self.rise, 1) + 0.0:.1f} ± {self.error:.1f}"
        return (self.subgroup, where, f"{self.weights}", *numbers, rise, "strict" if self.is_hardened else "soft")


class HardeningReport(tuple[HardeningTrial, ...], Report):
    """A tuple of a row for each trial, in their order; its text is a table.

    Softness stays where the rise Δ that was found, less its error, is above the one that is needed. *soft* is a hint:
    :func:`~escnn_relaxed.which_softness_helps` decides.

    Example:
        >>> trial = HardeningTrial(
        ...     "rotation", ("first", "second"), 40, 31.5, 14.0, 31.0, 351.0, 20.0, False
        ... )
        >>> print(HardeningReport((trial,)))
        subgroup  where     weights n  determined γ  Occam factor  needed Δ  found Δ       hint
        rotation  2 layers  40         31.5          14.0          31.0      351.0 ± 20.0  soft
    """

    _header = ("subgroup", "where", "weights n", "determined γ", "Occam factor", "needed Δ", "found Δ", "hint")

    @property
    def rows(self) -> tuple[HardeningTrial, ...]:
        """The rows of subgroups in all layers, then in single layers for subgroups that stay soft."""
        return tuple(self)


def harden_by_trials(
    network: nn.Module, learned: Mapping[str, LearnedGroup], losses: Callable[[], Tensor], observations: int
) -> HardeningReport:
    """Make layers strict in place where the data, N observations, allow it; ``losses`` are per input."""
    layers, trials, before = relaxed_layers(network), list[HardeningTrial](), losses()

    def attempt(subgroups: frozenset[str], sharers: Sequence[Sharers], before: Tensor) -> Tensor:
        """Harden some layers unless that costs too much, note it, and return the losses after it."""
        names = tuple(dict.fromkeys(name for names, _ in sharers for name in names))
        groups = [group for _, gone in sharers for group in gone]
        hardened_before = {name: layers[name].hardened for name in names}
        gone = [group.key for group in groups]
        whole = {group.key: learned[group.key] for group in soft_groups(network)}
        staying = [of for key, of in whole.items() if key not in gone]
        occam_factor = occam_factor_of(list(whole.values())) - occam_factor_of(staying)
        needed, is_kept = _COUNTED_ON * occam_factor + ODDS, False
        try:
            for name in names:
                layers[name].harden(*subgroups)
            after = losses()
            rise, error = (observations * value for value in mean_and_error(after - before))
            is_kept = rise - error <= needed
        finally:
            if not is_kept:
                for name, hardened in hardened_before.items():
                    layers[name].hardened = hardened
        size, determined = sum(group.size for group in groups), sum(learned[key].determined for key in gone)
        said = ", ".join(ordered_subgroups(subgroups))
        trials.append(HardeningTrial(said, names, size, determined, occam_factor, needed, rise, error, is_kept))
        return after if is_kept else before

    def sharers_of(subgroups: frozenset[str]) -> list[Sharers]:
        """Return the layers that are soft in some subgroups, and the weights that hardening them removes."""
        by_layer: dict[str, tuple[dict[str, None], list[SoftGroup]]] = {}
        for group in soft_groups(network):
            names, gone = by_layer.setdefault(group.layer, ({}, []))
            names.update(dict.fromkeys(group.layers))
            gone += [group] if group.weights.is_gone(tuple(subgroups)) else []
        # Weights of rotation alone break mirrors, too, and stay where the layer is strict in these.
        return [
            (names, gone)
            for names, gone in by_layer.values()
            if gone or any(layers[n].softness(*subgroups) > 0 for n in names)
        ]

    def gamma_per_weight(sharers: Sequence[Sharers]) -> float:
        """Return γ/n of the weights that hardening removes."""
        groups = [group for _, gone in sharers for group in gone]
        return sum(learned[group.key].determined for group in groups) / max(sum(group.size for group in groups), 1)

    # Layers can be made strict in each of these alone, some in several subgroups together.
    choices: dict[frozenset[str], None] = {}
    for group in soft_groups(network):
        names = {*layers[group.layer].relaxable_subgroups, *group.weights.subgroups}
        alone = [frozenset({name}) for name in ordered_subgroups(names)]
        together = [group.weights.subgroups] if group.weights.needs_all else alone
        choices.update(dict.fromkeys(together))
    for subgroups in sorted(choices, key=lambda choice: gamma_per_weight(sharers_of(choice))):
        sharers = sharers_of(subgroups)
        if not sharers:
            continue  # strict already, with several subgroups together
        before = attempt(subgroups, sharers, before)
        if not trials[-1].is_hardened and len(sharers) > 1:
            for own in sorted(sharers, key=lambda own: gamma_per_weight([own])):
                before = attempt(subgroups, [own], before)
    return HardeningReport(tuple(trials))
