"""The action of rotations and reflections on the channels of fields, and the elements of a symmetry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from escnn.group import GroupElement
from escnn.gspaces import GSpace, GSpace2D, GSpace3D
from escnn.nn import EquivariantModule, FieldType, GeometricTensor
from torch import Tensor, nn

from ..checks import check_sequence
from ..group.acting_element import element_with_action
from ..group.elements import sample_group
from ..group.rotation_grids import least_samples
from ..layer.arguments import check_field_type
from .isometry import Isometry, turn_or_flip

__all__ = ["input_type", "isometries_of", "on_fibers", "takes_geometric_tensor"]

# Rotations that a continuous group is measured on, if those of the grid are fewer.
_ROTATIONS = 16


def on_fibers(features: Tensor, field_type: FieldType, isometry: Isometry, place: str) -> Tensor:
    """Apply ρ(g) to the channels (batch, C, …), g the element that acts on the base space as the isometry does.

    Args:
        features: channels of the field type.
        field_type: trivial fields are left as they are by every isometry, of their group or not.
        isometry: what is done to the image.
        place: ``"input"`` or ``"output"``, for the error.

    Raises:
        ValueError: where a field is not trivial and the group has no such element.
    """
    if isometry.subgroup == "translation" or all(field.is_trivial() for field in field_type.representations):
        return features
    element = element_with_action(field_type.gspace, isometry.matrix)
    if element is None:
        raise ValueError(
            f"angles and elements: the fields of the {place} are of {field_type.gspace.name}, which holds no "
            f"{isometry.name}; take its own elements, or an input and an output of trivial fields or without space"
        )
    matrices = {
        field: torch.from_numpy(np.asarray(field(element))).to(features) for field in set(field_type.representations)
    }
    parts = features.split([field.size for field in field_type.representations], dim=1)
    turned = [
        torch.einsum("oc,bc...->bo...", matrices[field], part)
        for field, part in zip(field_type.representations, parts, strict=True)
    ]
    return torch.cat(turned, dim=1)


def isometries_of(gspace: GSpace, elements: Sequence[GroupElement] | None) -> list[Isometry]:
    """Return the isometries of elements: by default of all but the identity, of a continuous group of a sample.

    Raises:
        TypeError: for what is no element of the fiber group.
    """
    if elements is None:
        group = gspace.fibergroup
        sample = sample_group(gspace, max(_ROTATIONS, least_samples(group)))
        elements = [element for element in sample.elements if element != group.identity]
    for element in check_sequence("elements", elements, "elements of the fiber group"):
        if not isinstance(element, GroupElement) or element.group != gspace.fibergroup:
            raise TypeError(f"elements must be of {gspace.fibergroup.name}, got {element!r}")
    return [turn_or_flip(gspace, element) for element in elements]


def input_type(network: nn.Module, given: Any) -> FieldType:
    """Return the fields of a network's input: those given, its own, or those of the first module inside that has some.

    Raises:
        TypeError: for anything but a field type.
        ValueError: if nothing says what they are, or they are neither of the plane nor of space.
    """
    own = (getattr(module, "in_type", None) for module in network.modules())
    found = next((field_type for field_type in own if isinstance(field_type, FieldType)), None)
    if given is not None or found is not None:
        return check_field_type("in_type", found if given is None else given, GSpace2D, GSpace3D)
    raise ValueError(f"in_type: {type(network).__name__} does not say which fields it takes; give in_type=FieldType(…)")


def takes_geometric_tensor(network: nn.Module, data: object) -> bool:
    """Return whether the forward pass takes a GeometricTensor: the data are one, or the module is one of escnn's."""
    if isinstance(data, GeometricTensor):
        return True
    while isinstance(network, nn.Sequential) and len(network):
        network = network[0]
    return isinstance(network, EquivariantModule)
