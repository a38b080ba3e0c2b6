"""The constants of a reference field: its fields, the vectors that it may have, and its functions of the position."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from escnn.group import Group, Representation
from escnn.gspaces import GSpace
from numpy.typing import NDArray
from torch import Tensor

from ..checks import check_choice, check_sequence
from ..group.domain import Domain, of_fiber_group
from ..group.elements import CUBE, ActingGroup
from ..group.exact_constants import ExactConstants
from ..group.kept import kept_group
from ..group.pointing import Pointing, pointing_fields, space_that_acts
from ..group.points import Array, position_functions
from ..kernel.domain_frequency import DEFAULT_FREQUENCY
from ..kernel.modulation import independent

# The rotations by which SO(2) and O(2) are sampled, as in a layer.
_SAMPLES = 16


class ReferenceParts(ExactConstants):
    """What a reference field is made of, as float64 constants.

    Args:
        gspace: that of the features.
        representation: the fields, or None for the smallest that can point.
        relax: names of the subgroups that the field may break, or ``"default"``.
        keep: the group that it keeps, as of a layer.
    """

    means: dict[tuple[str, ...], Tensor]
    action: Tensor
    frequency: Tensor
    maps: Tensor

    def __init__(self, gspace: GSpace, representation: object, relax: object, keep: Any) -> None:
        super().__init__()
        space = space_that_acts(gspace)
        if space is None:
            raise ValueError(
                f"in_type must be of a group whose action on the plane or on space is known, got {gspace.fibergroup}"
            )
        samples = CUBE if space.dimensionality > 2 else _SAMPLES
        self.domain = Domain(space, samples, kept_group(keep, space, samples))
        if self.domain.is_abstract:
            raise ValueError(
                f"in_type must be of a group of rotations and reflections, got {gspace.fibergroup}, none of whose "
                "elements is known to be one"
            )
        self.relaxes = _checked_subgroups(relax, gspace, self.domain)
        fixed = [name for name in self.domain.sample.subgroups if name not in self.relaxes]
        is_constant = bool(of_fiber_group(self.relaxes))
        self.fields = _checked_fields(representation, space, fixed if is_constant else [], self.domain)
        self.pointing = Pointing(space, self.fields)
        basis = self.pointing.fixed_vectors(fixed, self.domain.kept) if is_constant else np.zeros((self.size, 0))
        if is_constant and not basis.shape[1]:
            raise ValueError(
                f"representation must have a vector that {self.domain.kept} and {fixed or 'nothing else'} fix, got "
                f"{[field.name for field in self.fields]}"
            )
        self.set_constant("means", {names: mean @ basis for names, mean in self.pointing.means().items()})
        frequency = torch.full((space.dimensionality,), DEFAULT_FREQUENCY, dtype=torch.float64)
        self.set_constant("frequency", frequency)
        self.set_constant("action", self.domain.sample.action)
        has_positions = "translation" in self.relaxes
        self.set_constant("maps", self._position_maps() if has_positions else np.zeros((0, self.size, 0)))

    @property
    def size(self) -> int:
        """The number C of channels of the fields."""
        return self.pointing.size

    def constant(self, vector: Tensor, averaged: Collection[str]) -> Tensor:
        """Return the constant field of coordinates (n,), averaged over some subgroups, (C,)."""
        return self.means[of_fiber_group(tuple(averaged))] @ vector

    def functions(self, size: Sequence[int]) -> Tensor:
        """Return the functions of the position at the pixels of an image, (J·M, P)."""
        key = ("functions", tuple(size))
        if any(isinstance(count, torch.SymInt) for count in size):
            return position_functions(self.action, self.frequency, size).flatten(0, 1)
        return self.remembered(key, lambda: position_functions(self.action, self.frequency, size).flatten(0, 1))

    def coefficients(self, weights: Tensor) -> Tensor:
        """Return the coefficients of the functions of the position, (C, J·M), given weights (n,)."""
        return (weights @ self.maps.flatten(1)).view(self.maps.shape[1:])

    def _position_maps(self) -> Array:
        """Return fields that rotations about the centre keep, as maps of the functions of the position, (n, C, J·M)."""
        # mean_g ρ(g) e h_j(g⁻¹x): the group moves its values and its pixels alike, so it is its own turned image.
        sample, size = self.domain.sample, self.domain.reference_size
        values = position_functions(self.exact.action, self.exact.frequency, size).numpy()
        matrices = np.stack([self.pointing.matrix(element) for element in sample.elements]) / len(sample)
        count = len(values)
        maps = np.einsum("jn,mce->jecnm", np.eye(count), matrices).reshape(-1, self.size, count, len(sample))
        fields = np.einsum("acnm,nmp->acp", maps, values)
        chosen = independent(fields)
        sizes = np.sqrt(np.square(fields[chosen]).sum(1).mean(-1))
        scaled: Array = maps[chosen] / sizes[:, None, None, None]
        return scaled.reshape(len(chosen), self.size, count * len(sample))


def _checked_subgroups(relax: object, gspace: GSpace, domain: Domain) -> tuple[str, ...]:
    """Return the names of the subgroups that are to be broken, in order."""
    known = (*domain.sample.subgroups, *(("translation",) if gspace.dimensionality else ()))
    if isinstance(relax, str) and relax == "default":
        names: tuple[Any, ...] = domain.sample.subgroups
    else:
        names = (relax,) if isinstance(relax, str) else check_sequence("relax", relax, "names of subgroups")
    for name in names:
        check_choice("relax", name, known)
    if not names:
        raise ValueError(f"relax must name a subgroup of {gspace.name}, one of {list(known)}, got {relax!r}")
    return tuple([name for name in known if name in names])


def _in_kept_group(fixed: Sequence[str], domain: Domain) -> NDArray[np.bool_]:
    """Return which elements of the sample are in the group that a kept group and some subgroups generate."""
    group, sample = domain.kept, domain.sample
    if "reflection" in fixed and sample.reflected.any():
        group = group.with_element(sample.reflection)
    if "rotation" in fixed:
        return (sample.reflected == 0) | group.has_reflections
    return group.holds(sample.action)


def _checked_fields(
    representation: object, space: GSpace | ActingGroup, fixed: Sequence[str], domain: Domain
) -> tuple[Representation, ...]:
    """Return the representations of the fields, those given or the smallest that have vectors that may be kept."""
    group: Group = space.fibergroup
    if representation is None:

        def has_vectors(field: Representation) -> bool:
            return Pointing(space, [field]).fixed_vectors(fixed, domain.kept).shape[1] > 0

        def keeps_no_more(field: Representation) -> bool:
            pointing = Pointing(space, [field])
            basis = pointing.fixed_vectors(fixed, domain.kept)
            some = basis @ np.sqrt(1.0 + np.arange(basis.shape[1]))
            held = [pointing.is_fixed(some, element) for element in domain.sample.elements]
            return basis.shape[1] > 0 and held == _in_kept_group(fixed, domain).tolist()

        found = pointing_fields(space, keeps_no_more) or pointing_fields(space, has_vectors)
        if not found and domain.kept.name:
            raise ValueError(
                f"keep must leave a part of {group.name} that one of its {len(group.irreps())} irreps here can break, "
                f"got {domain.kept}: give representation=, or a gspace with a higher maximum_frequency"
            )
        return tuple(found or [group.trivial_representation])
    given = (representation,) if isinstance(representation, Representation) else representation
    fields = check_sequence("representation", given, "escnn representations")
    for field in fields:
        if not isinstance(field, Representation):
            raise TypeError(f"representation must be one of escnn's, or several, got {field!r}")
        if field.group != group:
            raise ValueError(f"representation must be of {group.name}, got {field.name} of {field.group.name}")
    if not fields:
        raise ValueError(f"representation must be one field or more, got {representation!r}")
    return fields
