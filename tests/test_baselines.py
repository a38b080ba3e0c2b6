"""The other ways to relax: their kernels by loops, their strict limits and starts, what is learned, and errors."""

import copy

import pytest
import small
import torch
from baseline_layers import EVERY_STRICT_KERNEL, EVERY_WAY, baseline, members, set_group_weights, strict_bank
from errors import ROUNDING, SINGLE_REORDERED, largest_error, relative_error, shift_error
from escnn import gspaces
from escnn import nn as enn
from group_average import acted, energy, mean_over, subgroup_elements
from reference_group import Elements
from small_networks import answer, features_of
from torch import Tensor

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, RelaxedR3Conv, harden_network, relaxation_summary
from escnn_relaxed.baselines import LAYERS, PartialR2Conv, ResidualR2Conv
from escnn_relaxed.kernel.residual import ResidualKernel

# Symmetry and fields on which every way is defined.
CASES = [
    ("C8", "quotient -> regular"),
    ("D4", "regular -> two regular"),
    ("D4 axis 45°", "trivial -> reordered regular"),
    ("flip axis 0", "regular -> regular"),
]


def kernels_of_r2conv(in_type: enn.FieldType, out_type: enn.FieldType, kernel_size: int) -> Tensor:
    """escnn's kernels of all weights, in float32, as columns."""
    convolution = enn.R2Conv(in_type, out_type, kernel_size, bias=False)
    kernels = []
    with torch.no_grad():
        for number in range(len(convolution.weights)):
            convolution.weights.zero_()[number] = 1
            kernels.append(convolution.expand_parameters()[0].flatten())
    return torch.stack(kernels, dim=1).double()


def nearest_of_r2conv(bank: Tensor, kernels: Tensor) -> Tensor:
    """The nearest kernel by least squares."""
    return (kernels @ torch.linalg.lstsq(kernels, bank.flatten()[:, None]).solution).view_as(bank)


@pytest.mark.whole
@EVERY_WAY
@pytest.mark.parametrize(("space", "pair"), CASES)
@EVERY_STRICT_KERNEL
def test_strict_limit_is_the_strict_kernel_equivariant_and_learns_to_be_relaxed(
    way: str, space: str, pair: str, kernel: ContinuousKernel | None
) -> None:
    layer = baseline(way, space, pair, kernel=kernel)
    features, restored = features_of(layer, side=5), copy.deepcopy(layer)
    restored.kernel.load_state_dict(restored.kernel.strict_state(), strict=False)
    assert relative_error(restored.filter_bank().detach(), strict_bank(way, layer)) <= ROUNDING
    assert largest_error(layer, features) > 0.05
    assert shift_error(layer, features) <= ROUNDING
    layer.kernel.load_state_dict(layer.kernel.strict_state(), strict=False)
    assert largest_error(layer, features) <= ROUNDING
    if kernel is None:
        bank = layer.filter_bank().detach()
        nearest = nearest_of_r2conv(bank, kernels_of_r2conv(layer.in_type, layer.out_type, 3))
        assert relative_error(bank, nearest) <= SINGLE_REORDERED
    # Answers at some elements alone count: what no strict layer can prefer.
    layer(layer.in_type(features)).tensor[:, 1:].square().mean().backward()
    torch.optim.SGD(layer.parameters(), lr=0.01).step()
    assert largest_error(layer, features) > 1e-5


@EVERY_WAY
@pytest.mark.parametrize(("space", "softness"), [("C4", 0.01), ("D4", 0.2)])
def test_layer_starts_as_soft_as_it_is_told_with_the_energy_of_r2conv(way: str, space: str, softness: float) -> None:
    types = small.types(space, "two regular -> two regular")
    measured, energies, of_escnn = [], [], []
    for _ in range(4):
        layer = LAYERS[way](*types, 5, initial_softness=softness).double()
        with torch.no_grad():
            bank = layer.filter_bank()
            energies.append(float(energy(layer, bank)))
            measured.append(float(energy(layer, bank - mean_over(layer, bank))) / energies[-1])
            of_escnn.append(float(enn.R2Conv(*types, 5).expand_parameters()[0].square().sum()))
    assert measured == pytest.approx([softness] * 4, rel=SINGLE_REORDERED)
    # Draws scatter by some per cent; a window that cuts off a lot takes energy away.
    assert softness > 0.1 or sum(energies) == pytest.approx(sum(of_escnn), rel=0.2)


def test_residual_layer_can_be_any_convolution() -> None:
    layer = baseline("residual", "D4", "regular -> irreps")
    wanted = torch.randn_like(layer.kernel.free_weight)
    with torch.no_grad():
        layer.kernel.free_weight.copy_(wanted - strict_bank("residual", layer))
        assert relative_error(layer.filter_bank(), wanted) <= ROUNDING
        assert not ResidualR2Conv(layer.in_type, layer.out_type, 3, initial_softness=0.0).kernel.free_weight.any()


@pytest.mark.parametrize("space", ["C3", "C8", "D6", "SO(2)", "O(2)"])
def test_off_the_pixel_grid_the_strict_part_of_a_free_kernel_is_the_nearest_of_r2conv(space: str) -> None:
    layer = baseline("residual", space, "irreps -> irreps", kernel_size=5).float()
    bank = layer.filter_bank().detach().double()
    nearest = nearest_of_r2conv(bank, kernels_of_r2conv(layer.in_type, layer.out_type, 5))
    assert relative_error(harden_network(layer).filter_bank().detach().double(), nearest) < SINGLE_REORDERED
    expected = (bank - nearest).square().sum() / bank.square().sum()
    assert layer.softness().item() == pytest.approx(float(expected), rel=1e-4)


@torch.no_grad()
def test_strict_part_of_a_free_kernel_keeps_to_its_blocks() -> None:
    """Fields of several kinds in any order, convolved in groups."""
    pair = "regular + last irrep + regular + last irrep -> last irrep + regular + last irrep + regular"
    hardened = harden_network(baseline("residual", "C8", pair, groups=2))
    assert relative_error(harden_network(hardened).filter_bank(), hardened.filter_bank()) <= ROUNDING
    assert largest_error(hardened, features_of(hardened, side=5)) <= ROUNDING


@torch.no_grad()
@pytest.mark.parametrize(
    ("space", "pair", "weighs_input", "arguments"),
    [
        ("C8", "regular -> regular", True, {"banks": 1}),
        ("C8", "trivial -> regular", False, {"banks": 3}),
        ("C4", "irreps -> regular", False, {}),
        ("D4", "quotient -> two regular", True, {}),
        ("D3", "reordered regular -> regular", True, {}),
        ("C4", "two regular -> two regular", True, {"groups": 2}),
    ],
)
def test_weighted_bank_is_that_of_the_loop(space: str, pair: str, weighs_input: bool, arguments: dict) -> None:
    """Σ_l w_l(g′) k_l(g′⁻¹d, g′⁻¹g), or with w_l(g)."""
    layer = baseline("weighted", space, pair, **arguments)
    elements, fields = Elements(layer.space), layer.in_type if weighs_input else layer.out_type
    fields = fields.representations[: len(fields) // layer.groups] if weighs_input else fields.representations
    expected = torch.zeros_like(layer.filter_bank())
    for number, weights in enumerate(layer.kernel.group_weights()):
        channels = [weights[members(f, elements, channel)].mean() for f in fields for channel in range(f.size)]
        factor = torch.stack(channels).view((1, -1, 1, 1) if weighs_input else (-1, 1, 1, 1))
        expected += factor * strict_bank("weighted", layer, number)
    assert layer.kernel.group_weights().shape == (arguments.get("banks", 2), len(elements.elements))
    assert relative_error(layer.filter_bank().detach(), expected) <= ROUNDING


@torch.no_grad()
def test_fields_without_elements_beside_others_are_weighed_by_the_output() -> None:
    layer = baseline("weighted", "C4", "trivial + regular -> regular")
    bank = layer.filter_bank()
    set_group_weights(layer, layer.kernel.group_weights() + torch.tensor([0.0, 1.0, 0.0, 0.0]))
    changed = (layer.filter_bank() - bank).abs() > ROUNDING
    # The trivial field comes first: weighed at the output element 1; the regular one at the input element 1.
    assert changed[:, 0].flatten(1).any(dim=1).tolist() == [False, True, False, False]
    assert changed[:, 1:].transpose(0, 1).flatten(1).any(dim=1).tolist() == [False, True, False, False]


REGULAR = "regular -> regular"
BAD_ARGUMENTS = [
    ("weighted", "irreps -> irreps", {}, ValueError, "in_type or out_type must be of regular and quotient.*irrep"),
    ("partial", REGULAR, {"relax": {"translation": 0.3}}, ValueError, r"one of \['rotation'\], got 'transl"),
    ("partial", REGULAR, {"relax": {"rotation": 1.5}}, ValueError, r"'rotation' must be in \[0, 1\], got 1.5"),
    ("partial", REGULAR, {"initial_softness": 0.9}, ValueError, "initial_softness must be at most 0.75 in rotation"),
    ("partial", "regular -> irreps", {}, ValueError, "out_type must be of regular and quotient fields.*relax=None"),
]  # fmt: skip


@pytest.mark.parametrize(("way", "pair", "arguments", "error", "message"), BAD_ARGUMENTS)
def test_bad_arguments_are_named(way: str, pair: str, arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LAYERS[way](*small.types("C4", pair), **{"kernel_size": 3, **arguments})


@EVERY_WAY
def test_summary_says_by_what_a_layer_is_relaxed_in_place_of_a_frequency(way: str) -> None:
    summary = relaxation_summary(baseline(way, "C4", "trivial -> regular"))
    words = {
        "partial": "narrowing rotation",
        "residual": "free kernel of 36 weights",
        "weighted": "weights of 4 elements",
    }
    assert summary.rows[0].relaxed_by.startswith(words[way])
    assert "ω′" not in str(summary)


@EVERY_WAY
def test_soft_weights_are_those_that_are_0_in_a_strict_layer(way: str) -> None:
    layer = baseline(way, "D4", REGULAR)
    labels = ["rotation", "reflection"] if way == "partial" else ["rotation, reflection"]
    groups = {group.name: group.entries for group in layer.kernel.weight_groups()}
    assert list(groups) == labels
    soft = {id(parameter) for parameter in layer.soft_parameters()}
    assert {id(parameter) for entries in groups.values() for parameter, _ in entries} <= soft
    assert id(layer.weights) not in soft
    layer.kernel.load_state_dict(layer.kernel.strict_state(), strict=False)
    assert layer.softness().item() == 0
    for label in labels:
        for parameter, numbers in groups[label]:
            with torch.no_grad():
                parameter.view(-1)[numbers[:1]] = 0.25
        assert layer.softness(*label.split(", ")).item() > 0


@pytest.mark.parametrize("way", ["residual", "weighted"])
@torch.no_grad()
def test_softness_is_set_and_the_strict_part_stays(way: str) -> None:
    layer = baseline(way, "D4", REGULAR)
    elements = subgroup_elements(layer.space)
    before = acted(layer, layer.filter_bank(), elements).mean(dim=0)
    layer.set_softness(0.07)
    bank = layer.filter_bank()
    strict = acted(layer, bank, elements).mean(dim=0)
    assert relative_error(strict, before) <= ROUNDING
    assert float(energy(layer, bank - strict) / energy(layer, bank)) == pytest.approx(0.07, rel=ROUNDING)


def test_softness_of_a_window_is_set_by_its_narrowing_alone() -> None:
    layer = baseline("partial", "D4", REGULAR)
    with pytest.raises(ValueError, match="softness cannot be set where a window relaxes a layer: set_narrowing"):
        layer.set_softness(0.1)


@EVERY_WAY
@pytest.mark.parametrize("space", ["D4", "trivial"])
@pytest.mark.parametrize("learn", [True, False])
def test_state_of_r2conv_makes_the_layer_compute_what_it_computed(way: str, space: str, learn: bool) -> None:
    arguments = {"learn_relaxation": learn} if way == "partial" else {"bias": learn}
    fields = small.types(space, REGULAR if space == "D4" else "trivial -> trivial")
    layer = LAYERS[way](*fields, 3, initial_softness=0.2, **arguments)
    convolution = enn.R2Conv(*fields, 3, bias=arguments.get("bias", True)).eval()
    layer.load_state_dict(convolution.state_dict())
    assert relative_error(answer(layer), answer(convolution)) < SINGLE_REORDERED
    layer(layer.in_type(features_of(layer))).tensor[:, 1:].square().sum().backward()
    assert all(parameter.grad.any() for group in layer.kernel.weight_groups() for parameter, _ in group.entries)


def test_kernel_is_one_of_relaxed_r2conv_too() -> None:
    fields = small.types("C4", REGULAR)
    layer = RelaxedR2Conv(*fields, 3, kernel=ResidualKernel)
    assert layer.softness().item() == pytest.approx(0.01, rel=1e-4)
    with pytest.raises(ValueError, match=r"keep must be None for a ResidualKernel, got 'C2'"):
        RelaxedR2Conv(*fields, 3, keep="C2", kernel=ResidualKernel)
    scalars = enn.FieldType(gspaces.octaOnR3(), [gspaces.octaOnR3().trivial_repr])
    assert RelaxedR3Conv(scalars, scalars, 3, kernel=ResidualKernel).softness().item() == pytest.approx(0.01, rel=1e-4)


def test_window_that_no_narrowing_makes_so_soft_is_refused() -> None:
    types = small.types("C4", "regular -> quotient")
    with pytest.raises(ValueError, match=r"initial_softness must be at most 0.5 for these fields.*got 0.6"):
        PartialR2Conv(*types, 3, initial_softness=0.6)
