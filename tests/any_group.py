"""Fields of direct products, and irreps and Fourier fields of continuous groups, with the linear maps between them."""

from collections.abc import Callable, Sequence

import torch
from errors import relative_error
from escnn import group, gspaces
from escnn.group import Group, GroupElement
from escnn.nn import FieldType
from reference import matrix_of
from small import shake
from torch import Tensor

from escnn_relaxed import RelaxedLinear

# Means over a group beside what the package computes, in float64.
EXACT = 1e-10
PRODUCTS: dict[str, Callable[[], Group]] = {
    "Klein": group.klein4_group,
    "C2 x C2": lambda: group.direct_product(group.cyclic_group(2), group.cyclic_group(2)),
    "C2 x C3": lambda: group.direct_product(group.cyclic_group(2), group.cyclic_group(3)),
    "C3 x C3": lambda: group.direct_product(group.cyclic_group(3), group.cyclic_group(3)),
    "C4 x C2": lambda: group.direct_product(group.cyclic_group(4), group.cyclic_group(2)),
    "D3 x C2": lambda: group.direct_product(group.dihedral_group(3), group.cyclic_group(2)),
    "C2 x C2 x C2": lambda: group.direct_product(PRODUCTS["C2 x C2"](), group.cyclic_group(2)),
}


def regular(name: str, count: int = 2) -> FieldType:
    """Regular fields of a direct product."""
    of = PRODUCTS[name]()
    return FieldType(gspaces.no_base_space(of), [of.regular_representation] * count)


def all_irreps(name: str) -> FieldType:
    """Each irrep of a direct product, none of whose channels belongs to an element."""
    of = PRODUCTS[name]()
    return FieldType(gspaces.no_base_space(of), [*of.irreps(), of.irreps()[0]])


def fourier(name: str) -> FieldType:
    """Irreps, a Fourier field and a tensor product, whose change of basis is not the identity."""
    if name == "SO(2)":
        of: Group = group.so2_group(5)
        fields = [of.irrep(0), of.irrep(2), of.bl_regular_representation(2), of.irrep(1).tensor(of.irrep(2))]
    elif name == "O(2)":
        of = group.o2_group(6)
        fields = [
            of.irrep(0, 0),
            of.irrep(1, 0),
            of.bl_regular_representation(2),
            of.irrep(1, 1).tensor(of.irrep(1, 2)),
        ]
    elif name == "SO(3)":
        of = group.so3_group(4)
        fields = [of.irrep(0), of.irrep(1), of.irrep(1), of.bl_regular_representation(2)]
        fields += [of.irrep(2).tensor(of.irrep(2))]
    else:
        of = group.o3_group(3)
        fields = [
            of.irrep(0, 0),
            of.irrep(1, 1),
            of.bl_regular_representation(1),
            of.irrep(1, 1).tensor(of.irrep(0, 2)),
        ]
    return FieldType(gspaces.no_base_space(of), fields)


CONTINUOUS = ("SO(2)", "O(2)", "SO(3)", "O(3)")


def build(in_type: FieldType, out_type: FieldType | None = None, **options: object) -> RelaxedLinear:
    """A layer in float64, far from strict."""
    layer = RelaxedLinear(in_type, in_type if out_type is None else out_type, **{"initial_softness": 0.3, **options})
    shake(layer.double())
    return layer


def matrices(field_type: FieldType, elements: Sequence[GroupElement]) -> Tensor:
    return torch.stack([matrix_of(field_type, g) for g in elements])


def mean_over(layer: RelaxedLinear, elements: Sequence[GroupElement]) -> Tensor:
    """The mean of ρ_out(g) W ρ_in(g)⁻¹ over elements."""
    left, right = matrices(layer.out_type, elements), matrices(layer.in_type, [~g for g in elements])
    return (left @ layer.matrix.detach() @ right).mean(0)


def breaks(layer: RelaxedLinear, elements: Sequence[GroupElement]) -> float:
    """The largest relative distance of ρ_out(g) W and W ρ_in(g)."""
    matrix = layer.matrix.detach()
    pairs = zip(matrices(layer.out_type, elements), matrices(layer.in_type, elements), strict=True)
    return max(relative_error(left @ matrix, matrix @ right) for left, right in pairs)
