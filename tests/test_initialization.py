"""The start of a layer: variance through ten of them, as soft as asked for, nothing drawn from small numbers."""

from __future__ import annotations

import math

import battery
import numpy as np
import pytest
import torch
from escnn.nn import EquivariantModule, FieldType, FourierPointwise, R2Conv, ReLU
from layers import SOFT_PARTS, options_of
from torch.nn import functional
from transformations import equivariance_error, largest_error, rotations

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv

DEPTH = 10
# The logarithm of a variance ten layers deep scatters by 0.25: with 12 draws O(2) at ω′ = 2 goes from 0.74 to 1.46,
# with 3 of them once beyond 2.
DRAWS = 4
SIZE = 16


def nonlinearity(space: str) -> EquivariantModule:
    """ReLU on regular fields; ReLU on the group, sampled, on fields of irreps."""
    gspace = battery.gspace(space)
    if space in battery.CONTINUOUS:
        irreps = gspace.fibergroup.bl_irreps(2)
        return FourierPointwise(gspace, 6, irreps, function="p_relu", type="regular", N=16)
    return ReLU(FieldType(gspace, [gspace.regular_repr] * 8))


@torch.no_grad()
def variance_by_depth(space: str, frequency: float) -> np.ndarray:
    """Variance of the activations after each of ten layers without batch norm; on the torus, which has no border."""
    gspace = battery.gspace(space)
    activation = nonlinearity(space)
    in_type = FieldType(gspace, [gspace.trivial_repr])
    features = in_type(functional.avg_pool2d(torch.randn(4, 1, SIZE + 2, SIZE + 2), 3, stride=1))
    variances = []
    for _ in range(DEPTH):
        layer = RelaxedR2Conv(
            features.type,
            activation.in_type,
            kernel_size=5,
            padding=2,
            padding_mode="circular",
            relax=battery.subgroups(space, frequency),
            kernel=ContinuousKernel(),
        )
        features = activation(layer(features))
        variances.append(float(features.tensor.var()))
    return np.array(variances)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:relax. the domain frequency .* aliases:UserWarning")
@pytest.mark.parametrize(("space", "frequency"), [("C8", 0.0), ("D4", 0.5), ("SO(2)", 2.0)])
def test_variance_stays_within_a_factor_of_two_through_ten_layers(
    space: str, frequency: float, record_property: pytest.RecordProperty
) -> None:
    """This holds for continuous kernels; the strict part in the steerable basis starts as ``R2Conv`` does."""
    draws = []
    for seed in range(DRAWS):
        torch.manual_seed(seed)
        draws.append(variance_by_depth(space, frequency))
    # Geometric mean over draws: a layer of few fields scatters by about 1.4 in variance, ten of them by more.
    # Against the geometric mean over the depth: no layer is the one to compare the others with.
    logarithms = np.mean(np.log(draws), axis=0)
    ratios = np.exp(logarithms - logarithms.mean())
    record_property("variance by depth", ratios.round(2).tolist())
    print(f"{space} at {frequency}: {ratios.round(2)}")
    assert ratios.max() <= 2
    assert ratios.min() >= 1 / 2


@pytest.mark.parametrize("space", ["trivial", "C8", "D4", "SO(2)"])
def test_strict_part_starts_as_r2conv_does(space: str) -> None:
    """To the last bit of the weights, so that a soft layer trains as the layer in whose place it stands."""
    in_type, out_type = battery.types(space, "trivial -> irreps" if space == "trivial" else "irreps -> irreps")
    torch.manual_seed(0)
    expected = R2Conv(in_type, out_type, 5).weights
    torch.manual_seed(0)
    relax = {"translation": 0.25, **battery.subgroups(space, 0.25)}
    found = RelaxedR2Conv(in_type, out_type, 5, relax=relax).weights
    assert torch.equal(found, expected)


SOFT_STARTS = [
    ("C4", "two regular -> two regular"),
    ("D4", "irreps -> irreps"),
    ("C8", "regular -> irreps"),
    ("O(2)", "band-limited -> band-limited"),
]
FIRST, *OTHERS = SOFT_STARTS


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@pytest.mark.parametrize(
    ("space", "pair", "kernel_size"), [*((*FIRST, size) for size in (1, 3, 5)), *((*case, 3) for case in OTHERS)]
)
def test_layer_starts_as_soft_as_asked(space: str, pair: str, kernel_size: int, soft_part: str) -> None:
    """On white noise the mean square error over the group is twice the softness (equation (7))."""
    in_type, out_type = battery.types(space, pair)
    errors, energies = [], []
    for seed in range(2):
        torch.manual_seed(seed)
        layer = RelaxedR2Conv(
            in_type,
            out_type,
            kernel_size,
            padding=kernel_size // 2,
            padding_mode="circular",
            relax=battery.subgroups(space, 0.25),
            initial_softness=0.01,
            **options_of(soft_part),
        )
        layer.double().eval()
        features = battery.random_input(in_type, 8, 8, batch=8)
        elements = in_type.gspace.fibergroup.grid(type="regular", N=4) if space in battery.CONTINUOUS else None
        elements = elements or [g for g in in_type.fibergroup.elements if is_on_grid(in_type, g)]
        energies.append(float(layer(in_type(features)).tensor.detach().square().sum()))
        errors.append(np.mean([equivariance_error(layer, features, g) ** 2 for g in elements]) * energies[-1])
    # Energies are what is drawn as asked, not their ratio. Kernels of few fields scatter, and elements off the pixel
    # grid are not measured: a factor of 3.
    assert 0.01 / 3 <= np.sum(errors) / np.sum(energies) / 2 <= 0.01 * 3


@pytest.mark.parametrize(("group", "softness", "regions"), [({}, 0.05, 2), ({"rotation": 0.25}, 0.001, 4)])
@pytest.mark.parametrize(("space", "pair"), SOFT_STARTS)
def test_soft_part_in_translation_starts_exactly_as_soft_as_asked(
    space: str, pair: str, group: dict[str, float], softness: float, regions: int
) -> None:
    """It is drawn at the same positions over which softness is a mean."""
    relax = {"translation": (0.2, 0.4), **group}
    layer = RelaxedR2Conv(*battery.types(space, pair), 3, relax=relax, initial_softness=softness, regions=regions)
    assert layer.softness().item() == pytest.approx(softness, rel=1e-5)  # sums of some thousand terms in float32


def is_on_grid(field_type: FieldType, element: object) -> bool:
    action = field_type.gspace.basespace_action(element)
    return np.allclose(action, action.round(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@pytest.mark.parametrize(
    ("space", "pair", "kernel_size"), [*((*FIRST, size) for size in (1, 2, 5)), *((*case, 1) for case in OTHERS)]
)
def test_layer_in_float32_is_equivariant_to_float32_rounding_at_zero(
    space: str, pair: str, kernel_size: int, soft_part: str
) -> None:
    """Also between fields that have no strict kernel: units must not blow rounding errors up."""
    in_type, out_type = battery.types(space, pair)
    relax = battery.subgroups(space, 0.25)
    layer = RelaxedR2Conv(in_type, out_type, kernel_size, relax=relax, **options_of(soft_part))
    layer.set_domain_frequency(**battery.subgroups(space, 0.0))
    # Rounding is 1e-7; sums of some hundred terms of both signs lose a digit or two.
    assert largest_error(layer, battery.random_input(in_type, 7, 7, dtype=torch.float32)) <= 1e-5


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@pytest.mark.parametrize(("space", "kernel_size"), [("D4", 1), ("D4", 5), ("D6", 3), ("O(2)", 3)])
def test_soft_reflection_in_float32_keeps_rotations_to_float32_rounding(
    space: str, kernel_size: int, soft_part: str
) -> None:
    # Irreps of a tied kernel are not soft in reflection alone.
    in_type, out_type = battery.types(space, "irreps -> irreps" if space == "O(2)" else "irreps -> regular")
    layer = RelaxedR2Conv(in_type, out_type, kernel_size, relax={"reflection": 0.25}, **options_of(soft_part))
    features = battery.random_input(in_type, 7, 7, dtype=torch.float32)
    assert largest_error(layer, features, rotations) <= 1e-5  # as above


@pytest.mark.parametrize(("hidden_size", "initial_softness"), [(2, 0.9), (8, 0.001)])
@pytest.mark.parametrize(("space", "pair"), [*SOFT_STARTS, ("O(2)", "last irrep -> last irrep")])
def test_domain_weights_never_start_large(space: str, pair: str, hidden_size: int, initial_softness: float) -> None:
    """Also where a kernel net cannot be as soft as asked for: ω′ must keep its meaning."""
    layer = RelaxedR2Conv(
        *battery.types(space, pair),
        3,
        relax=battery.subgroups(space, 0.2),
        initial_softness=initial_softness,
        samples=4,
        **options_of("continuous", hidden_size=hidden_size),
    )
    # Standard normal draws stay below 5; ten times that would be another frequency altogether.
    assert layer.kernel.net.domain_weight.abs().max() < 50


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
def test_start_follows_the_seed(soft_part: str) -> None:
    in_type, out_type = battery.types("C4", "regular -> irreps")
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        layer = RelaxedR2Conv(in_type, out_type, 3, relax={"rotation": 0.2}, **options_of(soft_part))
        states.append(layer.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@pytest.mark.parametrize("relax", [{"rotation": 0.0}, {"rotation": 0.0, "translation": 0.0}], ids=["0", "0, 0"])
def test_layer_that_starts_strict_can_become_soft(relax: dict[str, float], soft_part: str) -> None:
    """Units and sizes are fixed on a frequency that is not 0."""
    in_type, out_type = battery.types("C4", "regular -> regular")
    layer = RelaxedR2Conv(in_type, out_type, 3, padding=1, relax=relax, **options_of(soft_part)).double()
    features = battery.random_input(in_type, 6, 6, batch=8)
    assert largest_error(layer, features) <= 1e-12  # float64 rounding
    layer.set_domain_frequency(rotation=0.25)
    # √(2s) at the default softness, for one kernel within a factor of 3.
    expected = math.sqrt(2 * layer.kernel.default_softness)
    assert expected / 3 <= largest_error(layer, features) <= expected * 3


@pytest.mark.parametrize("kernel_size", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("support", ["smooth", "disk"])
def test_no_kernel_size_starts_empty(kernel_size: int, support: str) -> None:
    in_type, out_type = battery.types("C4", "trivial -> regular")
    layer = RelaxedR2Conv(in_type, out_type, kernel_size, relax=None, kernel=ContinuousKernel(support=support))
    assert layer.filter_bank().abs().max() > 0


def test_synthetic_calibration_leaves_no_trace_in_the_layer() -> None:
    """No gradient graph, no forward hook, and float32 as asked for."""
    layer = RelaxedR2Conv(*battery.types("C4", "regular -> regular"), 3, kernel=ContinuousKernel())
    assert all(parameter.is_leaf and parameter.grad is None for parameter in layer.parameters())
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float32}


def test_start_does_not_depend_on_the_number_of_threads() -> None:
    """Sums in another order turn the eigenvectors of equal energies; the layer of a seed must not."""
    types = battery.types("D4", "regular -> irreps")
    states = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            torch.manual_seed(0)
            states.append(RelaxedR2Conv(*types, 3, kernel=ContinuousKernel(hidden_size=8)).state_dict())
    finally:
        torch.set_num_threads(threads)
    for name, value in states[0].items():
        assert torch.allclose(value, states[1][name], rtol=0, atol=1e-5 * float(value.abs().max())), name


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_what_the_group_cannot_see_is_no_soft_part() -> None:
    """The angle over 2π at ω′ = 4 is an integer on C4: what rounding leaves of the soft part is not scaled up."""
    types = battery.types("C4", "regular -> regular")
    kernel = ContinuousKernel(rotation_coordinates="log")
    with pytest.warns(UserWarning, match="it aliases"):
        layer = RelaxedR2Conv(*types, 3, padding=1, relax={"rotation": 4.0}, kernel=kernel)
    assert layer.softness() < 1e-10  # rounding of float32, squared
    features = battery.random_input(types[0], 8, 8).float()
    assert largest_error(layer, features) < 1e-4
