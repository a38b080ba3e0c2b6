"""Softness and strict part of every other way to relax, against averages that know nothing of its construction."""

from __future__ import annotations

import battery
import pytest
import torch
from baseline_layers import EVERY_STRICT_KERNEL, EVERY_WAY, baseline
from dense_matrix import dense_matrix, mean_over_elements
from escnn import nn as enn
from forms import answer, features_of
from group_average import acted, energy, subgroup_elements
from tolerances import ROUNDING
from transformations import equivariance_error, largest_error, reflections, relative_error, rotations

from escnn_relaxed import (
    ContinuousKernel,
    equivariance_penalty,
    export_network,
    harden_network,
    parameter_groups,
    relaxation_summary,
    softness_ablation,
)
from escnn_relaxed.baselines import PartialR2Conv, ResidualR2Conv
from escnn_relaxed.kernel.orthogonal_basis import OrthogonalBasis
from escnn_relaxed.layer.convolution import RelaxedConvolution
from escnn_relaxed.measure import relaxation_scalars
from escnn_relaxed.plots import plot_softness

SUBGROUP_CHOICES = [(), ("rotation",), ("reflection",), ("rotation", "reflection")]

CASES = [
    ("C4", "trivial -> regular"),
    ("C4", "two regular -> regular"),
    ("D4", "regular -> two regular"),
    ("D4", "regular -> quotient"),
    ("D4", "irreps -> two regular"),
    ("D4", "mixed, sheared -> regular"),
    ("D4 axis 45°", "trivial -> reordered regular"),
    ("D2", "quotient -> regular"),
    ("flip axis 0", "regular -> regular"),
]
EVERY_CASE = pytest.mark.parametrize(("space", "pair"), CASES)
# Groups of which some elements map no pixel grid to itself.
OFF_GRID = ["C3", "C6", "C8", "D3", "D6", "D8"]


@EVERY_WAY
@EVERY_CASE
@EVERY_STRICT_KERNEL
@torch.no_grad()
def test_strict_part_is_the_mean_over_the_group(
    way: str, space: str, pair: str, kernel: ContinuousKernel | None
) -> None:
    """hKh⁻¹ by escnn's matrices, for the whole group and for its parts."""
    layer = baseline(way, space, pair, kernel=kernel)
    bank = layer.filter_bank()
    for names in SUBGROUP_CHOICES:
        mean = acted(layer, bank, subgroup_elements(layer.space, names)).mean(dim=0)
        rest, whole = energy(layer, bank - mean), energy(layer, bank)
        assert layer.softness(*names).item() == pytest.approx(float(rest / whole), rel=0, abs=1e-10)
        assert relative_error(harden_network(layer, names).filter_bank(), mean) <= ROUNDING


@EVERY_WAY
@EVERY_CASE
def test_hardened_layer_is_strict_and_stays_so_in_training(way: str, space: str, pair: str) -> None:
    layer = baseline(way, space, pair)
    features = features_of(layer, side=5)
    assert largest_error(layer, features) > 0.05
    hardened = harden_network(layer)
    assert hardened.softness().item() == 0
    assert largest_error(layer, features) > 0.05
    optimiser = torch.optim.SGD(hardened.parameters(), lr=0.1)
    hardened(hardened.in_type(features)).tensor[:, 0].square().mean().backward()
    optimiser.step()
    assert largest_error(hardened, features) <= ROUNDING


@EVERY_WAY
def test_layer_that_is_hardened_in_a_subgroup_is_strict_in_that_alone(way: str) -> None:
    layer = baseline(way, "D4", "regular -> two regular")
    features = features_of(layer, side=5)
    hardened = harden_network(layer, ("rotation",))
    assert largest_error(hardened, features, rotations) <= ROUNDING
    assert largest_error(hardened, features, reflections) > 0.02
    assert hardened.softness("rotation").item() == 0
    assert 0 < hardened.softness().item() < layer.softness().item()


@EVERY_WAY
@torch.no_grad()
def test_softness_is_that_of_the_dense_matrix(way: str) -> None:
    """The whole layer as one matrix on the images of a torus."""
    layer = baseline(way, "D4", "regular -> two regular", bias=False)
    matrix = dense_matrix(layer, 4)
    mean = mean_over_elements(matrix, layer.in_type, layer.out_type, subgroup_elements(layer.space))
    expected = float((matrix - mean).square().sum() / matrix.square().sum())
    assert layer.softness().item() == pytest.approx(expected, rel=1e-10)
    assert relative_error(dense_matrix(harden_network(layer), 4), mean) <= ROUNDING


@EVERY_WAY
def test_error_on_white_noise_is_the_root_of_twice_the_softness(way: str) -> None:
    layer = baseline(way, "D4", "regular -> two regular", bias=False)
    features = battery.random_input(layer.in_type, 12, 12, batch=128)
    elements = subgroup_elements(layer.space)
    square = sum(equivariance_error(layer, features, g) ** 2 for g in elements) / len(elements)
    # 150,000 values: the squared norms scatter by about a per cent.
    assert square == pytest.approx(2 * layer.softness().item(), rel=0.05)


@EVERY_WAY
def test_strict_limit_has_softness_zero(way: str) -> None:
    layer = baseline(way, "D4", "regular -> two regular")
    assert layer.softness("translation").item() == 0
    layer.make_strict()
    assert layer.softness().item() == 0


@EVERY_WAY
@pytest.mark.parametrize("space", OFF_GRID)
def test_off_the_pixel_grid_a_hardened_layer_is_strict_where_that_can_be_seen(way: str, space: str) -> None:
    layer = baseline(way, space, "regular -> regular", kernel_size=5, padding=2)
    features = features_of(layer, side=5)
    assert 0.01 < layer.softness().item() < 0.5
    hardened = harden_network(layer)
    assert hardened.softness().item() == 0
    if subgroup_elements(layer.space)[1:]:
        assert largest_error(hardened, features) <= ROUNDING
    for name, elements in (("rotation", rotations), ("reflection", reflections)):
        if name in layer.relaxed_subgroups and elements(layer.space):
            assert 0 < layer.softness(name).item() <= layer.softness().item()
            assert largest_error(harden_network(layer, (name,)), features, _without_turns(name, elements)) <= ROUNDING


def _without_turns(name, elements):
    """Return elements with only the reflection that has no turn: alone it makes a group."""
    if name == "rotation":
        return elements
    return lambda space: subgroup_elements(space, ("reflection",))[1:]


@pytest.mark.parametrize("space", [*OFF_GRID, "SO(2)", "O(2)"])
def test_off_the_pixel_grid_the_strict_part_of_a_free_kernel_is_the_nearest_of_r2conv(space: str) -> None:
    """The nearest kernel is found by least squares over the kernels that escnn makes of all weights, in float32."""
    layer = baseline("residual", space, "irreps -> irreps", kernel_size=5).float()
    convolution = enn.R2Conv(layer.in_type, layer.out_type, 5, bias=False)
    kernels = []
    for number in range(len(convolution.weights)):
        with torch.no_grad():
            convolution.weights.zero_()[number] = 1
        kernels.append(convolution.expand_parameters()[0].detach().flatten())
    kernels = torch.stack(kernels, dim=1).double()
    bank = layer.filter_bank().detach().double()
    weights = torch.linalg.lstsq(kernels, bank.flatten()[:, None]).solution
    nearest = (kernels @ weights).view_as(bank)
    assert relative_error(harden_network(layer).filter_bank().detach().double(), nearest) < 1e-5
    expected = (bank - nearest).square().sum() / bank.square().sum()
    assert layer.softness().item() == pytest.approx(float(expected), rel=1e-4)


@torch.no_grad()
def test_strict_part_of_a_free_kernel_keeps_to_its_blocks() -> None:
    """Fields of several kinds in any order, convolved in groups."""
    in_type = battery.field_type("C8", "regular + last irrep + regular + last irrep")
    out_type = battery.field_type("C8", "last irrep + regular + last irrep + regular")
    layer = ResidualR2Conv(in_type, out_type, 3, padding=1, padding_mode="circular", groups=2).double()
    hardened = harden_network(layer)
    assert relative_error(harden_network(hardened).filter_bank(), hardened.filter_bank()) <= ROUNDING
    assert largest_error(hardened, features_of(layer, side=5)) <= ROUNDING


@EVERY_WAY
def test_softness_has_the_gradient_of_finite_differences(way: str) -> None:
    layer = baseline(way, "C8" if way == "residual" else "C4", "regular -> regular")
    names = [name for name, _ in layer.named_parameters()]

    def softness(*values: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            state = dict(zip(names, values, strict=True))
        return torch.func.functional_call(_Softness(layer), {f"layer.{n}": v for n, v in state.items()}, ())

    assert torch.autograd.gradcheck(softness, [p.detach().requires_grad_() for p in layer.parameters()], fast_mode=True)


class _Softness(torch.nn.Module):
    def __init__(self, layer: RelaxedConvolution) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> torch.Tensor:
        return self.layer.softness()


@EVERY_WAY
def test_softness_penalty_makes_a_layer_strict(way: str) -> None:
    layer = baseline(way, "C4", "regular -> regular")
    start = layer.softness().item()
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(200):
        optimiser.zero_grad()
        equivariance_penalty(layer, "softness").backward()
        optimiser.step()
    assert layer.softness().item() < 1e-2 * start


@EVERY_WAY
def test_frequency_penalty_says_that_there_is_no_frequency(way: str) -> None:
    layer = baseline(way, "C4", "regular -> regular")
    network = enn.SequentialModule(layer)
    with pytest.raises(ValueError, match=f"ω′, which '0', a {type(layer).__name__}, does not have: take kind='softn"):
        equivariance_penalty(network, "frequency")


@EVERY_WAY
def test_bad_names_of_subgroups_are_named(way: str) -> None:
    layer = baseline(way, "C4", "regular -> regular")
    for call in (layer.softness, layer.harden):
        with pytest.raises(ValueError, match=r"\['rotation', 'reflection', 'translation'\], got 'turns'"):
            call("turns")


def network_of(way: str, space: str = "C4") -> enn.SequentialModule:
    """Two layers, ReLU and the maximum over the group."""
    first, second = baseline(way, space, "trivial -> regular"), baseline(way, space, "regular -> regular")
    modules = [first, enn.ReLU(first.out_type), second, enn.GroupPooling(second.out_type)]
    return enn.SequentialModule(*modules).double()


EXPECTED = {
    "partial": ["narrowing rotation 0.25", "narrowing rotation 0.25"],
    "residual": ["free kernel of 36 weights", "free kernel of 144 weights"],
    "weighted": ["weights of 4 elements, 2 kernels"] * 2,
}


@EVERY_WAY
def test_summary_lists_the_layers(way: str) -> None:
    network = network_of(way)
    if way == "partial":
        for layer in (network[0], network[2]):
            layer.set_narrowing(rotation=0.25)
    data = features_of(network[0], side=5)
    summary = relaxation_summary(network, data=data)
    assert [row.name for row in summary.rows] == ["0", "2"]
    assert [row.relaxed_by for row in summary.rows] == EXPECTED[way]
    for row, layer in zip(summary.rows, (network[0], network[2]), strict=True):
        assert row.softness == {"rotation": layer.softness().item(), "all": layer.softness().item()}
        assert row.own_error > 0.05
        assert row.domain_frequency == {}
    text = str(summary).splitlines()
    assert "relaxed by" in text[0]
    assert "ω′" not in text[0]
    assert EXPECTED[way][0] in text[1]


@EVERY_WAY
def test_ablation_sees_the_layers(way: str) -> None:
    network = network_of(way).eval()
    features = network[0].in_type(features_of(network[0], side=5))
    rows = softness_ablation(network, lambda net: largest_error(net, features.tensor), progress=False)
    assert [row.part for row in rows] == ["nothing", "0", "2", "rotation", "everything"]
    assert rows[0].value > 0.05
    assert rows[-1].value <= ROUNDING
    assert "everything" in str(rows)


@EVERY_WAY
def test_scalars_parameter_groups_and_plots_take_the_layers(way: str) -> None:
    network = network_of(way)
    scalars = relaxation_scalars(network)
    assert scalars["frequency_energy/total"] == 0
    assert scalars["softness/0"] == network[0].softness().item()
    assert [len(group["params"]) for group in parameter_groups(network)] == [len(list(network.parameters()))]
    assert len(plot_softness(network).patches) == 2


@EVERY_WAY
def test_hardened_network_is_exported(way: str) -> None:
    network = network_of(way)
    hardened = harden_network(network)
    features = features_of(network[0], side=5)
    exported = export_network(hardened)
    assert type(exported[0]) is torch.nn.Conv2d
    assert (
        relative_error(exported(features).detach(), answer(hardened.eval(), features)) < 1e-6
    )  # escnn pools in float32
    for turns in (1, 2, 3):
        turned = exported(features.rot90(turns, (2, 3))).detach()
        assert relative_error(turned, exported(features).detach().rot90(turns, (2, 3))) <= ROUNDING


def test_norm_is_that_of_the_basis_where_representations_are_orthogonal() -> None:
    layer = PartialR2Conv(*battery.types("D4", "mixed, sheared -> regular"), 3).double()
    kernels = torch.randn(2, *layer.filter_bank().shape, dtype=torch.float64)
    orthogonal = OrthogonalBasis(layer.kernel_types[0].representations, layer.out_type.representations).double()
    assert orthogonal.energy(kernels[0]).item() == pytest.approx(float(energy(layer, kernels[0])), rel=1e-12)
    assert orthogonal.energy(kernels[0]).item() != pytest.approx(float(kernels[0].square().sum()), rel=0.01)
    inner = (orthogonal(kernels[0]) * orthogonal(kernels[1])).sum()
    assert (orthogonal.adjoint(orthogonal(kernels[0])) * kernels[1]).sum().item() == pytest.approx(inner.item())
