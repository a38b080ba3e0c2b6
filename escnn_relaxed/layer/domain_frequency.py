"""The domain frequency ω′ of each subgroup, which says how fast the kernel may change over the group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import torch_modes
from ..checks import is_number, warn_once
from ..group.regions import region_limit
from ..torch_modes import has_values

__all__ = ["DomainFrequency", "Frequency", "RegionSamples", "RotationSamples", "frequency_values"]

Frequency = float | Sequence[float] | NDArray[np.floating[Any]] | Tensor


class RotationSamples(NamedTuple):
    """The number of sampled rotations, the form of their coordinates, and the ω′ that they resolve."""

    number: int
    form: str
    limit: float

    def warn_of_aliasing(self, argument: str, frequency: float) -> None:
        """Warn once for each ω′ above the limit; one or two rotations have no limit."""
        if abs(frequency) <= self.limit or self.number <= 2:
            return
        reason = "N/2" if self.form == "log" else "N/4π, above which features hold harmonics over N/2"
        warn_once(
            f"{argument}: the domain frequency {frequency:g} of rotation is above {self.limit:.3g} ({reason}) for "
            f"N = {self.number} rotations: it aliases, and a larger value makes the kernel no softer"
        )


class RegionSamples(NamedTuple):
    """The number of regions by which the kernel is sampled along each axis."""

    number: int

    def warn_of_aliasing(self, argument: str, frequency: float) -> None:
        """Warn once for each ω′ above the limit that the regions resolve."""
        limit = region_limit(self.number)
        if abs(frequency) > limit:
            warn_once(
                f"{argument}: the domain frequency {frequency:g} of translation is above {limit:.3g} (G/4) for "
                f"regions = {self.number}: it aliases, and a larger value makes the kernel no softer; more regions "
                f"resolve more"
            )


class DomainFrequency(nn.Module):
    """The ω′ of the subgroups that a layer may soften: one value each, for translation one for each axis (x, y).

    Args:
        start: starting value of each subgroup.
        learn: make them parameters. Otherwise they are buffers, which are part of the state too.
        samples: the samples of subgroups, for a warning of values that these do not resolve.
        axes: number of axes of the base space.
    """

    def __init__(
        self,
        start: Mapping[str, Frequency],
        learn: bool,
        samples: Mapping[str, RotationSamples | RegionSamples] | None = None,
        axes: int = 2,
    ) -> None:
        super().__init__()
        self.learn = learn
        self._samples = dict(samples or {})
        self._axes = axes
        self.names = tuple(start)
        for name, value in start.items():
            tensor = torch.tensor(self._checked("relax", name, value))
            if learn:
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)

    def values(self) -> dict[str, Tensor]:
        """Return the name of each subgroup → the tensor of its ω′. Tied axes have the same value twice."""
        return {name: self._for_each_axis(name) for name in self.names}

    def described(self) -> dict[str, list[float] | str]:
        """Return the name of each subgroup → rounded values of its ω′ for people, where this process holds them."""
        described: dict[str, list[float] | str] = {}
        for name in self.names:
            value: Tensor = getattr(self, name)
            # A tensor of which each process holds a part cannot be expanded either.
            known = [round(part, 4) for part in value.tolist()] if has_values(value) else []
            described[name] = known * (self._count(name) // len(known)) if known else "not here"
        return described

    def share(self, name: str, value: nn.Parameter) -> None:
        """Learn ω′ of a subgroup as a parameter that other layers may have too. Tied axes have one value."""
        self.register_parameter(name, value)

    @torch.no_grad()
    def set(self, **frequencies: Frequency) -> None:
        """Set values in place.

        Raises:
            TypeError: for a value that is not a number or, for translation, a pair of them.
            ValueError: for a subgroup without a coordinate in this layer, or a value that is not finite.
        """
        for name, value in frequencies.items():
            if name not in self.names:
                raise ValueError(
                    f"{name!r} has no domain frequency in this layer, which has {list(self.names)}: name it in "
                    f"`relax` when the layer is built, with 0.0 for strict"
                )
            values = self._checked("set_domain_frequency", name, value)
            own: Tensor = getattr(self, name)
            if len(set(values)) > len(own):
                raise ValueError(
                    f"set_domain_frequency: the axes of {name!r} are tied in this layer and take one value, "
                    f"got {value!r}"
                )
            own.copy_(torch.tensor(values[: len(own)], dtype=torch.float64, device=own.device))

    def _checked(self, argument: str, name: str, value: Frequency) -> list[float]:
        values = frequency_values(argument, name, value, self._axes)
        if name in self._samples:
            self._samples[name].warn_of_aliasing(argument, max(values, key=abs))
        return values

    def _count(self, name: str) -> int:
        """Return the number of values of a subgroup."""
        return self._axes if name == "translation" else 1

    def _for_each_axis(self, name: str) -> Tensor:
        """Return ω′ with a value for each axis, also where all share one: (1 or axes,) → (axes,)."""
        value: Tensor = getattr(self, name)
        return value.expand(self._axes) if name == "translation" and len(value) == 1 else value

    def may_vary(self, *names: str) -> bool:
        """Whether the kernel depends on any of these subgroups (default: all), or may come to in training."""
        return any(name in self.names and (self.learn or not self._is_zero(name)) for name in names or self.names)

    def _is_zero(self, name: str) -> bool:
        """Whether ω′ is known to be 0: training on an accelerator does not wait for its value."""
        value: Tensor = getattr(self, name)
        if not has_values(value) or (self.training and not torch_modes.reads_without_waiting(value)):
            return False
        return not bool(value.any())


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
