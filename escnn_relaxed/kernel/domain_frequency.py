"""The domain frequency ω′ of each subgroup, which says how fast the kernel may change over the group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..checks import ALL_SUBGROUPS, SUBGROUPS, WHOLE_GROUP, is_number, warn_once
from ..group.domain import Domain
from ..group.exact_constants import ExactConstants
from ..torch_modes import has_values

# ω′ of one subgroup; of translation one number for all axes, or one for each.
Frequency = float | Sequence[float]

DEFAULT_FREQUENCY = 0.25


class DomainFrequency(ExactConstants):
    """The ω′ of the subgroups that a kernel may be soft in: one value each, of translation one for each axis."""

    # A learned ω′ is a parameter. A fixed one is a setting, so what depends on it alone is a constant, which is
    # remembered by ``settings``; only ``set`` and the loading of a state change it.

    def __init__(self, start: Mapping[str, Frequency], learn: bool = False, axes: int = 2) -> None:
        super().__init__()
        self.learn = learn
        self.names = tuple(start)
        # The largest ω′ that samples resolve, above which a kernel warns of aliasing, with the reason in words.
        self.limits: dict[str, tuple[float, str]] = {}
        # What happens where ω′ is no whole number, in words, of the subgroups for which it matters.
        self.jumps: dict[str, str] = {}
        self._axes = axes
        self._fixed: dict[str, tuple[float, ...]] = {}
        self.settings: tuple[tuple[str, tuple[float, ...]], ...] = ()  # the fixed values
        for name, value in start.items():
            values = frequency_values("relax", name, value, axes)
            if learn:
                self.register_parameter(name, nn.Parameter(torch.tensor(values)))
            else:
                self._fix(name, values)

    def _fix(self, name: str, values: Sequence[float]) -> None:
        self._fixed[name] = tuple(values)
        self.settings = tuple(self._fixed.items())
        self.set_constant(name, np.array(values, dtype=np.float64))

    def values(self) -> dict[str, Tensor]:
        """Return ω′ of each subgroup by its name, of translation a value for each axis; copies where it is fixed."""
        return {name: getattr(self, name) if self.learn else getattr(self, name).clone() for name in self.names}

    def scale(self, columns: Sequence[str], like: Tensor | None = None) -> Tensor:
        """Return ω′ of each coordinate of the domain, (D,), or (1,) for all; without ``like`` in float64."""
        zero = torch.zeros(1, dtype=torch.float64, device="cpu") if like is None else like.new_zeros(1)
        scales = []
        for name in dict.fromkeys(columns):
            # The compiler of torch 2.6 knows no tuple.count.
            value, count = zero, sum([column == name for column in columns])
            # A subgroup in which no weights make K soft has no ω′.
            if name in self.names:
                value = getattr(self.exact, name) if like is None else getattr(self, name).to(like)
            scales.append(value if len(value) == count else value.expand(count))
        return scales[0] if len(scales) == 1 else torch.cat([zero[:0], *scales])

    def described(self) -> dict[str, list[float] | str]:
        """Return the rounded values of ω′ by subgroup, as text, where this process holds them."""
        described: dict[str, list[float] | str] = {}
        for name, value in self.values().items():
            described[name] = [round(part, 4) for part in value.tolist()] if has_values(value) else "not here"
        return described

    @torch.no_grad()
    def set(self, **frequencies: Frequency) -> None:
        """Set values in place: all, or none where one is refused."""
        checked = {}
        for name, value in frequencies.items():
            if name not in self.names:
                raise ValueError(
                    f"{name!r} has no domain frequency in this layer, which has {list(self.names)}: name it in "
                    f"`relax` when the layer is built, with 0.0 for strict"
                )
            checked[name] = frequency_values("set_domain_frequency", name, value, self._axes)
        for name, values in checked.items():
            self.warn("set_domain_frequency", name, values)
        for name, values in checked.items():
            if self.learn:
                own: Tensor = getattr(self, name)
                own.copy_(torch.tensor(values, dtype=torch.float64, device=own.device))
            else:
                self._fix(name, values)

    def warn(self, argument: str, name: str, values: Sequence[float]) -> None:
        """Warn once of each ω′ that the samples of the kernel do not resolve, or with which it jumps."""
        largest = max(map(abs, values))
        limit, reason = self.limits.get(name, (math.inf, ""))
        if largest > limit:
            warn_once(
                f"{argument}: the domain frequency {largest:g} of {name} is above {limit:.3g} ({reason}): it aliases, "
                f"and a larger value makes the kernel no softer"
            )
        if name in self.jumps and any(value % 1 for value in values):
            warn_once(f"{self.jumps[name]}, got ω′ = {', '.join(f'{value:g}' for value in values)}")

    def may_vary(self, *names: str) -> bool:
        """Return whether the kernel may depend on any of these subgroups; yes where ω′ is learned."""
        return any([name in self.names and (self.learn or any(self._fixed[name])) for name in names or self.names])

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self._fixed:
            destination[prefix + name] = getattr(self.exact, name).clone()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        _, strict, missing, _, errors = arguments
        before = {name: value.tolist() for name, value in self.values().items() if has_values(value)}
        for name, own in self._fixed.items():
            value = state_dict.pop(prefix + name, None)
            if value is not None and value.numel() == len(own):
                self._fix(name, value.detach().cpu().double().flatten().tolist())
            elif value is not None:
                errors.append(
                    f"size mismatch for {prefix}{name}: {len(own)} value(s) here, {value.numel()} in the state"
                )
            elif strict:
                missing.append(prefix + name)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        # torch refuses a state with errors, which say enough.
        for name, value in () if errors else self.values().items():
            if has_values(value) and value.tolist() != before.get(name):
                self.warn("load_state_dict", name, value.tolist())


def starting_frequency(relax: object, domain: Domain, defaults: Mapping[str, float]) -> dict[str, Frequency]:
    """Return the ω′ at the start of each subgroup that may be soft, in a fixed order; ``defaults`` are the kernel's."""
    if isinstance(relax, str) and relax == "default":
        names = _parts_of_group(domain)
        if domain.sample.subgroups and not names:
            what = "the group" if domain.is_abstract else "rotation and reflection"
            raise ValueError(f"keep leaves nothing of {what} to be soft; relax=None is a strict layer")
        return {name: _default(name, domain, defaults) for name in names}
    names = named_subgroups(relax)
    for name in names:
        if name not in ALL_SUBGROUPS:
            raise ValueError(
                f"relax: unknown subgroup {name!r}; subgroups are {list(SUBGROUPS)}, {WHOLE_GROUP!r} is the whole "
                f"fiber group, None is a strict layer"
            )
        if domain.is_abstract and WHOLE_GROUP not in names:
            raise ValueError(
                f"relax: no action on the plane or on space is known of {domain.gspace.name}, so that none of its "
                f"elements is a {name}: relax={WHOLE_GROUP!r} names them all, got {relax!r}"
            )
        if name not in (*domain.sample.subgroups, "translation", WHOLE_GROUP) and not domain.is_abstract:
            few = " at samples=1" if domain.samples == 1 and domain.gspace.fibergroup.continuous else ""
            raise ValueError(f"relax: {domain.gspace.name} has no {name} to relax{few}, got {relax!r}")
        if name in domain.kept_subgroups:
            raise ValueError(f"relax: all of the {name} is in the group to keep, got {relax!r}")
    given: dict[str, Frequency] = {}
    for name in [WHOLE_GROUP] if domain.is_abstract and names else names:
        # The whole group is that of its rotations and reflections, where it has some.
        is_of_parts = name == WHOLE_GROUP and not domain.is_abstract
        for part in _parts_of_group(domain) if is_of_parts else (name,):
            if not (is_of_parts and part in names):
                given[part] = relax[name] if isinstance(relax, Mapping) else _default(part, domain, defaults)
    for name, value in given.items():
        frequency_values("relax", name, value, domain.dimension)
    return {name: given[name] for name in ("translation", "rotation", "reflection", WHOLE_GROUP) if name in given}


def _parts_of_group(domain: Domain) -> list[str]:
    """Return the subgroups of the fiber group that may be soft."""
    return [name for name in domain.sample.subgroups if name not in domain.kept_subgroups]


def named_subgroups(relax: object) -> list[str]:
    """Return the names in the argument ``relax``; none for the default."""
    if relax is None or (isinstance(relax, str) and relax == "default"):
        return []
    if not isinstance(relax, (str, Mapping, Sequence, Set)):
        raise TypeError(
            f"relax must be the name of a subgroup, as relax='rotation', several names, as relax=('rotation', "
            f"'translation'), a dict from names to domain frequencies, None or 'default', got {relax!r}"
        )
    return [relax] if isinstance(relax, str) else list(relax)


def _default(name: str, domain: Domain, defaults: Mapping[str, float]) -> float:
    """Return the default ω′ of a subgroup: the kernel's, else one that N rotations in a turn resolve."""
    if name in defaults:
        return defaults[name]
    return (
        min(DEFAULT_FREQUENCY, domain.rotations_in_a_turn / (4 * math.pi)) if name == "rotation" else DEFAULT_FREQUENCY
    )


def frequency_values(argument: str, name: str, value: Frequency, axes: int = 2) -> list[float]:
    """Return ω′ of one subgroup as a list of checked floats. Learning may give it a sign: tanh(−x) = −tanh(x)."""
    count = axes if name == "translation" else 1
    plain = _plain(value)
    values = [_plain(part) for part in plain] if isinstance(plain, (list, tuple)) else [plain] * count
    if not all(is_number(part) for part in values):
        right = {1: "a number", 2: "a number or a pair (x, y)", 3: "a number or a triple (x, y, z)"}[count]
        raise TypeError(f"{argument}: the domain frequency of {name!r} must be {right}, got {value!r}")
    if len(values) != count:
        raise ValueError(f"{argument}: {name!r} takes {count} value(s) of the domain frequency, got {value!r}")
    if not all(math.isfinite(part) for part in values):
        raise ValueError(f"{argument}: the domain frequency of {name!r} must be finite, got {value!r}")
    return [float(part) for part in values]


def _plain(value: Any) -> Any:
    """Return Python's own numbers in place of torch's and NumPy's."""
    return value.tolist() if isinstance(value, (Tensor, np.ndarray, np.generic)) else value
