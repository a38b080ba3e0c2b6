"""The paper's form, one continuous kernel: its options, its nets, its limits, and the units of its weights."""

from __future__ import annotations

import math
from typing import Any

import battery
import numpy as np
import pytest
import torch
from escnn import gspaces
from escnn.nn import EquivariantModule, FieldType, FourierPointwise, GeometricTensor, ReLU
from forms import features_of
from layers import build, options_of, soft_layer
from reference import position_of
from tolerances import BROKEN, DECOMPOSED, ROUNDING
from torch import Tensor
from torch.nn import functional
from transformations import answer_to, largest_error, relative_error

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
from escnn_relaxed.continuous import FourierKernel, SirenKernel, units
from escnn_relaxed.continuous.units import weight_units as units_of

CONSTANT = {"position": 0.0, "rotation": 0.0, "reflection": 0.0}
NAN = float("nan")

# name: (arguments, the error, what its message must hold)
BAD = {
    "unknown coordinates": ({"rotation_coordinates": "angle"}, ValueError, ["rotation_coordinates", "'angle'", "log"]),
    "unknown kernel net": ({"net": "mlp"}, TypeError, ["net", "'mlp'", "KernelNet"]),
    "unknown support": ({"support": "square"}, ValueError, ["support", "'square'", "disk"]),
    "hidden size 0": ({"hidden_size": 0}, ValueError, ["hidden_size", "0", ">= 1"]),
    "hidden size a float": ({"hidden_size": 8.0}, TypeError, ["hidden_size", "8.0", "integer"]),
    "filter frequency negative": ({"filter_frequency": -1.0}, ValueError, ["filter_frequency", "-1.0", ">= 0"]),
    "filter frequency NaN": ({"filter_frequency": NAN}, ValueError, ["filter_frequency", "nan", "finite"]),
    "filter frequency in words": ({"filter_frequency": "low"}, TypeError, ["filter_frequency", "'low'", "number"]),
    "filter frequency True": ({"filter_frequency": True}, TypeError, ["filter_frequency", "True", "number"]),
    "unknown filter coordinate": ({"filter_frequency": {"scale": 1.0}}, ValueError, ["filter_frequency", "'scale'"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_argument_raises_an_error_that_says_so(case: str) -> None:
    arguments, error, words = BAD[case]
    with pytest.raises(error) as raised:
        ContinuousKernel(**arguments)
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize(
    ("options", "hidden_size", "frequencies"),
    [
        ({}, 32, {"position": 0.12 * 5 / 2, "rotation": 0.3, "reflection": 1.0}),
        (
            {"hidden_size": 3, "filter_frequency": np.float64(0.5)},
            3,
            {"position": 0.5, "rotation": 0.3, "reflection": 1.0},
        ),
        ({"filter_frequency": {"reflection": 0.5}}, 32, {"position": 0.3, "rotation": 0.3, "reflection": 0.5}),
    ],
)
def test_what_is_not_given_follows_the_size(options: dict[str, Any], hidden_size: int, frequencies: dict) -> None:
    layer = RelaxedR2Conv(*battery.types("D4", "trivial -> regular"), 5, **options_of("continuous", **options))
    described = layer.describe()
    assert described["kernel net"] == ["fourier", hidden_size]
    assert described["filter frequency"] == pytest.approx(frequencies)


# --- nets -------------------------------------------------------------------------------------------------------------


def gamma(projection: Tensor, point: Tensor) -> Tensor:
    """γ(α) = D^{-1/2} [cos 2πWα; sin 2πWα]."""
    phases = 2 * math.pi * (projection @ point)
    return torch.cat([phases.cos(), phases.sin()]) / math.sqrt(len(projection))


@torch.no_grad()
def test_fourier_kernel_is_the_papers_formula() -> None:
    """φ = cos(A γ(α) + A′ γ′(α′) + b)."""
    kernel = FourierKernel(3, 2, 5, 7).double()
    filter_point, domain_point = torch.randn(3, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    phase = kernel.filter_weight @ gamma(kernel.filter_projection, filter_point) + kernel.bias
    phase = phase + kernel.domain_weight @ gamma(kernel.domain_projection, domain_point)
    assert relative_error(kernel(filter_point, domain_point), phase.cos()) <= ROUNDING
    assert {"filter_projection", "domain_projection"} <= set(kernel.state_dict()) - dict(
        kernel.named_parameters()
    ).keys()


@torch.no_grad()
def test_siren_kernel_is_two_sine_layers_on_the_concatenated_coordinates() -> None:
    kernel = SirenKernel(3, 2, 5).double()
    filter_points, domain_points = torch.randn(4, 1, 3).double(), torch.randn(4, 6, 2).double()
    found = kernel(filter_points, domain_points)
    assert found.shape == (5, 4, 6)
    point = torch.cat([filter_points[2, 0], domain_points[2, 5]])
    weight = torch.cat([kernel.filter_weight, kernel.domain_weight], dim=1)
    first = torch.sin(2 * math.pi * (weight @ point + kernel.bias))
    assert relative_error(found[:, 2, 5], torch.sin(kernel.hidden_weight @ first + kernel.hidden_bias)) <= ROUNDING


@pytest.mark.parametrize(("dimension", "outputs", "published"), [(2, 3 * 32, 4320), (3, 32 * 32, 34976)])
def test_siren_has_the_published_parameter_count(dimension: int, outputs: int, published: int) -> None:
    """The paper's counts: the lifting kernel 3→32, and one of the two group convolutions 32→32 of 69,952 together."""
    kernel = SirenKernel(dimension, 0, hidden_size=32)
    assert sum(p.numel() for p in kernel.parameters()) + 32 * outputs + outputs == published


# --- limits -----------------------------------------------------------------------------------------------------------


def disk(kernel_size: int) -> Tensor:
    """1 on the taps within (k − 1)/2 of the centre, for even k within k/2: (k, k)."""
    line = torch.arange(kernel_size) - (kernel_size - 1) / 2
    radius = kernel_size // 2
    return (line[:, None] ** 2 + line**2 <= radius**2 + 1e-9).double()


@torch.no_grad()
@pytest.mark.parametrize(
    ("space", "pair", "kernel_size"),
    [
        *[("trivial", "trivial -> trivial", size) for size in (2, 3, 5)],
        ("C8", "trivial -> regular", 3),
        ("C4", "two regular -> regular", 4),
        ("D4", "regular -> irreps", 5),
        ("SO(2)", "band-limited -> irreps", 2),
    ],
)
def test_no_frequency_at_all_gives_pooling_over_the_disk(space: str, pair: str, kernel_size: int) -> None:
    """ω = ω′ = 0: the kernel is constant, over the group too; with an ω of the position it is not."""
    arguments = {"relax": battery.subgroups(space, 0.0), "support": "disk"}
    layer = build(*battery.types(space, pair), kernel_size, filter_frequency=CONSTANT, **arguments)
    bank, middle = layer.filter_bank(), kernel_size // 2
    mixing = bank[:, :, middle, middle]
    assert mixing.norm() > 0
    assert relative_error(bank, mixing[:, :, None, None] * disk(kernel_size)) <= ROUNDING
    if pair == "trivial -> regular":
        assert relative_error(mixing, mixing[:1].expand_as(mixing)) <= ROUNDING
        frequency = CONSTANT | {"position": 0.3}
        other = build(*battery.types(space, pair), kernel_size, filter_frequency=frequency, **arguments).filter_bank()
        assert float(other[0, 0, [1, 1, 0], [1, 2, 1]].std() / other.std()) > BROKEN


@torch.no_grad()
def test_one_by_one_kernel_is_a_linear_product_of_its_own_in_each_region() -> None:
    relax = {"translation": (0.2, 0.5), "rotation": 0.2}
    layer = soft_layer("D4", "regular -> irreps", kernel_size=1, relax=relax, regions=2, soft_part="continuous")
    features, bias = features_of(layer), layer.expanded_bias()[:, None, None]
    found, banks = answer_to(layer, features), layer.region_banks((8, 8))[..., 0, 0]
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        place = (..., slice(4 * row, 4 * row + 4), slice(4 * column, 4 * column + 4))
        expected = torch.einsum("oi,bihw->bohw", banks[row, column], features[place]) + bias
        assert relative_error(found[place], expected) <= ROUNDING
    assert relative_error(banks[0, 0], banks[1, 1]) > 1e-4
    assert position_of((0, 1), (2, 2)) == (0.5, 0.5)  # centres of the quarters lie half of the way to the border


@pytest.mark.parametrize("pair", ["regular -> regular", "trivial -> regular", "regular -> trivial"])
@pytest.mark.parametrize("make", [gspaces.rot2dOnR2, gspaces.flipRot2dOnR2], ids=["C_N", "D_N"])
def test_parameter_count_does_not_depend_on_the_number_of_rotations(pair: str, make: Any) -> None:
    counts = set()
    for order in (4, 8, 16):
        space = make(order)
        fields = {"regular": space.regular_repr, "trivial": space.trivial_repr}
        in_type, out_type = (FieldType(space, [fields[name]] * 3) for name in pair.split(" -> "))
        layer = build(in_type, out_type, relax={"rotation": 0.1}, soft_part="continuous")
        counts.add(sum(p.numel() for p in layer.parameters()))
    assert len(counts) == 1


@pytest.mark.parametrize("space", ["flip", "C2", "C3", "D4"])
def test_means_over_the_group_have_a_weight_for_each_map_that_commutes_with_it(space: str) -> None:
    """Between irreps at one tap (Schur's lemma), in groups of two elements as in larger ones."""
    fields = battery.field_type(space, "irreps")
    layer = build(fields, fields, kernel_size=1, relax=None, soft_part="continuous")
    irreps = [fields.gspace.fibergroup.irrep(*irrep) for irrep in fields.irreps]
    expected = [a.sum_of_squares_constituents if a == b else 0 for a in irreps for b in irreps]
    assert [of.shape[-1] for name, of in layer.named_parameters() if name.endswith(".weights")] == expected


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_what_the_group_cannot_see_is_no_soft_part() -> None:
    """The angle over 2π at ω′ = 4 is an integer on C4: what rounding leaves of the soft part is not scaled up."""
    options = options_of("continuous", rotation_coordinates="log")
    with pytest.warns(UserWarning, match="it aliases"):
        layer = RelaxedR2Conv(
            *battery.types("C4", "regular -> regular"), 3, padding=1, relax={"rotation": 4.0}, **options
        )
    assert layer.softness() < 1e-10  # rounding of float32, squared
    assert largest_error(layer, features_of(layer)) < 1e-4


# --- the start --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("support", ["smooth", "disk"])
def test_no_kernel_size_starts_empty(kernel_size: int, support: str) -> None:
    types = battery.types("C4", "trivial -> regular")
    layer = RelaxedR2Conv(*types, kernel_size, relax=None, **options_of("continuous", support=support))
    assert layer.filter_bank().abs().max() > 0


@pytest.mark.parametrize(("hidden_size", "initial_softness"), [(2, 0.9), (8, 0.001)])
@pytest.mark.parametrize(
    ("space", "pair"), [("C4", "two regular -> two regular"), ("O(2)", "last irrep -> last irrep")]
)
def test_domain_weights_never_start_large(space: str, pair: str, hidden_size: int, initial_softness: float) -> None:
    """Also where a kernel net cannot be as soft as asked for: ω′ must keep its meaning."""
    arguments = {"relax": battery.subgroups(space, 0.2), "initial_softness": initial_softness, "samples": 4}
    options = options_of("continuous", hidden_size=hidden_size)
    layer = RelaxedR2Conv(*battery.types(space, pair), 3, **arguments, **options)
    # Standard normal draws stay below 5; ten times that would be another frequency altogether.
    assert all(weights.abs().max() < 50 for weights in layer.soft_parameters())


@torch.no_grad()
def variances_of_ten_layers(space: str, frequency: float) -> np.ndarray:
    """Variance of the activations after each of ten layers without batch norm; on the torus, which has no border."""
    gspace = battery.gspace(space)
    activation: EquivariantModule
    if space in battery.CONTINUOUS:
        irreps = gspace.fibergroup.bl_irreps(2)
        activation = FourierPointwise(gspace, 6, irreps, function="p_relu", type="regular", N=16)
    else:
        activation = ReLU(FieldType(gspace, [gspace.regular_repr] * 8))
    in_type = FieldType(gspace, [gspace.trivial_repr])
    features: GeometricTensor = in_type(functional.avg_pool2d(torch.randn(4, 1, 18, 18), 3, stride=1))
    place = {"padding": 2, "padding_mode": "circular", "relax": battery.subgroups(space, frequency)}
    variances = []
    for _ in range(10):
        layer = RelaxedR2Conv(features.type, activation.in_type, 5, **place, **options_of("continuous"))
        features = activation(layer(features))
        variances.append(float(features.tensor.var()))
    return np.array(variances)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:relax. the domain frequency .* aliases:UserWarning")
@pytest.mark.parametrize(("space", "frequency"), [("C8", 0.0), ("D4", 0.5), ("SO(2)", 2.0)])
def test_variance_stays_within_a_factor_of_two_through_ten_layers(space: str, frequency: float) -> None:
    """The strict part in the steerable basis starts as ``R2Conv`` does.

    Geometric mean over draws: a layer of few fields scatters by about 1.4 in variance, ten of them by more. Against the
    geometric mean over the depth: no layer is the one to compare the others with.
    """
    draws = []
    for seed in range(4):
        torch.manual_seed(seed)
        draws.append(variances_of_ten_layers(space, frequency))
    logarithms = np.mean(np.log(draws), axis=0)
    ratios = np.exp(logarithms - logarithms.mean())
    assert 1 / 2 <= ratios.min() <= ratios.max() <= 2


# --- units of the output weights --------------------------------------------------------------------------------------


def steered(count: int) -> Tensor:
    """Random steered features (P, |A|, |B|, T); the last one constant."""
    return torch.cat([torch.randn(count - 1, 4, 3, 9, dtype=torch.float64), torch.ones(1, 4, 3, 9).double()])


@pytest.mark.parametrize("count", [2, 5, 12])
def test_varying_features_become_orthonormal_and_do_not_answer_a_constant_input(count: int) -> None:
    features = steered(count)
    normalised = torch.einsum("rp,paib->raib", units_of(features, 1, None), features)
    gram = torch.einsum("paib,qaib->pq", normalised[:-1], normalised[:-1]) / 4
    assert torch.allclose(gram, torch.eye(count - 1, dtype=torch.float64), rtol=0, atol=DECOMPOSED)
    answer = normalised.sum(dim=(2, 3)).mean(dim=1)
    expected = torch.tensor([0.0] * (count - 1) + [1.0], dtype=torch.float64)
    assert torch.allclose(answer, expected, rtol=0, atol=DECOMPOSED)


def test_directions_of_equal_energy_do_not_depend_on_rounding() -> None:
    """Six directions of one energy and four of another: solvers return any basis of each space."""
    scales = torch.tensor([1.0] * 6 + [0.5] * 4, dtype=torch.float64)
    orthogonal, turned = (torch.linalg.qr(torch.randn(rows, 10, dtype=torch.float64)).Q for rows in (12, 10))
    features = (turned @ (scales[:, None] * orthogonal.mT)).view(10, 1, 3, 4)
    for rank in (None, 6):
        found, other = (units_of(features + noise * torch.randn_like(features), 1, rank, False) for noise in (0, 1e-14))
        assert (found - other).abs().max() <= 1e-10  # the noise, over the gap between energies


@pytest.mark.parametrize("kernel_size", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2, 4, 5))])
def test_no_direction_lies_so_near_the_threshold_that_rounding_decides(
    kernel_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else weights would have other shapes on other machines: the nearest is 6e-5 away, where rounding is 1e-15."""
    distances: list[float] = []
    svdvals = torch.linalg.svdvals

    def recorded(features: Tensor) -> Tensor:
        size = svdvals(features)
        threshold = max(units._SMALLEST * float(size[0]), units._ROUNDING)
        distances.append(float((size / threshold - 1).abs().min()))
        return size

    monkeypatch.setattr(torch.linalg, "svdvals", recorded)
    # How large each direction is drawn takes most of the time, and does not decide which there are.
    monkeypatch.setattr(units, "_whitened", lambda _, combination, size, rank, least: combination[:rank])
    for space in battery.GSPACES:
        RelaxedR2Conv(*battery.types(space, "irreps -> irreps"), kernel_size, **options_of("continuous"))
    assert len(distances) > 50
    assert min(distances) > 1e-6
