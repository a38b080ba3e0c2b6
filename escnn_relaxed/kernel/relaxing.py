"""The base of kernels that relax a strict one by something else than ω′."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..checks import FIBER_SUBGROUPS, SUBGROUPS
from ..group.domain import Domain
from ..group.elements import has_subgroup
from ..group.exact_constants import ExactConstants
from ..group.means import mean_matrix
from .kernel import Kernel, KernelBuilder, KernelPlace
from .strict import StrictKernel

__all__ = ["GroupMeans", "RelaxingKernel", "adopt_kernel", "rename"]


class RelaxingKernel(Kernel):
    """A kernel of the plane that relaxes a strict one. A subclass says how.

    Args:
        place: where the kernel stands.
        strict: the class of the strict kernel, or the options of one.

    Attributes:
        strict: K_strict. Its weights are the layer's, or its own.
        way: the name of what relaxes it.
        earlier: how an earlier version began the names of entries of the state, with the names of today.
    """

    default_softness = 0.01
    way: ClassVar[str]
    earlier: ClassVar[Mapping[str, str]] = {}

    def __init__(self, place: KernelPlace, strict: KernelBuilder = StrictKernel) -> None:
        super().__init__(place)
        domain = copy.copy(place.domain)
        if domain.dimension != 2 or domain.kept.name:
            raise ValueError(
                f"a {type(self).__name__} must be a kernel of the plane, with keep=None, got {domain.gspace.name} with "
                f"keep={str(domain.kept)!r}"
            )
        domain.form = getattr(strict, "rotation_coordinates", domain.form)
        self.strict = strict(replace(place, domain=domain, relax={}, learn_relaxation=False))
        self.basis = self.strict.basis

    @property
    def relaxed_subgroups(self) -> tuple[str, ...]:
        """The rotations and reflections that the group has, which are relaxed together."""
        return tuple(name for name in FIBER_SUBGROUPS if has_subgroup(self.place.in_type.gspace, name))

    def start_weights(self) -> Tensor | None:
        """Return newly drawn weights of the strict kernel for the layer; None where it has its own."""
        return self.strict.start_weights()

    def start(self, weights: Tensor | None, softness: float) -> None:
        """Draw the weights of a strict kernel that has its own. A subclass draws what relaxes it."""
        self.strict.start(weights, self.strict.default_softness)

    @torch.no_grad()
    def _scale_to(self, weights: Tensor | None, softness: float) -> None:
        """Scale the soft part until the softness is s; nothing where there is none."""
        soft, strict = (float(energy) for energy in self.energies(weights, (), SUBGROUPS))
        if soft > 0:
            self.scale_soft_part(math.sqrt(softness / (1 - softness) * strict / soft))

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that relax the strict kernel."""
        strict = {id(parameter) for parameter in self.strict.parameters()}
        yield from (parameter for parameter in self.parameters() if id(parameter) not in strict)

    def strict_state(self) -> dict[str, Tensor]:
        """Return the entries of the kernel's state with which K is the strict kernel of the layer's weights."""
        return {key: value * 0 for key, value in self.state_dict().items() if not key.startswith("strict.")}

    def adopt_earlier_state(self, state: dict[str, Any], prefix: str) -> None:
        """Rename the entries of a state that an earlier version saved; complete a state of ``R2Conv``."""
        for before, now in {"strict.weights": "weights", **self.earlier}.items():
            rename(state, prefix + before, prefix + now)
        adopt_kernel(self.strict, state, f"{prefix}strict.source.", f"{prefix}kernel.strict.")
        if self.basis is not None and any(key.startswith(f"{prefix}_basisexpansion.") for key in state):
            state.update({f"{prefix}kernel.{name}": value for name, value in self.strict_state().items()})

    def describe(self) -> dict[str, Any]:
        """Return the facts that decide which function the tensors of a state dict stand for."""
        return {**self.strict.describe(), "soft in": list(self.relaxed_subgroups), "soft part": self.way}


class GroupMeans(ExactConstants):
    """Matrices (n, M) on the functions of M group elements, each times the mean over some subgroups."""

    def __init__(self, domain: Domain, **matrices: NDArray[np.float64]) -> None:
        super().__init__()
        for names in ((), ("rotation",), ("reflection",), FIBER_SUBGROUPS):
            mean = mean_matrix(domain.translates([name for name in names if name in domain.subgroups]))
            for name, matrix in matrices.items():
                self.set_constant("_".join([name, *names]), matrix @ mean)

    def averaged(self, name: str, subgroups: Sequence[str] = ()) -> Tensor:
        """Return a matrix for functions that are averaged over some subgroups first, (n, M)."""
        return self.get_buffer("_".join([name, *(of for of in FIBER_SUBGROUPS if of in subgroups)]))


def rename(state: dict[str, Any], before: str, now: str) -> None:
    """Give all entries of a state whose name starts with ``before`` names that start with ``now``."""
    for key in [key for key in state if key.startswith(before)]:
        state[now + key.removeprefix(before)] = state.pop(key)


def adopt_kernel(kernel: Kernel, state: dict[str, Any], before: str, now: str) -> None:
    """Rename the entries of a kernel that an earlier version saved under another name."""
    own: dict[str, Any] = {key: state.pop(key) for key in [*state] if key.startswith(before)}
    rename(own, before, "bank.")
    kernel.adopt_earlier_state(own, "")
    rename(own, "kernel.", now)
    state.update(own)
