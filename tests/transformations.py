"""Group elements acting on feature maps: exactly where they map the pixel grid to itself."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from escnn.group import GroupElement, Representation
from escnn.gspaces import GSpace2D
from escnn.nn import EquivariantModule, FieldType
from torch import Tensor


@functools.cache
def on_grid_elements(space: GSpace2D) -> list[GroupElement]:
    """Elements that map a square pixel grid to itself, without the identity."""
    group = space.fibergroup
    elements = group.grid(type="regular", N=4) if group.continuous else group.elements
    return [g for g in elements if g != group.identity and _is_integer(space.basespace_action(g))]


def rotations(space: GSpace2D) -> list[GroupElement]:
    """Those of :func:`on_grid_elements` that are rotations."""
    return [g for g in on_grid_elements(space) if np.linalg.det(space.basespace_action(g)) > 0]


def reflections(space: GSpace2D) -> list[GroupElement]:
    """Those of :func:`on_grid_elements` that reflect."""
    return [g for g in on_grid_elements(space) if np.linalg.det(space.basespace_action(g)) < 0]


def _is_integer(action: np.ndarray) -> bool:
    # escnn's cosines are exact to rounding.
    return np.allclose(action, action.round(), rtol=0, atol=1e-9)


def fiber_action(features: Tensor, field_type: FieldType, element: GroupElement) -> Tensor:
    """ρ(g) on the channels, from escnn's matrices field by field."""
    parts = features.split([field.size for field in field_type.representations], dim=1)
    matrices = [_matrix(field, element) for field in field_type.representations]
    return torch.cat(
        [torch.einsum("oc,bchw->bohw", m.to(part), part) for m, part in zip(matrices, parts, strict=True)], dim=1
    )


@functools.cache
def _matrix(field: Representation, element: GroupElement) -> Tensor:
    """ρ(g) of one field, which escnn puts together from irreps in every call."""
    return torch.from_numpy(np.array(field(element), dtype=np.float64))


def transform(features: Tensor, field_type: FieldType, element: GroupElement) -> Tensor:
    """(g f)(x) = ρ(g) f(g⁻¹x) about the centre of the image; a quarter turn swaps height and width."""
    action = field_type.gspace.basespace_action(element).round().astype(int)
    height, width = features.shape[-2:]
    swaps = action[0, 0] == 0
    new_height, new_width = (width, height) if swaps else (height, width)
    rows, columns = np.meshgrid(np.arange(new_height), np.arange(new_width), indexing="ij")
    # Twice the position, so that it is an integer for odd and for even sizes; y up.
    doubled = np.stack([2 * columns - (new_width - 1), (new_height - 1) - 2 * rows])
    source = np.einsum("ji,jhw->ihw", action, doubled)
    source_columns, source_rows = (source[0] + width - 1) // 2, (height - 1 - source[1]) // 2
    return fiber_action(features[..., source_rows, source_columns], field_type, element)


def shift(features: Tensor, rows: int, columns: int) -> Tensor:
    """Shift on the torus."""
    return features.roll((rows, columns), dims=(-2, -1))


def relative_error(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖."""
    return float((found - expected).norm() / expected.norm())


def answer_to(module: EquivariantModule, features: Tensor) -> Tensor:
    """Return a module's answer to features of its type, without a gradient."""
    with torch.no_grad():
        answer: Tensor = module(module.in_type(features)).tensor
    return answer


def equivariance_error(module: EquivariantModule, features: Tensor, element: GroupElement) -> float:
    """Relative error ‖f(gx) − g f(x)‖ / ‖f(x)‖."""
    return largest_error(module, features, lambda space: [element])


def largest_error(
    module: EquivariantModule,
    features: Tensor,
    elements: Callable[[GSpace2D], list[GroupElement]] = on_grid_elements,
) -> float:
    """The largest error ‖f(gx) − g f(x)‖ / ‖f(x)‖ over elements g of the module's symmetry."""
    chosen = elements(module.in_type.gspace)
    assert chosen, "no element to check"
    answer = answer_to(module, features)
    return max(
        relative_error(
            answer_to(module, transform(features, module.in_type, element)),
            transform(answer, module.out_type, element),
        )
        for element in chosen
    )


def shift_error(module: EquivariantModule, features: Tensor, rows: int = 1, columns: int = 2) -> float:
    """Relative error under a shift on the torus."""
    answer_to_shifted = answer_to(module, shift(features, rows, columns))
    return relative_error(answer_to_shifted, shift(answer_to(module, features), rows, columns))
