"""Means of linear maps between fields over the subgroups of a group, exact for continuous ones, too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from escnn.group import O2, GroupElement
from escnn.nn import FieldType
from torch import nn

from ..group.domain import Domain
from ..group.elements import element_with_action, rotation_about
from ..group.intertwiners import NearestIntertwiner
from ..group.linear_maps import GroupAverage
from ..group.points import Array
from .config import KernelConfig


def mean_of_maps(config: KernelConfig, names: Sequence[str]) -> nn.Module:
    """Return the mean of maps (C_out, C_in, 1) over the group that some subgroups and the kept group generate."""
    domain, fields = config.domain, (config.in_type, config.out_type)
    if {*domain.sample.subgroups} <= {*names}:
        return _over_group(*fields)
    group = domain.gspace.fibergroup
    if not group.continuous:
        identity = np.abs(domain.sample.action - np.eye(domain.dimension)).max((1, 2)).argmin()
        return _over_elements(*fields, [domain.sample.elements[n] for n in domain.translates(names)[identity]])
    kept, parts = domain.kept, list[nn.Module]()
    if "reflection" in names:
        kept = kept.with_element(domain.sample.reflection)
    parts.append(_over_elements(*fields, _elements(domain, kept.members)))
    if "rotation" in names or (kept.axis is not None and not kept.axis.any()):
        # The rotations are a normal subgroup, so that the mean of the mean is that over all products.
        rotations = (None, -1) if isinstance(group, O2) else "so3"
        parts.append(_over_group(*(field_type.restrict(rotations) for field_type in fields)))
    elif kept.axis is not None:
        # As many turns as the product of two irreps has frequencies.
        count = 1 + sum(max(name[-1] for name in field_type.irreps) for field_type in fields)
        turns = [rotation_about(kept.axis, 2 * math.pi * number / count) for number in range(count)]
        parts.append(_over_elements(*fields, _elements(domain, turns)))
    return nn.Sequential(*parts)


def _over_group(in_type: FieldType, out_type: FieldType) -> nn.Module:
    return NearestIntertwiner(in_type.representations, out_type.representations)


def _over_elements(in_type: FieldType, out_type: FieldType, elements: Sequence[GroupElement]) -> nn.Module:
    if len(elements) == 1:
        return nn.Identity()
    symmetries = [(element, [0]) for element in elements]
    return GroupAverage(in_type.representations, out_type.representations, symmetries)


def _elements(domain: Domain, actions: Iterable[Array]) -> list[GroupElement]:
    """Return the elements of a group that act by some matrices (d, d)."""
    found = [element_with_action(domain.gspace, action) for action in actions]
    return [element for element in found if element is not None]
