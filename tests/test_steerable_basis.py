"""The strict part in R2Conv's basis: weight for weight R2Conv; the soft part beside it is centred on the domain."""

from __future__ import annotations

import battery
import pytest
import torch
from escnn import gspaces
from escnn.nn import FieldType, R2Conv
from group_average import energy
from layers import build_with_oracle, shake
from tolerances import ROUNDING, SINGLE_REORDERED
from transformations import relative_error

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
from escnn_relaxed.on_escnn import grid_exact_basis
from escnn_relaxed.kernel.steerable_basis import SteerableBasis

CASES = [
    ("trivial", "trivial -> trivial"),
    ("flip", "two regular -> irreps"),
    ("C4", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed"),
    ("C8", "quotient -> induced"),
    ("D4", "two regular -> regular"),
    ("D6", "irreps -> regular"),
    ("SO(2)", "irreps -> band-limited"),
    ("O(2)", "irreps -> irreps"),
]
# Arguments of R2Conv that shape its basis; here they mean what they mean there.
SHAPES = {
    "kernel 1": {"kernel_size": 1},
    "kernel 4": {"kernel_size": 4},
    "kernel 5": {"kernel_size": 5},
    "dilation": {"kernel_size": 3, "dilation": 2},
    "groups": {"kernel_size": 3, "groups": 2},
    "rings and sigma": {"kernel_size": 5, "rings": [0.0, 1.0, 2.0], "sigma": [0.4, 0.5, 0.6]},
    "cutoff": {"kernel_size": 5, "frequencies_cutoff": 1.0},
    "cutoff function": {"kernel_size": 5, "frequencies_cutoff": lambda radius: 2 * radius},
    "basis filter": {"kernel_size": 5, "basis_filter": lambda attributes: attributes["radius"] > 0.5},
    "no bias": {"kernel_size": 3, "bias": False},
}


def r2conv_and_layer(in_type: FieldType, out_type: FieldType, relax=None, **arguments) -> tuple[R2Conv, RelaxedR2Conv]:
    convolution = R2Conv(in_type, out_type, **arguments)
    shake(convolution)
    return convolution, RelaxedR2Conv(in_type, out_type, relax=relax, strict_kernel="steerable", **arguments)


def same_answer(convolution: R2Conv, layer: RelaxedR2Conv) -> bool:
    in_type = convolution.in_type
    features = in_type(battery.random_input(in_type, 9, 9, dtype=torch.float32))
    with torch.no_grad():
        return relative_error(layer(features).tensor, convolution(features).tensor) <= SINGLE_REORDERED


@pytest.mark.parametrize(("space", "pair"), CASES)
def test_strict_layer_is_r2conv_weight_for_weight(space: str, pair: str) -> None:
    convolution, layer = r2conv_and_layer(*battery.types(space, pair), kernel_size=3, padding=1)
    expected = {name: parameter.shape for name, parameter in convolution.named_parameters()}
    assert {name: parameter.shape for name, parameter in layer.named_parameters()} == expected
    layer.load_state_dict(dict(convolution.named_parameters()))
    assert same_answer(convolution, layer)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("space", ["C4", "O(2)"])
def test_arguments_of_the_basis_mean_what_they_mean_in_r2conv(space: str, shape: str) -> None:
    in_type, out_type = battery.types(space, "irreps + irreps -> trivial + last irrep + trivial + last irrep")
    convolution, layer = r2conv_and_layer(in_type, out_type, **SHAPES[shape])
    layer.load_state_dict(dict(convolution.named_parameters()))
    assert same_answer(convolution, layer)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("relax", [None, {"rotation": 0.2}], ids=["strict", "soft"])
def test_state_of_an_r2conv_loads_and_keeps_its_function(relax: dict[str, float] | None, mode: str) -> None:
    """R2Conv's state dict holds other entries in evaluation than in training."""
    convolution, layer = r2conv_and_layer(*battery.types("C4", "regular -> irreps"), relax=relax, kernel_size=3)
    convolution.train(mode == "train")
    state = convolution.state_dict()
    layer.load_state_dict(state)
    assert same_answer(convolution, layer)
    assert set(state) == set(convolution.state_dict()), "the caller's state dict was changed"


def test_state_of_a_network_of_r2convs_loads() -> None:
    in_type, out_type = battery.types("C4", "trivial -> regular")
    convolutions = torch.nn.Sequential(R2Conv(in_type, out_type, 3), R2Conv(out_type, out_type, 3))
    layers = torch.nn.Sequential(RelaxedR2Conv(in_type, out_type, 3), RelaxedR2Conv(out_type, out_type, 3))
    layers.load_state_dict(convolutions.state_dict())
    features = in_type(battery.random_input(in_type, 7, 7, dtype=torch.float32))
    with torch.no_grad():
        assert relative_error(layers(features).tensor, convolutions(features).tensor) <= SINGLE_REORDERED


@pytest.mark.parametrize(
    ("space", "pair", "translation"),
    [
        ("C4", "two regular -> regular", False),
        ("D2", "regular -> mixed, sheared", False),
        ("SO(2)", "trivial -> irreps", False),
        # The loops take seconds where every pixel has its own kernel.
        ("C2", "regular -> irreps", True),
        ("SO(2)", "trivial -> last irrep", True),
    ],
)
def test_soft_part_is_the_loop_oracle_less_its_mean_over_the_domain(space: str, pair: str, translation: bool) -> None:
    in_type, out_type = battery.types(space, pair)
    layer, oracle = build_with_oracle(
        in_type,
        out_type,
        padding=1,
        relax=battery.subgroups(space, 0.2) | ({"translation": 0.3} if translation else {}),
        samples=4,
        hidden_size=4,
        initial_softness=0.3,
        soft_part="centred",
    )
    features = battery.random_input(in_type, 2, 2)
    with torch.no_grad():
        whole = layer(in_type(features)).tensor
        strict = torch.nn.functional.conv2d(
            features, layer.steerable_basis(layer.weights), layer.expanded_bias(), padding=1
        )
        layer.weights.zero_()
        soft = layer(in_type(features)).tensor
        assert relative_error(soft, oracle(features)) <= ROUNDING
        bias = 0 if layer.bias is None else layer.expanded_bias()[:, None, None]
        assert relative_error(whole, strict + soft - bias) <= ROUNDING


def test_two_by_two_kernels_have_a_basis() -> None:
    """R2Conv fails on them with an empty one."""
    in_type, out_type = battery.types("C4", "trivial -> regular")
    layer = RelaxedR2Conv(in_type, out_type, 2, relax=None, strict_kernel="steerable")
    assert layer.weights.numel() > 0
    assert (layer.filter_bank() != 0).any(dim=0).all()  # no tap is out of reach


def test_types_without_a_steerable_kernel_give_a_zero_bank() -> None:
    space = gspaces.rot2dOnR2(-1)
    in_type, out_type = FieldType(space, [space.irrep(0)]), FieldType(space, [space.irrep(3)])
    layer = RelaxedR2Conv(in_type, out_type, 1, relax=None, strict_kernel="steerable")
    assert (layer.filter_bank() == 0).all()
    assert layer(in_type(torch.randn(1, 1, 4, 4))).tensor.shape == (1, 2, 4, 4)


def test_basis_is_not_shared_between_layers() -> None:
    """escnn's global cache shares it: .double() on one layer breaks another."""
    in_type, out_type = battery.types("C4", "regular -> regular")
    first, second = (RelaxedR2Conv(in_type, out_type, 3) for _ in range(2))
    first.double()
    assert second(in_type(battery.random_input(in_type, 5, 5, dtype=torch.float32))).tensor.dtype == torch.float32


@pytest.mark.parametrize("large", [0, 2**20])
@pytest.mark.parametrize("pair", ["regular -> regular", "quotient -> regular", "irreps -> regular"])
def test_exact_basis_is_the_average_over_the_group(pair: str, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is kept entry by entry or, where it is large, orbit by orbit; escnn's own samples are 1e-8 from it."""
    monkeypatch.setattr(grid_exact_basis, "_LARGE", large)
    monkeypatch.setattr(grid_exact_basis, "_PREPARED", {})
    in_type, out_type = battery.types("D4", pair)
    expansion = R2Conv(in_type, out_type, 3).basisexpansion
    basis = SteerableBasis(in_type, out_type, 3, 1, 1, expansion).double()
    assert any(name.startswith("orbits") for name in basis._buffers) == (large == 0)
    weights = torch.randn(basis.dimension, dtype=torch.float64)
    expected = expansion(weights.float()).view(out_type.size, in_type.size, 9)
    assert relative_error(basis(weights).flatten(2), expected.double()) <= SINGLE_REORDERED
    for names, _, exact in basis.by_name():
        samples = getattr(expansion, f"block_expansion_{expansion._escape_pair(names)}").sampled_basis.double()
        in_field, out_field = (in_type.fibergroup.representations[name] for name in names)
        total = torch.zeros_like(exact).unflatten(-1, (3, 3))
        for g in in_type.fibergroup.elements:
            left, right = torch.tensor(out_field(g)), torch.tensor(in_field(~g))
            fields = FieldType(in_type.gspace, [in_type.gspace.trivial_repr])
            taps = samples.flatten(0, 2)[:, None].unflatten(-1, (3, 3))
            turned = fields(taps).transform(g).tensor.reshape(total.shape)
            total += torch.einsum("ab,nbcij,cd->nadij", left.double(), turned, right.double())
        average = (total / in_type.fibergroup.order()).flatten(-2)
        assert relative_error(exact.flatten(), average.flatten()) <= ROUNDING


@pytest.mark.parametrize("pair", ["regular -> regular", "irreps -> regular"])
def test_layers_share_the_exact_basis(pair: str) -> None:
    first, second = (RelaxedR2Conv(*battery.types("D4", pair), 3).steerable_basis for _ in range(2))
    assert first.exact("basis_0").data_ptr() == second.exact("basis_0").data_ptr()


def test_fingerprint_is_that_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state says the same of a basis however it is kept; the number is that of states that were saved before."""
    for large in (2**20, 0):
        monkeypatch.setattr(grid_exact_basis, "_LARGE", large)
        monkeypatch.setattr(grid_exact_basis, "_PREPARED", {})
        layer = RelaxedR2Conv(*battery.types("C4", "regular -> regular"), 3)
        assert layer.steerable_basis.fingerprint == [-0.571672]


def test_layer_without_initialisation_starts_from_zero_weights() -> None:
    in_type, out_type = battery.types("C4", "regular -> regular")
    layer = RelaxedR2Conv(in_type, out_type, 3, relax=None, initialize=False, strict_kernel="steerable")
    assert (layer.filter_bank() == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("space", "pair"),
    [
        ("C4", "two regular -> irreps"),
        ("C8", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed"),
        ("D4", "quotient -> induced"),
        ("O(2)", "irreps -> band-limited"),
        ("D4", "mixed, sheared -> mixed, sheared"),
    ],
)
def test_energy_is_that_of_the_bank(space: str, pair: str, dtype: torch.dtype) -> None:
    """Without building it; of a changed basis that is not orthogonal, in the basis of irreps."""
    layer = RelaxedR2Conv(*battery.types(space, pair), 3, relax=None).to(dtype)
    shake(layer)
    with torch.no_grad():
        bank = layer.filter_bank().double()
        found = layer.steerable_basis.energy(layer.weights).item()
    expected = float(energy(layer, bank))
    assert found == pytest.approx(expected, rel=ROUNDING if dtype == torch.float64 else SINGLE_REORDERED)
    if "sheared" in pair:
        assert abs(float(bank.square().sum()) / expected - 1) > 0.01  # it matters


def test_energy_of_groups_is_that_of_their_part_of_the_bank() -> None:
    in_type, out_type = battery.types("C4", "regular + regular -> irreps + irreps")
    layer = RelaxedR2Conv(in_type, out_type, 3, groups=2, relax=None).double()
    bank = layer.filter_bank()
    assert layer.strict_energy().item() == pytest.approx(float(bank.square().sum().detach()), rel=ROUNDING)


def test_energy_of_no_kernel_is_zero() -> None:
    space = gspaces.rot2dOnR2(-1)
    in_type, out_type = FieldType(space, [space.irrep(0)]), FieldType(space, [space.irrep(3)])
    assert RelaxedR2Conv(in_type, out_type, 1, relax=None).strict_energy().item() == 0


@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize("pair", ["irreps", "irreps in another order", "regular, trivial and quotient"])
def test_strict_kernels_are_added_to_their_pairs(pair: str, kernel_size: int) -> None:
    """One by one, or all of them where no steerable kernel fits between some fields."""
    so2, d4 = gspaces.rot2dOnR2(-1), gspaces.flipRot2dOnR2(4)
    fields = {
        "irreps": FieldType(so2, [so2.irrep(0), so2.irrep(1), so2.irrep(2)] * 2),
        "irreps in another order": FieldType(so2, [so2.irrep(2), so2.irrep(1), so2.irrep(1), so2.irrep(0)]),
        "regular, trivial and quotient": FieldType(d4, [d4.regular_repr, d4.trivial_repr, d4.quotient_repr((None, 2))]),
    }[pair]
    layer = RelaxedR2Conv(fields, fields, kernel_size, initial_softness=0.3, kernel=ContinuousKernel()).double()
    groups = layer.bank.steered_average.pair_channels
    is_whole = layer.steerable_basis.products_between(layer.weights, groups) is not None
    assert is_whole == (kernel_size == 3 or pair.startswith("regular"))
    expected = layer.bank(layer.domain_frequency) + layer.steerable_basis(layer.weights)
    torch.testing.assert_close(layer.filter_bank(), expected)
