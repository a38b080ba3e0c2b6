"""A layer of volumes equals R3Conv with its weights plus the soft part by plain loops: values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import volumes
from escnn import gspaces
from escnn import nn as enn
from escnn.group import GroupElement
from escnn.gspaces import GSpace3D
from escnn.nn import FieldType
from layers import shake
from reference_in_space import ModulationInSpace, OracleInSpace
from tolerances import ROUNDING, SINGLE
from transformations import relative_error

from escnn_relaxed import ContinuousKernel, RelaxedR3Conv

FREQUENCY = {"position": 0.2, "rotation": 0.3, "reflection": 0.7}
KERNEL = ContinuousKernel(hidden_size=3, filter_frequency=FREQUENCY)


def built(in_type: FieldType, out_type: FieldType, **options: Any) -> RelaxedR3Conv:
    options = {"kernel": KERNEL, "initial_softness": 0.3, "bias": False, "learn_relaxation": True, **options}
    of = RelaxedR3Conv(in_type, out_type, 3, **options).double()
    shake(of)
    return of


def oracle_of(of: RelaxedR3Conv, kept: list[Any] | None = None, about_axis: bool = False) -> OracleInSpace:
    group = of.space.fibergroup
    if group.continuous:
        of_space = group.name in ("SO(3)", "O(3)")
        elements = list(group.grid(type="cube") if of_space else group.grid(type="regular", N=24))
    else:
        elements = list(group.elements)
    return OracleInSpace(of, elements, FREQUENCY, kept or [group.identity], about_axis)


def compare(of: RelaxedR3Conv, oracle: OracleInSpace, sides: tuple[int, int, int] = (3, 4, 3)) -> None:
    """Values and gradients of an output, the strict part aside."""
    features = torch.randn(2, of.in_type.size, *sides, dtype=torch.float64)
    strict = torch.nn.functional.conv3d(
        features, of._strict_part.kernel(), stride=of.stride, dilation=of.dilation, groups=of.groups
    )
    found, expected = of(of.in_type(features)).tensor - strict, oracle(features)
    assert expected.norm() > 0.1 * strict.norm()
    assert relative_error(found.detach(), expected.detach()) <= ROUNDING
    direction = torch.randn_like(found)
    soft = [value for name, value in of.named_parameters() if name != "weights"]
    pairs = [torch.autograd.grad(value, soft, direction, allow_unused=True) for value in (found, expected)]
    for ours, theirs in zip(*pairs, strict=True):
        assert relative_error(ours, theirs) <= ROUNDING


FAST = ["SO(3)", "octahedral", "C4", "SO(2)", "inversion", "mirror"]
SLOW = [pytest.param(space, marks=pytest.mark.slow) for space in ("O(3)", "cone 4")]


@pytest.mark.parametrize("space", [*FAST, *SLOW])
def test_soft_part_equals_the_loops(space: str) -> None:
    fields = volumes.fields(space)
    of = built(fields, FieldType(fields.gspace, fields.representations[:2][::-1]))
    compare(of, oracle_of(of))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"stride": 2, "relax": {"reflection": 0.3}}, {"dilation": 2}], ids=str)
def test_soft_part_equals_the_loops_with_stride_and_dilation(options: dict[str, Any]) -> None:
    fields = volumes.fields("cone 4")
    of = built(fields, fields, **options)
    compare(of, oracle_of(of), (5, 5, 6))


@pytest.mark.slow
def test_soft_part_equals_the_loops_for_regular_fields() -> None:
    gspace = volumes.gspace("octahedral")
    of = built(FieldType(gspace, [gspace.regular_repr]), FieldType(gspace, [gspace.regular_repr]))
    compare(of, oracle_of(of), (3, 3, 3))


def test_kept_groups_equal_the_loops() -> None:
    fields = volumes.fields("octahedral")
    group = fields.fibergroup
    about_axis = built(fields, fields, keep="SO(2)")
    compare(about_axis, oracle_of(about_axis, about_axis=True), (3, 3, 3))
    turns = [element for element in group.elements if volumes.about_z(fields.gspace, element)]
    finite = built(fields, fields, keep=(False, 4))
    compare(finite, oracle_of(finite, turns), (3, 3, 3))


def turns_about_z(space: GSpace3D, order: int) -> list[GroupElement]:
    found = [element for element in space.fibergroup.elements if volumes.about_z(space, element)]
    return found[:: len(found) // order]


def half_turn_about_x(space: GSpace3D) -> GroupElement:
    actions = {element: np.asarray(space.basespace_action(element)) for element in space.fibergroup.elements}
    return next(element for element, of in actions.items() if np.allclose(of, np.diag([1, -1, -1])))


def tied_to(space: str, keep: Any = None, fields: FieldType | None = None) -> RelaxedR3Conv:
    """A layer of the default form, ω′ learned, far from strict."""
    fields = fields or volumes.fields(space)
    options = {} if keep is None else {"keep": keep}
    of = RelaxedR3Conv(fields, fields, 3, initial_softness=0.3, learn_relaxation=True, bias=False, **options).double()
    shake(of)
    return of


def compare_modulation(of: RelaxedR3Conv, loops: ModulationInSpace) -> None:
    """Values and gradients of K at a corner, on an edge, in a face and in the centre."""
    taps = [0, 1, 12, 13]
    strict = of._strict_part.kernel().flatten(2)[..., taps]
    inside = [loops(loops.oracle.outputs, loops.oracle.taps()[tap], (0.0, 0.0, 0.0)) for tap in taps]
    found, expected = of._kernel().flatten(2)[..., taps], strict * (1 + torch.stack(inside, -1).unsqueeze(1))
    assert (found - strict).norm() > 0.05 * strict.norm()
    assert relative_error(found.detach(), expected.detach()) <= ROUNDING
    parameters, direction = list(of.parameters()), torch.randn_like(found)
    pairs = [torch.autograd.grad(value, parameters, direction) for value in (found, expected)]
    for ours, theirs in zip(*pairs, strict=True):
        assert relative_error(ours, theirs) <= ROUNDING


@pytest.mark.parametrize("space", ["octahedral", "SO(3)", "D4", "cone 4", "mirror"])
def test_tied_kernel_equals_the_loops(space: str) -> None:
    of = tied_to(space)
    compare_modulation(of, ModulationInSpace(of, oracle_of(of)))


@pytest.mark.parametrize("order", [1, 4])
def test_tied_kernel_that_keeps_a_finite_group_equals_the_loops(order: int) -> None:
    space = volumes.gspace("octahedral")
    turns = turns_about_z(space, order)
    flip = half_turn_about_x(space)
    kept = [*turns, *(turn @ flip for turn in turns)]
    of = tied_to("octahedral", [turns[-1], flip], FieldType(space, [space.irrep(1), space.regular_repr]))
    compare_modulation(of, ModulationInSpace(of, oracle_of(of, kept)))


def test_tied_kernel_that_keeps_an_axis_equals_the_loops() -> None:
    of = tied_to("octahedral", "SO(2)")
    compare_modulation(of, ModulationInSpace(of, oracle_of(of, about_axis=True)))


@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("field", ["regular", "irrep"])
def test_tied_kernel_about_an_axis_sees_cosets(order: int, field: str) -> None:
    """The coordinate of a rotation by θ is that of a rotation by nθ, as in the plane."""
    space = gspaces.rot2dOnR3(8)
    fields = FieldType(space, [space.regular_repr if field == "regular" else space.irrep(1)])
    of = tied_to("", order, fields)
    compare_modulation(of, ModulationInSpace(of, oracle_of(of, turns_about_z(space, order)), fold=order))


def test_tied_kernel_about_an_axis_counts_kept_turns_without_mirrors() -> None:
    space = gspaces.conicalOnR3(8)
    actions = {element: np.asarray(space.basespace_action(element)) for element in space.fibergroup.elements}
    half_turn = next(element for element, of in actions.items() if np.allclose(of, np.diag([-1, -1, 1])))
    mirror = next(element for element, of in actions.items() if np.allclose(of, np.diag([1, -1, 1])))
    kept = [space.fibergroup.identity, half_turn, mirror, half_turn @ mirror]
    of = tied_to("", [half_turn, mirror], FieldType(space, [space.regular_repr]))
    compare_modulation(of, ModulationInSpace(of, oracle_of(of, kept), fold=2))


@pytest.mark.parametrize("space", ["SO(3)", "octahedral", "O(3)", "D4", "dihedral", "cone", "trivial"])
def test_strict_layer_is_r3conv(space: str) -> None:
    fields = volumes.fields(space)
    options: dict[str, Any] = {"padding": 1, "stride": 2, "bias": True}
    theirs = enn.R3Conv(fields, fields, 3, **options)
    shake(theirs)
    ours = RelaxedR3Conv(fields, fields, 3, relax=None, **options)
    assert not ours.load_state_dict(theirs.state_dict()).missing_keys
    features = fields(torch.randn(2, fields.size, 5, 6, 5))
    with torch.no_grad():
        assert relative_error(ours(features).tensor, theirs(features).tensor) <= SINGLE
