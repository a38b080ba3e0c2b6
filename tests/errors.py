"""Elements that act on feature maps of the plane and of space, errors of equivariance, and how large they may be."""

import functools
from collections.abc import Callable

import numpy as np
import torch
from escnn.group import GroupElement
from escnn.gspaces import GSpace
from escnn.nn import EquivariantModule, FieldType
from reference_group import matrix, sampled
from torch import Tensor

# Tolerances: the distance that two right results may have. A test with a bound of its own says why beside it.
# float64.
ROUNDING = 1e-12  # sums of some hundred terms, in two orders; found: 1e-15 to 6e-15
FEW_TERMS = 1e-14  # a few sines, quotients or products of numbers of order one; found: 1e-16
DECOMPOSED = 1e-9  # through an eigenvalue problem, or escnn's matrices of fields as sums over irreps; found: 1e-12

# float32, also of float64 features on escnn's bases, which are sampled in float32.
SINGLE = 1e-6  # the same sums; found: 2e-7
SINGLE_REORDERED = 1e-5  # sums of some hundred terms in two orders, or several layers one after the other; found: 1e-6

# Values that are not equal differ by this: well above 1e-3. A layer whose softness starts at 0.3 errs by about 0.5.
BROKEN = 1e-2


@functools.cache
def on_grid_elements(space: GSpace) -> list[GroupElement]:
    """Elements that map a grid of equal sides to itself, without the identity; of a continuous group quarter turns."""
    group = space.fibergroup
    # escnn's cosines are exact to rounding.
    return [
        g
        for g in sampled(group, samples=4)
        if g != group.identity and np.abs((of := space.basespace_action(g)) - of.round()).max() < 1e-9
    ]


def rotations(space: GSpace) -> list[GroupElement]:
    """Those of :func:`on_grid_elements` that are rotations."""
    return [g for g in on_grid_elements(space) if np.linalg.det(space.basespace_action(g)) > 0]


def reflections(space: GSpace) -> list[GroupElement]:
    """Those of :func:`on_grid_elements` that reflect."""
    return [g for g in on_grid_elements(space) if np.linalg.det(space.basespace_action(g)) < 0]


def fiber_action(features: Tensor, field_type: FieldType, element: GroupElement) -> Tensor:
    """ρ(g) on the channels, from escnn's matrices field by field."""
    parts = features.split([field.size for field in field_type.representations], dim=1)
    matrices = [torch.from_numpy(matrix(field, element)) for field in field_type.representations]
    acted = [torch.einsum("oc,bc...->bo...", m.to(part), part) for m, part in zip(matrices, parts, strict=True)]
    return torch.cat(acted, dim=1)


def transform(features: Tensor, field_type: FieldType, element: GroupElement) -> Tensor:
    """(g f)(x) = ρ(g) f(g⁻¹x) about the centre of the image; a quarter turn swaps two of its sides."""
    if features.dim() == 2:
        return fiber_action(features, field_type, element)
    size = np.array(features.shape[2:])
    # Of (x, y, z): y and z are against the rows and the planes, which come first.
    signs = np.diag([1] + [-1] * (len(size) - 1))
    action = (signs @ field_type.gspace.basespace_action(element).round().astype(int) @ signs)[::-1, ::-1]
    new_size = np.abs(action) @ size
    # Twice the position, so that it is an integer for odd and for even sides.
    doubled = [2 * at - (side - 1) for at, side in zip(np.indices(new_size), new_size, strict=True)]
    source = np.einsum("ji,j...->i...", action, np.stack(doubled))
    places = [(at + side - 1) // 2 for at, side in zip(source, size, strict=True)]
    return fiber_action(features[(..., *places)], field_type, element)


def shift(features: Tensor, *pixels: int) -> Tensor:
    """Shift on the torus."""
    return features.roll(pixels, dims=tuple(range(-len(pixels), 0)))


def relative_error(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖."""
    return float(((found - expected).norm() / expected.norm()).detach())


def answer_to(module: EquivariantModule, features: Tensor) -> Tensor:
    """Return a module's output for a feature map of its type, without a gradient."""
    with torch.no_grad():
        answer: Tensor = module(module.in_type(features)).tensor
    return answer


def equivariance_error(module: EquivariantModule, features: Tensor, element: GroupElement) -> float:
    """Relative error ‖f(gx) − g f(x)‖ / ‖f(x)‖."""
    return largest_error(module, features, lambda space: [element])


def largest_error(
    module: EquivariantModule, features: Tensor, elements: Callable[[GSpace], list[GroupElement]] = on_grid_elements
) -> float:
    """The largest error ‖f(gx) − g f(x)‖ / ‖f(x)‖ over elements g of the module's symmetry."""
    chosen = elements(module.in_type.gspace)
    assert chosen, "no element to check"
    answer = answer_to(module, features)
    return max(
        relative_error(
            answer_to(module, transform(features, module.in_type, element)), transform(answer, module.out_type, element)
        )
        for element in chosen
    )


def shift_error(module: EquivariantModule, features: Tensor, *pixels: int) -> float:
    """Relative error under a shift on the torus, by default of a row and two columns."""
    pixels = pixels or (*[0] * (features.dim() - 4), 1, 2)
    answer_to_shifted = answer_to(module, shift(features, *pixels))
    return relative_error(answer_to_shifted, shift(answer_to(module, features), *pixels))
