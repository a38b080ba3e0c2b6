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
    layers, trials, before = relaxed_layers(network), list[HardeningTrial](), losses()

    def attempt(subgroups: frozenset[str], groups: Sequence[SoftGroup]) -> bool:
        """Harden the layers of some groups unless that costs too much, and return whether they stay strict."""
        nonlocal before
        names = tuple(dict.fromkeys(name for group in groups for name in group.layers))
        known = {name: layers[name].hardened for name in names}
        gone = [group.key for group in groups]
        whole = {group.key: learned[group.key] for group in soft_groups(network)}
        rest = [of for key, of in whole.items() if key not in gone]
        occam_factor = posterior(list(whole.values()))[1] - posterior(rest)[1]
        needed, is_kept = _COUNTED_ON * occam_factor + ODDS, False
        try:
            for name in names:
                layers[name].harden(*subgroups)
            after = losses()
            rise, error = (observations * value for value in mean_over_processes(after - before))
            is_kept = rise - error <= needed
        finally:
            if not is_kept:
                for name, hardened in known.items():
                    layers[name].hardened = hardened
        before = after if is_kept else before
        size, determined = sum(group.size for group in groups), sum(learned[key].determined for key in gone)
        said = ", ".join(joint(tuple(subgroups)))
        trials.append(HardeningTrial(said, names, size, determined, occam_factor, needed, rise, error, is_kept))
        return is_kept

    def going(subgroups: frozenset[str]) -> list[SoftGroup]:
        """Return the groups that go where all layers become strict in some subgroups."""
        return [group for group in soft_groups(network) if group.weights.is_gone(tuple(subgroups))]

    def gamma_per_weight(groups: Sequence[SoftGroup]) -> float:
        """Return γ/n of some groups together."""
        return sum(learned[group.key].determined for group in groups) / sum(group.size for group in groups)

    # Layers can be made strict in each of these alone, some in several subgroups together.
    weights = [group.weights for group in soft_groups(network)]
    choices = dict.fromkeys(of.subgroups for of in weights if of.needs_all or len(of.subgroups) == 1)
    for subgroups in sorted(choices, key=lambda choice: gamma_per_weight(going(choice))):
        groups = going(subgroups)
        # There are none where all of them have gone with several subgroups together.
        if not groups or attempt(subgroups, groups):
            continue
        names = dict.fromkeys(group.layer for group in groups)
        parts = [[group for group in groups if group.layer == name] for name in names]
        for part in sorted(parts, key=gamma_per_weight) if len(parts) > 1 else ():
            attempt(subgroups, part)
    return HardeningReport(tuple(trials))
