"""The norm of a convolution from above, against the largest singular value of its matrix."""

from __future__ import annotations

import pytest
import torch
from dense_matrix import largest_singular_value, matrix_of
from torch import Tensor

from escnn_relaxed.integral.stationary import ConvolutionGeometry, integrate_stationary
from escnn_relaxed.measure.operator_norm import convolution_norm

EXACT = 1e-10  # found: 1e-15
ROUNDING = 1e-12  # singular values of some hundred rows in float64; found: 1e-15


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
    matrix = matrix_of(lambda basis: integrate_stationary(basis, kernel, None, geometry), 4, SIZE)
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
        matrix = matrix_of(lambda basis, k=kernel: integrate_stationary(basis, k, None, geometry), 4, (10, 10))
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
