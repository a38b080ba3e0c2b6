"""The strict part in R2Conv's basis: weight for weight R2Conv, exact on the grid, and of its own in every layer."""

import numpy as np
import pytest
import small
import torch
from errors import ROUNDING, SINGLE_REORDERED, largest_error, relative_error
from escnn import gspaces
from escnn.nn import FieldType, R2Conv
from group_average import energy
from small import shake

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.group.elements import grid_symmetries
from escnn_relaxed.group.linear_maps import GroupAverage
from escnn_relaxed.group.points import tap_grid
from escnn_relaxed.kernel import grid_exact_basis

CASES = [
    ("trivial", "trivial -> trivial"),
    ("flip", "two regular -> irreps"),
    ("C4", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed"),
    *(("C8", "quotient -> induced"), ("D4", "two regular -> regular"), ("D6", "irreps -> regular")),
    *(("SO(2)", "irreps -> band-limited"), ("O(2)", "irreps -> irreps")),
]
# Arguments of R2Conv that shape its basis; here they mean what they mean there.
SHAPES: dict[str, dict[str, object]] = {
    "kernel 1": {"kernel_size": 1},
    "kernel 5": {"kernel_size": 5},
    "dilation": {"kernel_size": 3, "dilation": 2},
    "groups": {"kernel_size": 3, "groups": 2},
    "rings and sigma": {"kernel_size": 5, "rings": [0.0, 1.0, 2.0], "sigma": [0.4, 0.5, 0.6]},
    "cutoff function": {"kernel_size": 5, "frequencies_cutoff": lambda radius: 2 * radius},
    "basis filter": {"kernel_size": 5, "basis_filter": lambda attributes: attributes["radius"] > 0.5},
    "cutoff of no frequency": {"kernel_size": 3, "frequencies_cutoff": 0.0},
    "dilated rings in pixels": {"kernel_size": 3, "rings": [0.0, 2.0], "dilation": 2},
    "width of all": {"kernel_size": 3, "sigma": 1.0},
    "rings": {"kernel_size": 3, "rings": [0.0, 1.0]},
    "width of each": {"kernel_size": 3, "sigma": [0.5, 0.75]},
}
# Numbers and sequences of any kind mean the same.
OF_OUR_OWN: dict[str, dict[str, object]] = {
    "cutoff of no frequency": {"frequencies_cutoff": 0},
    "width of all": {"sigma": 1},
    "rings": {"rings": np.array([0.0, 1.0])},
    "width of each": {"sigma": np.array([0.5, 0.75], dtype=np.float32)},
}


@pytest.fixture(params=["by entries", "by orbits"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a basis is kept: entry by entry or, where it is large, orbit by orbit."""
    if request.param == "by orbits":
        monkeypatch.setattr(grid_exact_basis, "_LARGE", 0)
        monkeypatch.setattr(grid_exact_basis, "_PREPARED", {})
    way: str = request.param
    return way


def check_weight_for_weight(
    in_type: FieldType, out_type: FieldType, own: dict[str, object] | None = None, **arguments: object
) -> None:
    """Equal weights are equal layers, values and gradients."""
    convolution, layer = (
        R2Conv(in_type, out_type, **arguments),
        RelaxedR2Conv(in_type, out_type, relax=None, **{**arguments, **(own or {})}),
    )
    shake(convolution)
    shapes = [{name: of.shape for name, of in module.named_parameters()} for module in (convolution, layer)]
    assert shapes[0] == shapes[1]
    layer.load_state_dict(dict(convolution.named_parameters()))
    features = in_type(small.random_input(in_type, 9, 9, dtype=torch.float32))
    answers = [(module(features).tensor, module) for module in (layer, convolution)]
    assert relative_error(*(answer.detach() for answer, _ in answers)) <= SINGLE_REORDERED
    direction = torch.randn_like(answers[0][0])
    gradients = [torch.autograd.grad(answer, module.weights, direction)[0] for answer, module in answers]
    assert relative_error(*gradients) <= SINGLE_REORDERED


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(("space", "pair"), CASES)
def test_strict_layer_is_r2conv_weight_for_weight(space: str, pair: str) -> None:
    check_weight_for_weight(*small.types(space, pair), kernel_size=3, padding=1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("space", ["C4", "O(2)"])
def test_arguments_of_the_basis_mean_what_they_mean_in_r2conv(space: str, shape: str) -> None:
    pair = "irreps + irreps -> trivial + last irrep + trivial + last irrep"
    check_weight_for_weight(*small.types(space, pair), OF_OUR_OWN.get(shape, {}), **SHAPES[shape])


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("pair", ["regular -> regular", "quotient -> regular", "irreps -> mixed, sheared"])
def test_basis_is_exact_in_float64_and_after_other_dtypes(pair: str) -> None:
    """escnn's own samples are 1e-8 from it."""
    layer = RelaxedR2Conv(*small.types("D4", pair), 3, relax=None).double()
    weights, features = layer.weights.detach().clone(), small.random_input(layer.in_type, 5, 5)
    expected = layer.filter_bank().detach()
    assert largest_error(layer, features) <= ROUNDING
    layer.half().double().weights.data = weights
    assert torch.equal(layer.filter_bank().detach(), expected)


def test_fingerprint_is_that_of_states_that_were_saved_before(kept: str) -> None:
    """A state says the same of a basis however it is kept."""
    layer = RelaxedR2Conv(*small.types("C4", "regular -> regular"), 3)
    assert bool(layer.kernel.basis.orbits) == (kept == "by orbits")
    assert layer.describe()["fingerprint of the steerable basis"] == [-0.571672]


def test_two_by_two_kernels_have_a_basis() -> None:
    """R2Conv fails on them with an empty one."""
    layer = RelaxedR2Conv(*small.types("C4", "trivial -> regular"), 2, relax=None)
    assert layer.weights.numel() > 0
    assert (layer.filter_bank() != 0).any(dim=0).all()  # no tap is out of reach


def test_types_without_a_steerable_kernel_give_a_zero_bank() -> None:
    space = gspaces.rot2dOnR2(-1)
    in_type, out_type = FieldType(space, [space.irrep(0)]), FieldType(space, [space.irrep(3)])
    with pytest.warns(UserWarning, match="is equivariant: the strict kernel is 0"):
        layer = RelaxedR2Conv(in_type, out_type, 1, relax=None)
    assert not layer.filter_bank().any()
    assert RelaxedR2Conv(in_type, out_type, 1).cannot_be_soft == ("rotation",)
    assert layer.softness().item() == 0
    assert layer(in_type(torch.randn(1, 1, 4, 4))).tensor.shape == (1, 2, 4, 4)


@pytest.mark.parametrize("groups", [1, 2])
def test_energy_is_that_of_the_bank_in_the_basis_of_irreps(groups: int) -> None:
    """Of a changed basis that is not orthogonal, too."""
    for space, pair in (("C4", "regular + regular -> irreps + irreps"), ("D4", "mixed, sheared -> mixed, sheared")):
        if groups == 1 or "+" in pair:
            layer = RelaxedR2Conv(*small.types(space, pair), 3, groups=groups, relax=None).double()
            bank = layer.filter_bank().detach()
            found = layer.kernel.orthogonal_basis.energy(bank).item()
            assert found == pytest.approx(float(energy(layer, bank)), rel=ROUNDING)
            if "sheared" in pair:
                assert abs(float(bank.square().sum()) / found - 1) > 0.01  # it matters


@pytest.mark.parametrize("pair", ["irreps -> irreps", "mixed, sheared -> irreps", "irreps -> band-limited"])
def test_mean_of_a_basis_by_blocks_is_its_mean(pair: str) -> None:
    """Most entries of a basis between sums of irreps are 0, and only channels that the group mixes are averaged."""
    in_type, out_type = small.types("SO(2)", pair)
    symmetries = grid_symmetries(in_type.gspace, tap_grid(3, 1, 2))
    average = GroupAverage(in_type.representations, out_type.representations, symmetries).double()
    kernels = torch.randn(4, out_type.size, in_type.size, 9, dtype=torch.float64)
    kernels[1:, : out_type.size // 2] = 0
    kernels[2:, :, : in_type.size // 2] = 0
    assert relative_error(average.by_blocks(kernels), average(kernels)) <= ROUNDING
