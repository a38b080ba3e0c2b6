"""RelaxedR3Conv: exact where it is strict, as soft as it says, and exact for what it keeps and nothing else."""

from __future__ import annotations

import io
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import volumes
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType
from layers import shake
from tolerances import BROKEN, ROUNDING, SINGLE
from transformations import relative_error

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, RelaxedR3Conv
from escnn_relaxed.group.elements import grid_symmetries
from escnn_relaxed.group.points import tap_grid

EVERY_SPACE = pytest.mark.parametrize("space", volumes.SPACES)
SOFT_SPACES = [name for name in volumes.SPACES if name != "trivial"]


@EVERY_SPACE
def test_strict_layer_is_exact_under_all_voxel_symmetries(space: str) -> None:
    fields = volumes.fields(space)
    strict = volumes.layer(fields, relax=None, initial_softness=None)
    shake(strict)
    elements = volumes.voxel_symmetries(fields.gspace)
    assert max(volumes.errors(strict, elements)) <= ROUNDING


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 5},
        {"kernel_size": 2},
        {"kernel_size": 4, "padding": 1},
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": 3, "dilation": 2, "padding": 2},
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
    ],
    ids=str,
)
@pytest.mark.parametrize("space", ["octahedral", "O(3)"])
def test_strict_layer_is_exact_for_every_geometry(space: str, options: dict[str, Any]) -> None:
    fields = volumes.fields(space)
    strict = volumes.layer(fields, relax=None, initial_softness=None, **options)
    assert max(volumes.errors(strict, volumes.voxel_symmetries(fields.gspace), size=9)) <= ROUNDING
    soft = volumes.layer(fields, initial_softness=0.2, **options)
    assert max(volumes.errors(soft, volumes.voxel_symmetries(fields.gspace), size=9)) > BROKEN
    soft.harden()
    assert max(volumes.errors(soft, volumes.voxel_symmetries(fields.gspace), size=9)) <= ROUNDING


@pytest.mark.parametrize("space", SOFT_SPACES)
def test_soft_part_has_no_strict_part(space: str) -> None:
    """P K_soft = 0, P the mean over the voxel symmetries written out."""
    fields = volumes.fields(space)
    of = volumes.layer(fields)
    soft = (of.filter_bank() - of._strict_part.kernel()).detach().flatten(2)
    symmetries = grid_symmetries(fields.gspace, tap_grid(3, dimension=3))
    matrices = [
        [torch.from_numpy(np.asarray(fields.representation(e))) for e in (element, ~element)]
        for element, _ in symmetries
    ]
    turned = [
        left @ soft[..., steered].permute(2, 0, 1) @ right
        for (left, right), (_, steered) in zip(matrices, symmetries, strict=True)
    ]
    projected = sum(turned) / len(turned)
    assert soft.norm() > 0.1
    # Only where the symmetries of the voxels are all of the group is their mean P.
    if len(symmetries) == len(of.bank.frame.sample):
        assert projected.norm() <= ROUNDING * soft.norm()


@pytest.mark.parametrize(
    "space", ["octahedral", "full octahedral", "SO(3)", "D4", "cone 4", "full cylinder 2", "inversion"]
)
def test_mean_square_error_is_twice_the_softness(space: str) -> None:
    """Of kernels, whose error on white noise has this expectation: mean over g of ‖gK − K‖² / ‖K‖² = 2s."""
    fields = volumes.fields(space)
    of = volumes.layer(fields, initial_softness=0.05)
    bank = of.filter_bank().detach().flatten(2)
    errors = []
    for element, steered in grid_symmetries(fields.gspace, tap_grid(3, dimension=3)):
        left, right = (torch.from_numpy(np.asarray(fields.representation(e))) for e in (element, ~element))
        turned = torch.einsum("ab,bct,cd->adt", left, bank[..., steered], right)
        errors.append(float((turned - bank).square().sum() / bank.square().sum()))
    assert np.mean(errors) == pytest.approx(2 * of.softness().item(), rel=1e-9)
    assert of.softness().item() == pytest.approx(0.05, rel=0.5 if len(errors) < 3 else 1e-3)


KEPT = {
    "octahedral, about the axis": ("octahedral", "SO(2)"),
    "octahedral, C4": ("octahedral", (False, 4)),
    "octahedral, C2": ("octahedral", (False, 2)),
    "SO(3), about the axis": ("SO(3)", "SO(2)"),
    "SO(3), SO(2) by its id": ("SO(3)", (False, -1)),
    "SO(3), dihedral": ("SO(3)", (True, -1)),
    "SO(3), octahedral": ("O(3)", (False, "octa")),
    "O(3), cone": ("O(3)", ("cone", -1)),
    "D4, C4": ("D4", (None, 4)),
}


@pytest.mark.parametrize(("space", "keep"), KEPT.values(), ids=KEPT)
def test_kept_group_is_exact_and_nothing_else(space: str, keep: Any) -> None:
    fields = volumes.fields(space)
    of = volumes.layer(fields, keep=keep, initial_softness=0.3, kernel=ContinuousKernel(filter_frequency=0.3))
    elements = volumes.voxel_symmetries(fields.gspace)
    kept = [of._kept.holds(np.asarray(fields.gspace.basespace_action(element))) for element in elements]
    assert 1 < sum(kept) < len(kept)
    for is_kept, error in zip(kept, volumes.errors(of, elements), strict=True):
        assert error <= ROUNDING if is_kept else error > BROKEN


def test_kept_axis_is_kept_off_the_voxel_grid() -> None:
    """The coordinates of the domain do not change at all under turns about z by any angle."""
    fields = volumes.fields("SO(3)")
    frame = volumes.layer(fields, keep="SO(2)").bank.frame
    angle = 0.3
    turn = np.array([[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0], [0, 0, 1]])
    rotation = frame.sample.rotation
    before, after = (frame._domain_coordinates(of, np.zeros(24))["rotation"] for of in (rotation, turn @ rotation))
    assert before.shape == (24, 3)
    assert np.abs(before - after).max() <= 1e-15  # a product of matrices


def test_softness_in_any_subgroup_names_what_survives() -> None:
    fields = volumes.fields("octahedral")
    of = volumes.layer(fields, keep=(False, 4), initial_softness=0.3)
    group = fields.fibergroup
    assert of.softness_in((False, 4)).item() <= 1e-20
    assert of.softness_in((False, 2)).item() <= 1e-20
    assert of.softness_in((False, 3)).item() > BROKEN
    half_turn = [e for e in group.elements if np.isclose(fields.gspace.basespace_action(e)[2, 2], -1)][:1]
    assert of.softness_in(half_turn).item() > BROKEN
    assert of.softness_in(group.elements).item() == pytest.approx(of.softness().item())
    (gradient,) = torch.autograd.grad(of.softness_in((False, 3)), [of.bank.steered_average.block_pairs[0].weights])
    assert gradient.any()
    icosahedral = volumes.layer(volumes.fields("icosahedral"))
    with pytest.raises(ValueError, match="subgroup must map voxels to voxels"):
        icosahedral.softness_in((False, 5))
    with pytest.raises(ValueError, match=r"subgroup must be the id of a subgroup of Octahedral.*got 'nonsense'"):
        of.softness_in("nonsense")
    with pytest.raises(ValueError, match=r"subgroup must be finite, got 'SO\(2\)'"):
        of.softness_in("SO(2)")
    with pytest.raises(ValueError, match=r"subgroup must be the id of a subgroup of Octahedral.*got \[\]"):
        of.softness_in([])
    with pytest.raises(ValueError, match="subgroup must be elements of Octahedral"):
        of.softness_in([volumes.gspace("C4").fibergroup.identity])
    with pytest.raises(ValueError, match="subgroup must be finite"):
        volumes.layer(volumes.fields("SO(3)")).softness_in((False, -1))


def test_rotation_and_reflection_are_soft_one_by_one() -> None:
    fields = volumes.fields("full octahedral")
    only = volumes.layer(fields, relax={"reflection": 0.25}, initial_softness=0.3)
    assert only.softness("rotation").item() <= 1e-20 < BROKEN < only.softness("reflection").item()
    both = volumes.layer(fields, initial_softness=0.3)
    assert min(both.softness(name).item() for name in ("rotation", "reflection")) > 1e-3
    both.harden("rotation")
    turns = [e for e in volumes.voxel_symmetries(fields.gspace) if np.linalg.det(fields.gspace.basespace_action(e)) > 0]
    assert max(volumes.errors(both, turns)) <= ROUNDING


def test_chords_are_those_of_the_plane() -> None:
    """A layer about z has the kernel coordinates of the plane: the squared chord of two elements is 2 − 2 cos Δ."""
    plane = RelaxedR2Conv(*[FieldType(gspaces.rot2dOnR2(8), [gspaces.rot2dOnR2(8).trivial_repr])] * 2, 3)
    scalar = FieldType(gspaces.rot2dOnR3(8), [gspaces.rot2dOnR3(8).trivial_repr])
    space = RelaxedR3Conv(scalar, scalar, 3)
    distances = []
    for of in (plane, space):
        points = of.bank.frame.translates(()).coordinates["rotation"][:, 0]
        distances.append(np.linalg.norm(points[:, None] - points, axis=-1))
    assert np.allclose(*distances, rtol=0, atol=1e-14)  # sums of nine products
    assert distances[0].max() == pytest.approx(2)


def test_set_softness_and_initial_softness() -> None:
    fields = volumes.fields("octahedral")
    of = volumes.layer(fields, initial_softness=0.0)
    assert of.softness().item() == 0
    of = volumes.layer(fields)
    of.set_softness(0.2)
    assert of.softness().item() == pytest.approx(0.2)


def test_groups_of_fields_are_convolved_apart() -> None:
    part = volumes.fields("octahedral")
    double = FieldType(part.gspace, part.representations * 2)
    of = volumes.layer(double, groups=2, relax=None, initial_softness=None)
    theirs = enn.R3Conv(double, double, 3, groups=2)
    of.load_state_dict(theirs.state_dict())
    features = double(torch.randn(1, double.size, 5, 5, 5))
    assert relative_error(of.float()(features).tensor.detach(), theirs(features).tensor.detach()) <= SINGLE


def test_state_dict_of_another_sample_or_keep_is_refused_by_name() -> None:
    fields = volumes.fields("SO(3)")
    saved = volumes.layer(fields, keep="SO(2)").state_dict()
    memory = io.BytesIO()
    torch.save(saved, memory)
    memory.seek(0)
    same = volumes.layer(fields, keep="SO(2)")
    same.load_state_dict(torch.load(memory))
    with pytest.raises(RuntimeError, match="keeps is SO"):
        volumes.layer(fields).load_state_dict(saved)


CALLS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "translation": ({"relax": {"translation": 0.1}}, ValueError, "strict in translation"),
    "all is kept": ({"keep": "o3"}, ValueError, "keep leaves nothing"),
    "relaxed and kept": ({"keep": (False, "so3"), "relax": {"rotation": 0.2}}, ValueError, "all of the rotation is in"),
    "no such group": ({"keep": "D17"}, ValueError, "keep must be the id of a subgroup of O"),
    "samples": ({"samples": 30}, ValueError, "samples of O.3. must be a multiple of 24.*24 or 48"),
    "log": ({"kernel": ContinuousKernel(rotation_coordinates="log")}, ValueError, "must be 'circle'"),
    "padding": ({"padding": (1, 1)}, ValueError, "padding must be an integer or a triple"),
    "stride": ({"stride": (1, 2, 1)}, ValueError, "triple of equal ones"),
    "words": ({"padding": "same"}, TypeError, "triple .planes, rows, columns."),
    "rings": ({"rings": [5.0]}, ValueError, "rings must be radii .* here 1.732"),
}


@pytest.mark.parametrize(("options", "error", "words"), CALLS.values(), ids=CALLS)
def test_bad_call_says_what_would_be_right(options: dict[str, Any], error: type[Exception], words: str) -> None:
    fields = volumes.fields("O(3)")
    with pytest.raises(error, match=words):
        RelaxedR3Conv(fields, fields, 3, **options)


def test_fields_of_the_plane_are_refused() -> None:
    plane = FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).trivial_repr])
    with pytest.raises(ValueError, match=r"in_type must live on a gspace of space \(escnn.gspaces.…OnR3\)"):
        RelaxedR3Conv(plane, plane, 3)
    with pytest.raises(ValueError, match="in_type must live on a gspace of the plane"):
        RelaxedR2Conv(*[volumes.fields("SO(3)")] * 2, 3)


def test_no_axis_to_keep() -> None:
    fields = volumes.fields("inversion")
    with pytest.raises(ValueError, match="needs rotations about the axis z"):
        RelaxedR3Conv(fields, fields, 3, keep="SO(2)")


def test_elements_that_generate_no_finite_group_cannot_be_kept() -> None:
    fields = volumes.fields("SO(3)")
    radian = fields.fibergroup.element(np.array([0, 0, 1.0]), "EV")
    with pytest.raises(ValueError, match="keep must generate a finite group"):
        RelaxedR3Conv(fields, fields, 3, keep=[radian])


def test_input_of_another_shape_is_refused() -> None:
    fields = volumes.fields("SO(3)")
    of = RelaxedR3Conv(fields, fields, 3)
    assert of.evaluate_output_shape((2, 9, 5, 6, 7)) == (2, 9, 3, 4, 5)
    with pytest.raises(ValueError, match=r"input must not be smaller than the kernel"):
        of(fields(torch.zeros(1, 9, 2, 5, 5)))


@pytest.mark.parametrize("space", ["octahedral", "O(3)", "cone 4"])
def test_check_equivariance_checks_what_is_strict(space: str) -> None:
    fields = volumes.fields(space)
    strict = volumes.layer(fields, relax=None, initial_softness=None, padding=(1, 2, 0), stride=2)
    found = strict.check_equivariance(atol=1e-5, rtol=0, verbose=False)
    assert [element for element, _ in found] == volumes.voxel_symmetries(fields.gspace)
    kept = volumes.layer(fields, initial_softness=0.3)
    with pytest.warns(UserWarning, match="the layer is soft in rotation"):
        (only,) = kept.check_equivariance(atol=1e-5, verbose=False)
    assert only[0] == fields.fibergroup.identity


def test_check_equivariance_finds_a_layer_that_is_not() -> None:
    fields = volumes.fields("octahedral")
    of = volumes.layer(fields, relax=None, initial_softness=None)
    basis = of.steerable_basis
    basis.set_constant("basis_0", torch.randn_like(basis.exact("basis_0")).numpy())
    with pytest.raises(AssertionError, match="too high"):
        of.check_equivariance(verbose=False)


def test_same_seed_draws_the_same_weights_and_keeps_numpys_generator() -> None:
    fields = volumes.fields("octahedral")
    before = np.random.get_state()[1].copy()
    kernels = []
    for _ in range(2):
        torch.manual_seed(1)
        kernels.append(volumes.layer(fields).filter_bank())
    assert torch.equal(*kernels)
    assert np.array_equal(before, np.random.get_state()[1])


def test_layers_are_built_without_a_warning() -> None:
    """Warnings are errors."""
    for space in itertools.islice(volumes.SPACES, 1):
        RelaxedR3Conv(*[volumes.fields(space)] * 2, 3)
