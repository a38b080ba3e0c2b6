"""The domain frequency ω′ of each subgroup, which says how fast the kernel may change over the group."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .. import torch_modes
from ..checks import SUBGROUPS, is_number, warn_once
from ..group.domain import Domain
from ..torch_modes import has_values

# ω′ of one subgroup; of translation one number for all axes, or one for each.
Frequency = float | Sequence[float]

DEFAULT_FREQUENCY = 0.25


class Limit(NamedTuple):
    """The largest ω′ that samples resolve, with its reason in words."""

    frequency: float
    reason: str


class DomainFrequency(nn.Module):
    """The ω′ of the subgroups that a kernel may be soft in: one value each, for translation one an axis (x, y)."""

    def __init__(self, start: Mapping[str, Frequency], learn: bool = False, axes: int = 2) -> None:
        super().__init__()
        self.learn = learn
        self.names = tuple(start)
        # Limits above which a kernel warns of aliasing.
        self.limits: dict[str, Limit] = {}
        self._axes = axes
        for name, value in start.items():
            tensor = torch.tensor(frequency_values("relax", name, value, axes))
            if learn:
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)

    def values(self) -> dict[str, Tensor]:
        """Return the name of each subgroup → the tensor of its ω′, of translation with a value for each axis."""
        return {name: getattr(self, name) for name in self.names}

    def scale(self, columns: Sequence[str], like: Tensor) -> Tensor:
        """Return ω′ of each coordinate of the domain, (D,), or (1,) for all."""
        scales = []
        for name in dict.fromkeys(columns):
            value = getattr(self, name).to(like)
            scales.append(value if len(value) == columns.count(name) else value.expand(columns.count(name)))
        return scales[0] if len(scales) == 1 else torch.cat([like.new_zeros(0), *scales])

    def described(self) -> dict[str, list[float] | str]:
        """Return the name of each subgroup → rounded values of its ω′ for people, where this process holds them."""
        described: dict[str, list[float] | str] = {}
        for name in self.names:
            value: Tensor = getattr(self, name)
            described[name] = [round(part, 4) for part in value.tolist()] if has_values(value) else "not here"
        return described

    def share(self, name: str, value: nn.Parameter) -> None:
        """Learn ω′ of a subgroup as a parameter that other layers may have too."""
        self.register_parameter(name, value)

    @torch.no_grad()
    def set(self, **frequencies: Frequency) -> None:
        """Set values in place."""
        for name, value in frequencies.items():
            if name not in self.names:
                raise ValueError(
                    f"{name!r} has no domain frequency in this layer, which has {list(self.names)}: name it in "
                    f"`relax` when the layer is built, with 0.0 for strict"
                )
            values = frequency_values("set_domain_frequency", name, value, self._axes)
            self.warn_of_aliasing("set_domain_frequency", name, values)
            own: Tensor = getattr(self, name)
            own.copy_(torch.tensor(values, dtype=torch.float64, device=own.device))

    def warn_of_aliasing(self, argument: str, name: str, values: Sequence[float]) -> None:
        """Warn once of each ω′ that the samples of the kernel do not resolve."""
        largest = max(map(abs, values))
        if name in self.limits and largest > self.limits[name].frequency:
            limit, reason = self.limits[name]
            warn_once(
                f"{argument}: the domain frequency {largest:g} of {name} is above {limit:.3g} ({reason}): it aliases, "
                f"and a larger value makes the kernel no softer"
            )

    @contextlib.contextmanager
    def at_least(self, least: float) -> Iterator[None]:
        """Raise every ω′ to a least value within a ``with`` block; one of 0 stays, unless all are 0."""
        own = {name: getattr(self, name).detach().clone() for name in self.names}
        is_zero = not any(bool(value.any()) for value in own.values())
        with torch.no_grad():
            for name, value in own.items():
                raised = value.abs().clamp_min(least)
                getattr(self, name).copy_(raised if is_zero else torch.where(value == 0, value, raised))
            yield
            for name, value in own.items():
                getattr(self, name).copy_(value)

    def may_vary(self, *names: str) -> bool:
        """Whether the kernel may depend on any of these subgroups; yes where nothing says so without waiting."""
        return any(name in self.names and (self.learn or not self._is_zero(name)) for name in names or self.names)

    def is_zero(self, name: str) -> bool:
        """Whether ω′ of a subgroup is missing, or known to be 0 and not learned; this may wait for an accelerator."""
        if name not in self.names or self.learn:
            return name not in self.names
        value: Tensor = getattr(self, name)
        return has_values(value) and not bool(value.any())

    def _is_zero(self, name: str) -> bool:
        value: Tensor = getattr(self, name)
        return has_values(value) and torch_modes.reads_without_waiting(value) and not bool(value.any())


def starting_frequency(relax: Any, domain: Domain, axes_of_translation: bool = True) -> dict[str, Frequency]:
    """Return the ω′ at the start of each subgroup that may be soft, in a fixed order."""
    if relax is None:
        return {}
    if isinstance(relax, str) and relax == "default":
        names = [name for name in domain.subgroups if name not in domain.kept_subgroups]
        if domain.subgroups and not names:
            raise ValueError("keep leaves nothing of rotation and reflection to be soft; relax=None is a strict layer")
        return {name: _default(name, domain) for name in names}
    if isinstance(relax, str):
        relax = (relax,)
    if not isinstance(relax, (Mapping, Sequence, Set)):
        raise TypeError(
            f"relax must be the name of a subgroup, as relax='rotation', several names, as relax=('rotation', "
            f"'translation'), a dict from names to domain frequencies, None or 'default', got {relax!r}"
        )
    for name in relax:
        if name not in SUBGROUPS:
            raise ValueError(
                f"relax: unknown subgroup {name!r}; subgroups are {list(SUBGROUPS)}, None is a strict layer"
            )
        if name == "translation" and not axes_of_translation:
            raise ValueError(f"relax: a layer of volumes is strict in translation, got {relax!r}")
        if name not in (*domain.subgroups, "translation"):
            raise ValueError(f"relax: {domain.gspace.name} has no {name} to relax, got {relax!r}")
        if name in domain.kept_subgroups:
            raise ValueError(f"relax: all of the {name} is in the group to keep, got {relax!r}")
    given = dict(relax) if isinstance(relax, Mapping) else {name: _default(name, domain) for name in relax}
    for name, value in given.items():
        frequency_values("relax", name, value, domain.dimension)
    return {name: given[name] for name in ("translation", "rotation", "reflection") if name in given}


def _default(name: str, domain: Domain) -> float:
    """Return the default ω′ of a subgroup."""
    if name != "rotation":
        return DEFAULT_FREQUENCY
    return min(1.0 if domain.form == "log" else DEFAULT_FREQUENCY, domain.resolved_frequency())


def frequency_values(argument: str, name: str, value: Frequency, axes: int = 2) -> list[float]:
    """Return ω′ of one subgroup as a list of checked floats. Learning may give it a sign, which means nothing."""
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
