"""Partial equivariance: the kernel has a support on the group, around the identity (Romero & Lohit 2021)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..checks import SUBGROUPS, check_choice, check_number
from ..group.domain import Domain, GroupMeans
from ..group.elements import principal_angle
from ..group.fields import channel_elements
from ..torch_modes import has_values
from .config import KernelConfig, WeightGroup
from .kernel import KernelBuilder, softness_from_energies
from .strict import RelaxingKernel, StrictKernel


class PartialKernel(RelaxingKernel):
    """K = w_ν(g) ⊙ K_strict, with a window w on the group that ν narrows around the identity.

    ``relax`` is ν of ``"rotation"`` and ``"reflection"`` at the start, or ``"default"``: as the softness says.
    """

    relaxation_name = "partial"

    def __init__(
        self, config: KernelConfig, strict: KernelBuilder = StrictKernel, relax: object = "default", learn: bool = True
    ) -> None:
        super().__init__(config, strict)
        if config.domain.dimension != 2:
            raise ValueError(
                f"a {type(self).__name__} must be a kernel of the plane, where rotations have the one angle that its "
                f"window is on, got {config.domain.gspace.name}"
            )
        available, fields = self.relaxed_subgroups, config.out_type.representations
        self._uses_initial_softness = isinstance(relax, str) and bool(check_choice("relax", relax, ("default",)))
        start = dict.fromkeys(available, 0.0) if self._uses_initial_softness else _checked(relax, available)
        elements, has_any = channel_elements(fields, config.domain.sample)
        if start and not has_any.all():
            raise ValueError(
                f"out_type must be of regular and quotient fields, whose channels are the group elements that the "
                f"window weighs, got {[field.name for field in fields]}; relax=None makes a strict layer of any fields"
            )
        self.window = GroupWindow(config.domain, elements, start, learn)
        self.relaxed_subgroups = tuple(start)

    def forward(self, weights: Tensor | None, averaged: Sequence[str] = ()) -> Tensor:
        """Return K, (C_out, C_in, T); its mean over subgroups has the mean of the window."""
        kernel: Tensor = self.strict(weights)
        return kernel * self.window(averaged).view(-1, 1, 1) if self.relaxed_subgroups else kernel

    @property
    def relaxed_by(self) -> str:  # type: ignore[override]
        """ν of each subgroup, in words."""
        values = self.window.narrowing().items()
        words = [f"{name} {f'{value.item():.3g}' if has_values(value) else 'not here'}" for name, value in values]
        return f"narrowing {', '.join(words) or 'of nothing'}"

    def weight_groups(self) -> list[WeightGroup]:
        """Return ν of each subgroup, where it is learned."""
        learned = [(name, value) for name, value in self.window.narrowing().items() if isinstance(value, nn.Parameter)]
        return [WeightGroup(frozenset({name}), [(value, torch.tensor([0]))]) for name, value in learned]

    def scale_soft_part(self, factor: float) -> None:
        """Raise a ``ValueError``, since softness does not rise as ν²."""
        raise ValueError("softness cannot be set where a window relaxes a layer: set_narrowing sets its narrowing")

    @torch.no_grad()
    def start(self, weights: Tensor | None, softness: float) -> None:
        """Set each ν so that the softness is s, where none is given. On regular fields each subgroup has its share."""
        super().start(weights, softness)
        names = self.relaxed_subgroups
        if not (self._uses_initial_softness and names):
            return
        whole = GroupWindow(self.config.domain, np.eye(len(self.config.domain.sample)), {}, learn=False)
        # Windows multiply, and so do 1 − s.
        alone = 1 - (1 - softness) ** (1 / len(names))
        shares = {name: whole.narrowing_for(alone, {name: 1.0}, torch.ones(1), f"in {name}") for name in names}
        # Cosets, and elements that move taps off their grid, make the softness another.
        energy = self.orthogonal_basis(self.strict(weights)).square().flatten(1).sum(1)
        along = {name: value / (min(shares.values()) or 1.0) for name, value in shares.items()}
        factor = self.window.narrowing_for(softness, along, energy, "for these fields")
        for name, value in self.window.narrowing().items():
            value.fill_(min(factor * along[name], 1.0))


class GroupWindow(GroupMeans):
    """The window w on the group, and its value for each channel, given the elements of each as a mean, (C, M)."""

    distance: Tensor
    reflected: Tensor

    def __init__(self, domain: Domain, channels: NDArray[np.float64], start: Mapping[str, float], learn: bool) -> None:
        super().__init__(domain, channels)
        angle = np.abs(principal_angle(domain.sample.rotation))
        self.set_constant("distance", angle / max(angle.max(), 1e-12))
        self.set_constant("reflected", domain.sample.reflected.astype(np.float64))
        # The steps to the largest angle: w falls over one.
        self._steps = max(len(domain.sample.rotations) // 2, 1)
        self._names = tuple(start)
        for name, value in start.items():
            tensor = torch.tensor(float(value))
            self.register_parameter(name, nn.Parameter(tensor)) if learn else self.register_buffer(name, tensor)

    def narrowing(self) -> dict[str, Tensor]:
        """Return ν of each subgroup."""
        return {name: getattr(self, name) for name in self._names}

    def elements(self, narrowing: Mapping[str, Tensor]) -> Tensor:
        """Return w at each group element, (M,)."""
        window = torch.ones_like(self.distance)
        for name, value in narrowing.items():
            # |ν| has a slope at 0 too, so that a step below 0 narrows as well, and a strict layer can learn.
            size = torch.where(value < 0, -value, value)
            outside = size * self.reflected if name == "reflection" else (self.distance - 1 + size) * self._steps
            # Cut off at 0 and 1, with the slope there that ``clamp`` does not have from torch 2.14 on.
            values = 1 - outside
            window = window * values.masked_fill(values > 1, 1.0).masked_fill(values < 0, 0.0)
        return window

    def forward(self, averaged: Sequence[str] = ()) -> Tensor:
        """Return the value for each channel, (C,), of the mean of w over some subgroups."""
        return self.averaged(averaged) @ self.elements(self.narrowing())

    def narrowing_for(self, softness: float, along: Mapping[str, float], energy: Tensor, where: str) -> float:
        """Return the factor of some ν, cut off at 1, that gives a kernel of these channel energies the softness."""
        exact = copy.deepcopy(self).double()

        def softness_at(factor: float) -> float:
            narrowing = {name: min(factor * value, 1.0) for name, value in along.items()}
            elements = exact.elements({name: torch.tensor(value).double() for name, value in narrowing.items()})
            rows, means = (exact.averaged(names) @ elements for names in ((), SUBGROUPS))
            soft, strict = ((part.square() * energy).sum() for part in (rows - means, means))
            return float(softness_from_energies(soft, strict))

        if softness > softness_at(1.0):
            raise ValueError(
                f"initial_softness must be at most {softness_at(1.0):.3g} {where}, which leaves the identity alone, "
                f"got {softness:.3g}"
            )
        # By bisection.
        low, high = 0.0, 1.0 if softness else 0.0
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if softness_at(middle) < softness else (low, middle)
        return high


def check_narrowing(argument: str, name: str, value: object) -> float:
    """Return ν of a subgroup, a number in [0, 1]."""
    narrowing = check_number(f"{argument}: the narrowing of {name!r}", value)
    if not 0 <= narrowing <= 1:
        raise ValueError(f"{argument}: the narrowing of {name!r} must be in [0, 1], got {value!r}")
    return narrowing


def _checked(relax: object, available: Sequence[str]) -> dict[str, float]:
    """Return ν of each subgroup at the start."""
    given = {} if relax is None else relax
    if not isinstance(given, Mapping):
        raise TypeError(f"relax must be a dict from subgroup to narrowing, or None, got {relax!r}")
    for name, value in given.items():
        if name not in available:
            raise ValueError(f"relax: a window must be on one of {list(available)}, got {name!r}: {value!r}")
    return {name: check_narrowing("relax", name, given[name]) for name in available if name in given}
