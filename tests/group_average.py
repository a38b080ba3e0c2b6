"""The action of group elements on kernels by escnn's own matrices: (h K h⁻¹)(d) = ρ_out(h) K(h⁻¹d) ρ_in(h)⁻¹.

Nothing here knows how a layer makes its kernel. Elements must map the pixel grid to itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from escnn.group import GroupElement, Representation
from escnn.gspaces import GSpace2D
from reference_coordinates import angle_and_flip
from torch import Tensor
from transformations import on_grid_elements

from escnn_relaxed import RelaxedR2Conv


def subgroup_elements(space: GSpace2D, subgroups: Sequence[str] = ()) -> list[GroupElement]:
    """The identity and the elements on the grid that the named subgroups hold; all of them without names.

    Reflections alone are {1, f}, where f is escnn's reflection without a rotation.
    """
    chosen = [space.fibergroup.identity]
    for element in on_grid_elements(space):
        angle, flip = angle_and_flip(space, element)
        needed = ["rotation"] * (abs(angle) > 1e-9) + ["reflection"] * flip
        if not subgroups or set(needed) <= set(subgroups):
            chosen.append(element)
    return chosen


def acted(layer: RelaxedR2Conv, bank: Tensor, elements: Sequence[GroupElement]) -> Tensor:
    """H K h⁻¹ for each element and a bank (C_out, C_in/groups, k, k) of the layer: (elements, …)."""
    results = []
    in_fields, out_fields = _fields(layer)
    for h in elements:
        steered = bank.flatten(2)[..., _tap_numbers(layer, h)].view_as(bank)
        rho_out, rho_in = _matrix(out_fields, lambda r, g=h: r(g)), _matrix(in_fields, lambda r, g=~h: r(g))
        results.append(torch.einsum("oa,abhw,bi->oihw", rho_out, steered, rho_in))
    return torch.stack(results)


def in_orthogonal_basis(layer: RelaxedR2Conv, bank: Tensor) -> Tensor:
    """B_out⁻¹ K B_in, where B changes the basis of each field from its irreps; (…, C_out, C_in/groups, k, k)."""
    in_fields, out_fields = _fields(layer)
    inverse, basis = (
        _matrix(out_fields, lambda r: r.change_of_basis_inv),
        _matrix(in_fields, lambda r: r.change_of_basis),
    )
    return torch.einsum("oa,...abhw,bi->...oihw", inverse, bank, basis)


def energy(layer: RelaxedR2Conv, bank: Tensor) -> Tensor:
    """‖K‖² where the representations are orthogonal, of each bank (…, C_out, C_in/groups, k, k)."""
    return in_orthogonal_basis(layer, bank).square().sum(dim=(-4, -3, -2, -1))


def _fields(layer: RelaxedR2Conv) -> tuple[list[Representation], list[Representation]]:
    in_fields = layer.in_type.representations
    return list(in_fields[: len(in_fields) // layer.groups]), list(layer.out_type.representations)


def _matrix(fields, entry) -> Tensor:
    return torch.block_diag(*(torch.from_numpy(np.array(entry(field), dtype=np.float64)) for field in fields))


def _tap_numbers(layer: RelaxedR2Conv, element: GroupElement) -> list[int]:
    """The number of tap h⁻¹d for each tap d of the flattened grid, rows from above."""
    line = np.arange(layer.kernel_size) - (layer.kernel_size - 1) / 2
    taps = [(x, -y) for y in line for x in line]
    known = {(round(2 * x), round(2 * y)): number for number, (x, y) in enumerate(taps)}
    inverse = layer.in_type.gspace.basespace_action(~element)
    sources = [inverse @ np.array(tap) for tap in taps]
    return [known[round(2 * x), round(2 * y)] for x, y in sources]
