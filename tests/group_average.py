"""The action of group elements on kernels by escnn's own matrices: (h K h⁻¹)(d) = ρ_out(h) K(h⁻¹d) ρ_in(h)⁻¹.

Nothing here knows how a layer makes its kernel. Elements must map the grid of taps to itself.
"""

import functools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from errors import ROUNDING, on_grid_elements, relative_error
from escnn.group import GroupElement
from escnn.gspaces import GSpace
from reference import TRANSPOSED, Layer, kernel_types, matrix_of, taps_of
from reference_group import Elements
from torch import Tensor

from escnn_relaxed import harden_network


def kernel_of(layer: Layer) -> Tensor:
    """K of a stationary layer, (C_out, C_in/groups, k, …), as it is between fields."""
    bank = layer.filter_bank()
    return bank.transpose(0, 1) if isinstance(layer, TRANSPOSED) else bank


@functools.cache
def subgroup_elements(space: GSpace, subgroups: tuple[str, ...] = ()) -> list[GroupElement]:
    """The elements on the grid that the named subgroups hold, reflections alone {1, f}; all of them without names."""
    sample = Elements(space, samples=4)
    chosen = [space.fibergroup.identity]
    for element in on_grid_elements(space):
        rotation, reflected = sample.parts(sample.action(element))
        turns = not np.allclose(rotation, np.eye(len(rotation)), rtol=0, atol=1e-6)
        needed = ["rotation"] * turns + ["reflection"] * reflected
        if not subgroups or set(needed) <= set(subgroups):
            chosen.append(element)
    return chosen


def acted(layer: Layer, bank: Tensor, elements: Sequence[GroupElement]) -> Tensor:
    """H K h⁻¹ for each element and a kernel (C_out, C_in/groups, k, …) of the layer: (elements, …)."""
    in_type, out_type = kernel_types(layer)
    results = []
    for h in elements:
        steered = bank.flatten(2)[..., _tap_numbers(layer, h)]
        turned = torch.einsum("oa,abt,bi->oit", matrix_of(out_type, h), steered, matrix_of(in_type, ~h))
        results.append(turned.view_as(bank))
    return torch.stack(results)


def mean_over(layer: Layer, bank: Tensor, *subgroups: str) -> Tensor:
    """P K for some subgroups, or for all."""
    return acted(layer, bank, subgroup_elements(layer.in_type.gspace, subgroups)).mean(dim=0)


def energy(layer: Layer, bank: Tensor) -> Tensor:
    """‖K‖² where the representations are orthogonal, of each kernel (…, C_out, C_in/groups, k, …)."""
    in_type, out_type = kernel_types(layer)
    axes = layer.in_type.gspace.dimensionality
    fields = [
        [torch.from_numpy(np.array(getattr(field, which), dtype=np.float64)) for field in of.representations]
        for of, which in ((out_type, "change_of_basis_inv"), (in_type, "change_of_basis"))
    ]
    inverse, basis = (torch.block_diag(*of) for of in fields)
    orthogonal = torch.einsum("oa,...abt,bi->...oit", inverse, bank.flatten(-axes), basis)
    return orthogonal.square().sum(dim=(-3, -2, -1))


def _tap_numbers(layer: Layer, element: GroupElement) -> list[int]:
    """The number of tap h⁻¹d for each tap d of the flattened grid."""
    taps = np.array(taps_of(layer))
    sources = taps @ np.asarray(layer.in_type.gspace.basespace_action(element)).round()
    return [int(np.abs(taps - source).max(axis=1).argmin()) for source in sources]


@torch.no_grad()
def check_strict_part(layer: Layer, *subgroups: str) -> float:
    """The hardened layer is the mean over the subgroups, and the softness, which is returned, what that leaves out.

    It is half of the mean square of the error, too: mean over h of ‖hKh⁻¹ − K‖² = 2‖K − PK‖² = 2s‖K‖².
    """
    bank = kernel_of(layer)
    moved = acted(layer, bank, subgroup_elements(layer.in_type.gspace, subgroups))
    mean, whole = moved.mean(dim=0), energy(layer, bank)
    found, rest, before = layer.softness(*subgroups).item(), energy(layer, bank - mean), layer.hardened
    # In place where that is all that harden_network does to its copy, which takes longer than the rest.
    hardened = layer if subgroups else harden_network(layer)
    hardened.harden(*subgroups)
    assert relative_error(kernel_of(hardened), mean) <= ROUNDING
    assert hardened.softness(*subgroups).item() <= ROUNDING**2
    layer.hardened = before
    assert found == pytest.approx(float(rest / whole), rel=0, abs=ROUNDING)
    assert float(energy(layer, mean) + rest) == pytest.approx(float(whole), rel=ROUNDING)
    assert float(energy(layer, moved - bank).mean() / whole) == pytest.approx(2 * found, rel=0, abs=ROUNDING)
    return found
