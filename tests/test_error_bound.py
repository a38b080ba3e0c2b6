"""The bound on the equivariance error against dense matrices, and against errors that are attained."""

from __future__ import annotations

from collections.abc import Callable

import battery
import pytest
import torch
from escnn.nn import FieldType
from layers import STRICT_KERNELS, build
from soft_networks import ROUGH
from torch import Tensor
from transformations import on_grid_elements, transform

from escnn_relaxed import RelaxedR2Conv, harden_network
from escnn_relaxed.integral.stationary import ConvolutionGeometry, integrate_stationary
from escnn_relaxed.measure import soft_part_norm
from escnn_relaxed.measure.operator_norm import convolution_norm

EXACT = 1e-10  # found: 1e-15
ROUNDING = 1e-12  # singular values of some hundred rows in float64; found: 1e-15

EVERY_KERNEL = pytest.mark.parametrize("strict_kernel", STRICT_KERNELS)


@torch.no_grad()
def dense(linear: Callable[[Tensor], Tensor], channels: int, size: tuple[int, int]) -> Tensor:
    """The matrix of a linear map on images, from the image of every basis vector."""
    basis = torch.eye(channels * size[0] * size[1], dtype=torch.float64).view(-1, channels, *size)
    return linear(basis).flatten(1).mT


def largest_singular_value(matrix: Tensor) -> float:
    return torch.linalg.matrix_norm(matrix, ord=2).item()


# --- the norm of a convolution ----------------------------------------------------------------------------------------

SIZE = (9, 8)
PADDINGS = ((0, 0), (1, 1), (2, 2), (0, 2), (2, 1))
ARRANGEMENTS = [  # stride, dilation, groups
    (1, 1, 1),
    (2, 1, 1),
    (3, 1, 2),
    (1, 2, 1),
    (2, 2, 2),
]


def geometries(kernel_size: int, padding_mode: str) -> list[ConvolutionGeometry]:
    """Every padding, stride, dilation and number of groups that leaves an output."""
    candidates = [
        ConvolutionGeometry(kernel_size, padding, padding_mode, stride, dilation, groups)
        for padding in PADDINGS
        for stride, dilation, groups in ARRANGEMENTS
    ]
    return [geometry for geometry in candidates if geometry.extent <= min(SIZE) // 2 + 1]


def kernels(geometry: ConvolutionGeometry) -> dict[str, Tensor]:
    """Kernels from 4 channels to 6: white noise, and one whose answer is largest on constant images."""
    shape = 6, 4 // geometry.groups, geometry.kernel_size, geometry.kernel_size
    return {"noise": torch.randn(shape, dtype=torch.float64), "even": torch.rand(shape, dtype=torch.float64)}


def overestimate(kernel: Tensor, geometry: ConvolutionGeometry) -> float:
    """The norm from above over the norm."""
    matrix = dense(lambda basis: integrate_stationary(basis, kernel, None, geometry), 4, SIZE)
    return convolution_norm(kernel, SIZE, geometry) / largest_singular_value(matrix)


# How far above the bound is at most; found: 1.6, 1.7, 2.4, 2.8. The torus has outputs at the edge that the image has
# not; a padded pixel may be copied several times; a stride s leaves one of s² outputs on the torus: s times that.
WITHIN = {"zeros": 1.7, "circular": 1.9, "reflect": 2.6, "replicate": 3.0}


@pytest.mark.parametrize("kernel_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("padding_mode", WITHIN)
def test_norm_of_a_convolution_is_never_below_its_matrix(padding_mode: str, kernel_size: int) -> None:
    for geometry in geometries(kernel_size, padding_mode):
        for name, kernel in kernels(geometry).items():
            found = overestimate(kernel, geometry)
            assert 1 - ROUNDING <= found <= WITHIN[padding_mode] * geometry.stride, f"{name}: {geometry}"


@pytest.mark.parametrize(
    ("kernel_size", "dilation", "padding"), [(1, 1, 0), (3, 1, 1), (5, 1, 2), (7, 1, 3), (3, 2, 2), (2, 2, 1)]
)
@pytest.mark.parametrize("groups", [1, 2])
def test_norm_of_a_circular_convolution_that_keeps_the_size_is_exact(
    kernel_size: int, dilation: int, padding: int, groups: int
) -> None:
    geometry = ConvolutionGeometry(kernel_size, (padding, padding), "circular", 1, dilation, groups)
    for kernel in kernels(geometry).values():
        assert geometry.output_size(*SIZE) == SIZE
        assert overestimate(kernel, geometry) == pytest.approx(1, abs=EXACT)


def test_norm_of_a_usual_convolution_is_close() -> None:
    """3×3 with a padding of one zero: only the pixels at the edge are not on the torus. Found: 1.02 and 1.06."""
    geometry = ConvolutionGeometry(3, (1, 1))
    for kernel in kernels(geometry).values():
        matrix = dense(lambda basis, k=kernel: integrate_stationary(basis, k, None, geometry), 4, (10, 10))
        found = convolution_norm(kernel, (10, 10), geometry) / largest_singular_value(matrix)
        assert 1 <= found < 1.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norm_is_that_of_single_precision_too(dtype: torch.dtype) -> None:
    geometry = ConvolutionGeometry(3, (1, 1), "circular")
    kernel = kernels(geometry)["noise"]
    # A Fourier sum of nine terms in float32.
    assert convolution_norm(kernel.to(dtype), SIZE, geometry) == pytest.approx(
        convolution_norm(kernel, SIZE, geometry), rel=1e-6
    )


# --- the soft part of a layer -----------------------------------------------------------------------------------------


def soft_layer(in_type: FieldType, out_type: FieldType, strict_kernel: str, **arguments) -> RelaxedR2Conv:
    arguments = {"relax": {"rotation": 0.3}, "initial_softness": 0.1, "filter_frequency": ROUGH, **arguments}
    return build(in_type, out_type, strict_kernel=strict_kernel, **arguments)


def dense_soft_part(layer: RelaxedR2Conv, size: tuple[int, int], subgroups: tuple[str, ...] = ()) -> Tensor:
    """K − PK."""
    strict = harden_network(layer, subgroups)
    return dense(lambda basis: layer.linear(basis) - strict.linear(basis), layer.in_type.size, size)


def attained(layer: RelaxedR2Conv, size: tuple[int, int]) -> list[float]:
    """The largest ‖f(hx) − h f(x)‖ / ‖x‖ over all x, for each h on the grid."""

    def error(basis: Tensor, h) -> Tensor:
        return layer.linear(transform(basis, layer.in_type, h)) - transform(layer.linear(basis), layer.out_type, h)

    elements = on_grid_elements(layer.in_type.gspace)
    assert elements
    return [largest_singular_value(dense(lambda x, h=h: error(x, h), layer.in_type.size, size)) for h in elements]


PLACES = {
    "circular": {"padding": 1, "padding_mode": "circular"},
    "zeros": {"padding": 1},
    "valid": {},
    "stride": {"padding": 1, "stride": 2},
    "dilation": {"padding": 2, "dilation": 2},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "even kernel": {"kernel_size": 4, "padding": 1},
    "groups": {"padding": 1, "groups": 2},
}
PAIRS = {
    "rotation": ("C4", "two regular -> two regular", {"rotation": 0.3}),
    "both": ("D4", "two regular -> irreps + irreps", {"rotation": 0.3, "reflection": 0.5}),
    "reflection": ("D4", "irreps + irreps -> two regular", {"reflection": 0.5}),
}
# Both forms of the kernel in turn.
CASES = [
    (soft, place, STRICT_KERNELS[(row + column) % 2])
    for row, soft in enumerate(PAIRS)
    for column, place in enumerate(PLACES)
]


@pytest.mark.parametrize(("soft", "place", "strict_kernel"), CASES)
def test_twice_the_norm_of_the_soft_part_bounds_the_error_and_is_nearly_attained(
    soft: str, place: str, strict_kernel: str
) -> None:
    space, pair, relax = PAIRS[soft]
    size = (5, 5)
    layer = soft_layer(*battery.types(space, pair), strict_kernel, relax=relax, **PLACES[place])
    norm = soft_part_norm(layer, size)
    exact = largest_singular_value(dense_soft_part(layer, size))
    assert exact * (1 - ROUNDING) <= norm <= 2.5 * exact  # found: up to 2.05, with a stride or reflected pixels
    if place == "circular":
        assert norm == pytest.approx(exact, rel=EXACT)
    errors = attained(layer, size)
    assert max(errors) <= 2 * exact * (1 + ROUNDING)
    # S − hSh⁻¹ is S in the mean over h, and 0 for the identity: some h attains |G| / (|G| − 1) times ‖S‖ at least.
    # Found: 1.62 to 1.87 times, and twice where reflections alone are soft.
    assert max(errors) >= (1 + 1 / len(errors)) * exact * (1 - ROUNDING)


@EVERY_KERNEL
@pytest.mark.parametrize("place", ["circular", "stride"])
def test_bound_holds_for_every_image_and_element(place: str, strict_kernel: str) -> None:
    space, pair, relax = PAIRS["both"]
    layer = soft_layer(*battery.types(space, pair), strict_kernel, relax=relax, **PLACES[place])
    features = battery.random_input(layer.in_type, 7, 7, batch=16)
    limit = 2 * soft_part_norm(layer, (7, 7)) * features.flatten(1).norm(dim=1)
    for h in on_grid_elements(layer.in_type.gspace):
        moved = layer(layer.in_type(transform(features, layer.in_type, h))).tensor
        error = (moved - transform(layer(layer.in_type(features)).tensor, layer.out_type, h)).flatten(1).norm(dim=1)
        assert (error <= limit).all()
        assert (error > limit / 20).all()  # white noise; found: 0.14 to 0.3


@EVERY_KERNEL
def test_norm_of_one_subgroup_bounds_its_own_error(strict_kernel: str) -> None:
    space, pair, relax = PAIRS["reflection"]
    layer = soft_layer(*battery.types(space, pair), strict_kernel, relax=relax, padding=1, padding_mode="circular")
    assert soft_part_norm(layer, (5, 5), ("rotation",)) <= ROUNDING
    whole = soft_part_norm(layer, (5, 5))
    assert soft_part_norm(layer, (5, 5), ("reflection",)) == pytest.approx(whole, rel=EXACT)
    assert whole > 0.1


@EVERY_KERNEL
def test_hardened_layer_has_no_soft_part(strict_kernel: str) -> None:
    relax = {"rotation": 0.3, "translation": 0.3}
    layer = soft_layer(*battery.types("C4", "regular -> regular"), strict_kernel, relax=relax, padding=1)
    assert layer.softness() > 0.01
    layer.harden()
    assert soft_part_norm(layer, (4, 4)) == 0


@pytest.mark.parametrize("name", ["rotations", ""])
def test_unknown_subgroup_is_named(name: str) -> None:
    layer = soft_layer(*battery.types("C4", "regular -> regular"), "steerable")
    with pytest.raises(ValueError, match=rf"\['rotation', 'reflection', 'translation'\], got '{name}'"):
        soft_part_norm(layer, (5, 5), (name,))


@pytest.mark.parametrize(
    ("subgroups", "place", "strict_kernel", "seed"),
    [
        (("translation",), "circular", "steerable", 1),
        (("translation",), "zeros", "steerable", 1),
        (("translation",), "valid", "continuous", 0),
        (("rotation", "translation"), "zeros", "continuous", 0),
        (("rotation", "translation"), "circular", "steerable", 0),
    ],
)
def test_norm_where_translation_is_soft_is_that_of_the_matrix(
    subgroups: tuple[str, ...], place: str, strict_kernel: str, seed: int
) -> None:
    torch.manual_seed(seed)
    relax = dict.fromkeys(subgroups, 0.3)
    layer = soft_layer(*battery.types("C4", "regular -> regular"), strict_kernel, relax=relax, **PLACES[place])
    exact = largest_singular_value(dense_soft_part(layer, (10, 10)))
    assert exact > 1e-2
    # An iteration comes from below.
    assert (1 - 1e-3) * exact <= soft_part_norm(layer, (10, 10)) <= exact * (1 + ROUNDING)


@EVERY_KERNEL
def test_bound_holds_where_translation_is_soft(strict_kernel: str) -> None:
    relax = {"rotation": 0.3, "translation": 0.3}
    layer = soft_layer(*battery.types("C4", "regular -> irreps"), strict_kernel, relax=relax, padding=1)
    norm = soft_part_norm(layer, (8, 8))
    errors = attained(layer, (8, 8))
    assert 0.5 * 2 * norm < max(errors) <= 2 * norm * (1 + 1e-3)  # the iteration's tolerance; found: 0.68 to 0.83


@pytest.mark.parametrize(
    ("strict_kernel", "size", "seed"), [("continuous", (2, 4), 2), ("steerable", (4, 2), 2), ("steerable", (5, 2), 2)]
)
def test_bound_holds_on_images_that_are_not_square(strict_kernel: str, size: tuple[int, int], seed: int) -> None:
    """A quarter turn moves K − PK to another torus, where its norm may be larger."""
    torch.manual_seed(seed)
    layer = soft_layer(*battery.types("C4", "trivial -> trivial"), strict_kernel, padding=1, padding_mode="circular")
    assert max(attained(layer, size)) <= 2 * soft_part_norm(layer, size) * (1 + ROUNDING)


@EVERY_KERNEL
@pytest.mark.parametrize("pair", ["mixed, sheared -> trivial", "trivial -> mixed, sheared"])
def test_basis_in_which_the_group_is_not_orthogonal_is_refused(pair: str, strict_kernel: str) -> None:
    """There the group changes norms, and the bound does not hold (by 9 % for a continuous kernel and seed 3)."""
    layer = soft_layer(*battery.types("C4", pair), strict_kernel, padding=1, padding_mode="circular")
    with pytest.raises(ValueError, match="orthogonal"):
        soft_part_norm(layer, (5, 5))
