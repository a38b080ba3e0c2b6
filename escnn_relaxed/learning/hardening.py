"""Which softness the data do not need: trials that make layers strict, and what decides them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from ..kernel.kernel import joint
from ..network.relaxed_layers import relaxed_layers
from .evidence_table import HardeningReport, HardeningTrial
from .posterior import Learned, posterior
from .soft_gradients import SoftGroup, mean_over_processes, soft_groups

# Softness stays where it gains more than this many times its Occam factor, since other weights have counted on it and
# do not adapt in a trial, and at odds of 20 to 1. Where nothing needs it, the rise is up to two Occam factors.
_COUNTED_ON, ODDS = 2.0, math.log(20)


def harden_by_trials(
    network: nn.Module, learned: Mapping[str, Learned], losses: Callable[[], Tensor], observations: int
) -> HardeningReport:
    """Make strict in place what the data do not need; see :meth:`SoftnessEvidence.harden`.

    Args:
        network: any module.
        learned: what the last update found of each group, by its key.
        losses: gives the negative log likelihood of each input.
        observations: N.
    """
    trials: list[HardeningTrial] = []
    before = losses()

    def attempt(subgroups: frozenset[str], groups: Sequence[SoftGroup]) -> None:
        nonlocal before
        trial, after = _trial(network, subgroups, groups, learned, before, losses, observations)
        trials.append(trial)
        before = after if trial.is_hardened else before

    def gamma_per_weight(groups: Sequence[SoftGroup]) -> float:
        """Return γ/n of some groups together."""
        return sum(learned[group.key].determined for group in groups) / sum(group.size for group in groups)

    # Layers can be made strict in each of these alone, some in several subgroups together.
    weights = [group.weights for group in soft_groups(network)]
    choices = dict.fromkeys(of.subgroups for of in weights if of.needs_all or len(of.subgroups) == 1)
    for subgroups in sorted(choices, key=lambda choice: gamma_per_weight(_going(network, choice))):
        going = _going(network, subgroups)
        if not going:
            continue  # all of them have gone with several subgroups together
        attempt(subgroups, going)
        names = dict.fromkeys(group.layer for group in going)
        if not trials[-1].is_hardened and len(names) > 1:
            for groups in sorted(
                ([group for group in going if group.layer == name] for name in names), key=gamma_per_weight
            ):
                attempt(subgroups, groups)
    return HardeningReport(tuple(trials))


def _going(network: nn.Module, subgroups: frozenset[str]) -> list[SoftGroup]:
    """Return the groups that go where all layers become strict in some subgroups."""
    return [group for group in soft_groups(network) if group.weights.is_gone(tuple(subgroups))]


def _trial(
    network: nn.Module,
    subgroups: frozenset[str],
    groups: Sequence[SoftGroup],
    learned: Mapping[str, Learned],
    before: Tensor,
    losses: Callable[[], Tensor],
    observations: int,
) -> tuple[HardeningTrial, Tensor]:
    """Harden the layers of some groups, and make them soft again if that costs too much; return the losses with it."""
    names = tuple(dict.fromkeys(name for group in groups for name in group.layers))
    layers = [relaxed_layers(network)[name] for name in names]
    gone, soft = {group.key for group in groups}, [group.key for group in soft_groups(network)]
    whole, rest = ([learned[key] for key in soft if key not in out] for out in (set(), gone))
    occam_factor = posterior(whole)[1] - posterior(rest)[1]
    needed = _COUNTED_ON * occam_factor + ODDS
    known, is_kept = [layer.hardened for layer in layers], False
    try:
        for layer in layers:
            layer.harden(*subgroups)
        after = losses()
        rise, error = (observations * value for value in mean_over_processes(after - before))
        is_kept = rise - error <= needed
    finally:
        if not is_kept:
            for layer, hardened in zip(layers, known, strict=True):
                layer.hardened = hardened
    size, determined = sum(group.size for group in groups), sum(learned[key].determined for key in gone)
    name = ", ".join(joint(tuple(subgroups)))
    return HardeningTrial(name, names, size, determined, occam_factor, needed, rise, error, is_kept), after
