"""The base of kernels that relax a strict one by something else than ω′."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ..checks import FIBER_SUBGROUPS
from ..group.domain import Domain
from ..group.elements import has_subgroup
from ..group.exact_constants import ExactConstants
from ..group.means import mean_matrix
from .kernel import Kernel, KernelBuilder, KernelPlace
from .strict import StrictKernel

__all__ = ["GroupMeans", "RelaxingKernel"]


class RelaxingKernel(Kernel):
    """A kernel of the plane that relaxes ``strict``, whose weights are the layer's or its own. A subclass says how."""

    default_softness = 0.01
    way: ClassVar[str]  # the name of what relaxes K

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

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that relax the strict kernel."""
        strict = {id(parameter) for parameter in self.strict.parameters()}
        yield from (parameter for parameter in self.parameters() if id(parameter) not in strict)

    def strict_state(self) -> dict[str, Tensor]:
        """Return the entries of the state with which K is the strict kernel: all that relaxes it is 0."""
        return {key: value * 0 for key, value in self.state_dict().items() if not key.startswith("strict.")}

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
