"""Profiles: against kernels moved tap by tap, errors on white noise, and symmetries that are known beforehand."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from errors import BROKEN, ROUNDING, on_grid_elements, transform
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType
from evidence_networks import Classifier, entries, images
from small import build, soft_layer
from torch import Tensor, nn

from escnn_relaxed import ContinuousKernel, RelaxedLinear, RelaxedR2Conv, RelaxedR2ConvTransposed, SoftnessEvidence
from escnn_relaxed.baselines import PartialR2Conv, ResidualR2Conv, WeightedR2Conv
from escnn_relaxed.kernel import Kernel
from escnn_relaxed.learning.posterior import posterior_draws
from escnn_relaxed.learning.prior import LearnedGroup
from escnn_relaxed.measure import symmetry_profile
from escnn_relaxed.measure.isometry import turn_or_flip


def moved_by_hand(layer: nn.Module, turns: int) -> float:
    """‖hK − K‖ / ‖K‖ of a stationary layer of C4 or C8 in the plane, with numpy's own quarter turns."""
    element = layer.space.fibergroup.element(turns * layer.space.fibergroup.order() // 4)
    kernel = layer.filter_bank().detach().numpy()
    left, right = (fields.representation(element) for fields in (layer.out_type, layer.in_type))
    moved = np.einsum("ab,bcyx,cd->adyx", left, np.rot90(kernel, turns, (2, 3)), np.linalg.inv(right))
    return float(np.linalg.norm(moved - kernel) / np.linalg.norm(kernel))


FORMS: dict[str, Callable[[FieldType, FieldType], nn.Module]] = {
    "tied": lambda *types: RelaxedR2Conv(*types, 3, initial_softness=0.1),
    "continuous": lambda *types: RelaxedR2Conv(*types, 3, kernel=ContinuousKernel(hidden_size=6)),
    "partial": lambda *types: PartialR2Conv(*types, 3),
    "residual": lambda *types: ResidualR2Conv(*types, 3),
    "weighted": lambda *types: WeightedR2Conv(*types, 3),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("space", ["C4", "C8"])
def test_profile_is_that_of_a_kernel_that_is_moved_by_hand(space: str, form: str) -> None:
    layer = FORMS[form](*small.types(space, "two regular -> regular")).double()
    found = {row.name: row.error for row in symmetry_profile(layer).rows}
    for turns in (1, 2, 3):
        assert found[f"rotation {90 * turns}°"] == pytest.approx(moved_by_hand(layer, turns), rel=1e-6)  # escnn's ρ
    knows_every_element = form == "tied" or space == "C4"
    assert ("rotation 45°" in found) == (knows_every_element and space == "C8")


@pytest.mark.parametrize("space", ["octahedral", "SO(3)", "C4", "full octahedral"])
def test_profile_in_space_is_that_of_a_kernel_that_is_moved_by_hand(space: str) -> None:
    layer = small.volume_layer(small.volume_type(space), initial_softness=0.3)
    found = {row.name: row.error for row in symmetry_profile(layer).rows}
    kernel, expected = layer.filter_bank().detach(), {}
    for element in on_grid_elements(layer.space):
        inverse = torch.from_numpy(np.asarray(layer.in_type.representation(~element))).double()
        moved = torch.einsum("boxyz,bc->ocxyz", transform(kernel.transpose(0, 1), layer.out_type, element), inverse)
        expected[turn_or_flip(layer.space, element).name] = float((moved - kernel).norm() / kernel.norm())
    assert found == pytest.approx(expected, rel=1e-5)  # escnn's matrices of SO(3) and its subgroups
    assert min(found.values()) > BROKEN


TURNS_ABOUT_Z = ("rotation 90° about z", "rotation 180° about z", "rotation 270° about z")
MIRRORS_THROUGH_Z = tuple(f"reflection along {axis}" for axis in ("x", "y", "(1, 1, 0)", "(1, −1, 0)"))
KEPT_IN_SPACE: dict[str, tuple[str, object, tuple[str, ...]]] = {
    "octahedral, axis": ("octahedral", "SO(2)", TURNS_ABOUT_Z),
    "octahedral, C4": ("octahedral", (False, 4), TURNS_ABOUT_Z),
    # Of irreps f is a function of the taps, which has no hand, so mirrors through the axis stay as well.
    "O(3), axis": ("O(3)", "SO(2)", (*TURNS_ABOUT_Z, *MIRRORS_THROUGH_Z)),
    "O(3), cone": ("O(3)", ("cone", -1), (*TURNS_ABOUT_Z, *MIRRORS_THROUGH_Z)),
}


@pytest.mark.parametrize(("space", "keep", "kept"), KEPT_IN_SPACE.values(), ids=KEPT_IN_SPACE)
def test_kept_elements_of_space_are_those_of_the_kept_group(space: str, keep: object, kept: tuple[str, ...]) -> None:
    fields = small.volume_type(space)
    layer = small.volume_layer(fields, keep=keep, initial_softness=0.3)
    assert symmetry_profile(layer).kept() == kept
    network = enn.SequentialModule(layer, small.volume_layer(fields))
    assert symmetry_profile(network).kept() == ()


def test_elements_of_space_stand_by_their_axes() -> None:
    names = [row.name for row in symmetry_profile(small.volume_layer(small.volume_type("octahedral"))).rows]
    assert names[:9] == [f"rotation {angle}° about {axis}" for axis in "xyz" for angle in (90, 180, 270)]
    diagonals = "(1, 1, 1)", "(1, 1, −1)", "(1, −1, 1)", "(1, −1, −1)"
    assert names[9:17] == [f"rotation {angle}° about {axis}" for axis in diagonals for angle in (120, 240)]
    assert {name.partition(" about ")[0] for name in names[17:]} == {"rotation 180°"}


@pytest.mark.parametrize(
    ("space", "pair"),
    [("D4", "regular -> trivial"), ("D4 axis 45°", "quotient -> regular"), ("O(2)", "irreps -> irreps")],
)
def test_tied_kernels_know_themselves_as_moved_by_taps(space: str, pair: str) -> None:
    """The same from functions of the group as from the filter bank, which the base of all kernels moves."""
    layer = soft_layer(space, pair)
    elements = [element for element in layer.kernel.config.domain.sample.elements if element != element.group.identity]
    moved, whole = layer.kernel.element_energies(layer.weights, (), elements)
    found, all_taps = Kernel.element_energies(layer.kernel, layer.weights, (), elements)
    is_on_grid = ~found.isnan()
    assert is_on_grid.any()
    assert torch.allclose((moved / whole)[is_on_grid], (found / all_taps)[is_on_grid], rtol=0, atol=1e-9)  # escnn's ρ


def test_soft_translation_leaves_the_elements_of_the_group_as_they_are() -> None:
    layer = build(*small.types("C4", "regular -> irreps"), relax={"translation": 0.3}, initial_softness=0.3)
    assert [row.error for row in symmetry_profile(layer).rows] == [0, 0, 0]


@pytest.mark.parametrize("kernel", [None, ContinuousKernel(hidden_size=4)], ids=["tied", "continuous"])
def test_softness_in_both_is_moved_at_every_position(kernel: object) -> None:
    """Against banks at every pixel of the reference image, both turned by numpy."""
    types = small.types("C4", "regular -> regular + irreps")
    relax = {"rotation": 0.25, "translation": 0.3}
    layer = RelaxedR2Conv(*types, 3, relax=relax, initial_softness=0.1, kernel=kernel).double()
    banks = layer.filter_banks(8).detach().numpy()
    element = layer.space.fibergroup.element(1)
    left, right = types[1].representation(element), np.linalg.inv(types[0].representation(element))
    turned = np.rot90(np.rot90(banks, 1, (0, 1)), 1, (4, 5))
    moved = np.einsum("ab,rsbcyx,cd->rsadyx", left, turned, right)
    expected = np.linalg.norm(moved - banks) / np.linalg.norm(banks)
    assert symmetry_profile(layer).rows[0].error == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("layer", "kept"),
    [
        (lambda *types: RelaxedR2Conv(*types, 3, relax=None), 7),
        (lambda *types: RelaxedR2Conv(*types, 3, keep="C2"), 1),
        (lambda *types: RelaxedR2Conv(*types, 3, keep="C4"), 3),
        (lambda *types: RelaxedR2Conv(*types, 3, relax="reflection"), 3),
        (lambda *types: RelaxedR2ConvTransposed(*types, 3, keep="C2"), 1),
    ],
    ids=["strict", "C2", "C4", "reflection", "transposed"],
)
def test_what_is_kept_has_an_error_of_exactly_0(layer: Callable[..., nn.Module], kept: int) -> None:
    found = symmetry_profile(layer(*small.types("D4", "regular -> regular")))
    errors = sorted(row.error for row in found.largest_by_element)
    assert errors[:kept] == [0] * kept
    assert min(errors[kept:], default=1) > 1e-4  # a softness of 0.001 at the start
    assert len(found.kept()) == kept
    assert str(found).count("kept") == kept


def test_hardened_layers_and_half_precision_are_0_where_they_are_strict() -> None:
    layer = RelaxedR2Conv(*small.types("D4", "regular -> regular"), 3, initial_softness=0.1)
    whole = symmetry_profile(layer).rows
    for row, half in zip(whole, symmetry_profile(layer.half()).rows, strict=True):
        assert half.error == pytest.approx(row.error, rel=0.01)  # weights of 11 bits
    layer.harden("rotation")
    assert len(symmetry_profile(layer).kept()) == 3
    layer.harden()
    assert len(symmetry_profile(layer).kept()) == 7


def test_linear_maps_have_a_profile() -> None:
    space = gspaces.no_base_space(gspaces.rot2dOnR2(4).fibergroup)
    fields = FieldType(space, [space.regular_repr])
    layer = RelaxedLinear(fields, fields, initial_softness=0.1).double()
    rows = symmetry_profile(layer).rows
    assert [row.name for row in rows] == ["rotation 90°", "rotation 180°", "rotation 270°"]
    shift = np.roll(np.eye(4), 1, 0)
    matrix = layer.matrix.detach().numpy()
    expected = np.linalg.norm(shift @ matrix @ shift.T - matrix) / np.linalg.norm(matrix)
    assert rows[0].error == pytest.approx(expected, rel=1e-6)  # escnn's ρ


def test_network_has_the_layer_that_is_moved_most_and_elements_that_all_layers_know() -> None:
    first, second = small.types("C8", "trivial -> regular")
    strict = RelaxedR2Conv(first, second, 3, relax=None)
    continuous = RelaxedR2Conv(second, second, 3, kernel=ContinuousKernel(hidden_size=4))
    profile = symmetry_profile(enn.SequentialModule(strict, continuous))
    assert [row.layer for row in profile.rows] == sorted(row.layer for row in profile.rows)
    assert [(row.name, row.layer) for row in profile.largest_by_element] == [
        (f"rotation {n}°", "1") for n in (90, 180, 270)
    ]


def test_networks_without_a_group_have_no_profile() -> None:
    plain = gspaces.trivialOnR2().type(gspaces.trivialOnR2().trivial_repr)
    with pytest.raises(ValueError, match="network must have a relaxed layer whose group"):
        symmetry_profile(RelaxedR2Conv(plain, plain, 3, relax="translation"))
    with pytest.raises(ValueError, match="network has no relaxed layer"):
        symmetry_profile(nn.Conv2d(1, 1, 3))


def test_rounding_is_no_broken_symmetry() -> None:
    layer = soft_layer("C4", "regular -> regular").float()
    layer.kernel.scale_soft_part(1e-9)
    assert symmetry_profile(layer).kept() == ("rotation 90°", "rotation 180°", "rotation 270°")
    double = soft_layer("C4", "regular -> regular")
    double.kernel.scale_soft_part(1e-9)
    assert min(row.error for row in symmetry_profile(double).rows) > ROUNDING


def dense_posterior(groups: Sequence[LearnedGroup]) -> Tensor:
    """Σ = (H + diag δ)⁻¹ as a matrix."""
    rows = torch.cat([group.rows for group in groups], 1)
    return torch.linalg.inv(rows.mT @ rows + torch.cat([0 * of.rows[0] + of.precision for of in groups]).diag())


def test_draws_have_the_covariance_of_the_posterior() -> None:
    sizes, count = ((5, 0.5), (3, 4.0)), 20_000
    groups = [LearnedGroup(delta, rows=torch.randn(4, size, dtype=torch.float64)) for size, delta in sizes]
    draws = posterior_draws(groups, count, torch.Generator().manual_seed(1))
    expected = dense_posterior(groups)
    # The error of a covariance is at most √(2 / count) of its largest variance.
    assert (draws.mT @ draws / count - expected).abs().max() < 5 * (2 / count) ** 0.5 * expected.diagonal().max()
    assert draws.mean(0).abs().max() < 5 * (expected.diagonal().max() / count) ** 0.5


def test_errors_of_a_profile_are_those_of_the_posterior() -> None:
    """Against weights that are drawn with the dense Σ, and set by hand."""
    network, count = Classifier().eval(), 50
    evidence = SoftnessEvidence(network, observations=24)
    with pytest.raises(RuntimeError, match="symmetry_profile needs what an update learns"):
        evidence.symmetry_profile()
    evidence.update(images(24))
    before = copy.deepcopy(network.state_dict())
    profile = evidence.symmetry_profile(count)
    assert [replace(row, deviation=0.0) for row in profile.rows] == [
        replace(row, deviation=0.0) for row in symmetry_profile(network).rows
    ]
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    covariance = dense_posterior(evidence._present())
    changes = torch.distributions.MultivariateNormal(0 * covariance[0], covariance).sample((count,))
    drawn, squares = copy.deepcopy(network), []
    pairs = entries(drawn)
    for change in changes:
        drawn.load_state_dict(before)
        for (parameter, places), step in zip(pairs, change.split([len(of) for _, of in pairs]), strict=True):
            parameter.data.view(-1)[places] += step
        errors = [row.error for row in symmetry_profile(drawn).rows]
        squares.append([(error - row.error) ** 2 for error, row in zip(errors, profile.rows, strict=True)])
    expected = np.sqrt(np.mean(squares, axis=0))
    # Both root mean squares have an error of 1 / √(2 count), so that their ratio has one of 0.14.
    assert [row.deviation for row in profile.rows] == pytest.approx(expected.tolist(), rel=0.4)
    assert " ± " in str(profile)


def test_a_profile_of_weights_that_are_known_has_no_errors() -> None:
    evidence = SoftnessEvidence(Classifier().eval(), observations=24)
    evidence.update(images(24))
    evidence._learned = {key: replace(known, precision=1e12) for key, known in evidence._learned.items()}
    # Draws change a weight by 1e-6.
    assert max(row.deviation for row in evidence.symmetry_profile(10).rows) < 1e-5


def test_a_profile_knows_what_was_hardened_after_the_update() -> None:
    network = Classifier().eval()
    evidence = SoftnessEvidence(network, observations=24)
    evidence.update(images(24))
    network.first.harden("reflection")
    rows = evidence.symmetry_profile(10).rows
    assert [row.deviation > 0 for row in rows] == [row.error > 0 for row in rows]
    assert {row.error > 0 for row in rows} == {True, False}
    for layer in (network.first, network.second):
        layer.harden()
    assert {row.error for row in evidence.symmetry_profile(10).rows} == {0}
