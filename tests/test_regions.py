"""Regions of the output: how an axis is cut, of which cells a region is the mean, and one grouped convolution."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from geometries import EACH_GEOMETRY, GEOMETRIES
from reference_regions import Tiles, shares_of_cells, tiles_of_each_pixel
from tolerances import FEW_TERMS, ROUNDING
from torch import Tensor
from torch.nn import functional
from transformations import relative_error

from escnn_relaxed.group.regions import LEAST_SIDE, RegionPartition, Tiling, region_limit
from escnn_relaxed.integral.regions import integrate
from escnn_relaxed.integral.geometry import ConvolutionGeometry, integrate_stationary

EVERY_NUMBER = pytest.mark.parametrize("regions", range(1, 10))


def tilings(regions: int) -> Iterator[Tiling]:
    """Yield the tilings of every size up to 80 pixels."""
    return (Tiling.of(size, regions) for size in range(1, 81))


def pixels_of_tiles(tiling: Tiling) -> list[list[int]]:
    """The pixels of the image that each tile covers."""
    return [
        [pixel for pixel in range(start, start + tiling.side) if 0 <= pixel < tiling.size] for start in tiling.starts
    ]


@EVERY_NUMBER
def test_tiles_are_equal_and_cover_the_axis_symmetrically(regions: int) -> None:
    """The pixel in the middle twice, where there is one, and an even number of tiles."""
    for tiling in tilings(regions):
        covered = pixels_of_tiles(tiling)
        middle = [tiling.size // 2] if tiling.size % 2 and tiling.count % 2 == 0 else []
        assert sorted(itertools.chain(*covered)) == sorted([*range(tiling.size), *middle])
        assert covered == [[tiling.size - 1 - pixel for pixel in reversed(of_tile)] for of_tile in reversed(covered)]
        assert len(covered) == tiling.count <= regions
        assert {len(of_tile) for of_tile in covered[1:-1]} <= {tiling.side}
        assert tiling.doubles_centre == bool(middle)


@EVERY_NUMBER
def test_outermost_tiles_keep_four_pixels_and_more_than_half_of_their_side(regions: int) -> None:
    for tiling in tilings(regions):
        outermost = len(pixels_of_tiles(tiling)[0])
        assert tiling.cut == (tiling.side - outermost if tiling.count > 1 else 0)
        assert tiling.count == 1 or (outermost >= LEAST_SIDE and outermost > tiling.side / 2)


@EVERY_NUMBER
def test_tiles_are_as_many_as_can_be(regions: int) -> None:
    """Those of the loop oracle, which tries every number and every side."""
    for tiling in tilings(regions):
        covered = pixels_of_tiles(tiling)
        found = [tuple(n for n, tile in enumerate(covered) if pixel in tile) for pixel in range(tiling.size)]
        assert found == tiles_of_each_pixel(tiling.size, regions)


@pytest.mark.parametrize(
    ("size", "regions", "expected"),
    [
        (7, 4, (1, 7, 0)),
        (8, 4, (2, 4, 0)),
        (9, 4, (2, 5, 0)),
        (11, 2, (2, 6, 0)),
        (13, 4, (3, 5, 1)),
        (14, 4, (3, 6, 2)),
        (16, 4, (4, 4, 0)),
        (28, 4, (4, 7, 0)),
        (33, 4, (4, 9, 1)),
        (35, 8, (7, 5, 0)),
        (37, 8, (8, 5, 1)),
    ],
)
def test_tiles_of_some_sizes(size: int, regions: int, expected: tuple[int, int, int]) -> None:
    tiling = Tiling.of(size, regions)
    assert (tiling.count, tiling.side, tiling.cut) == expected


MATHEMATICS = (Path(__file__).parent.parent / "docs" / "concepts" / "mathematics.md").read_text(encoding="utf-8")


def tiles_by_the_page(n: int, G: int) -> int:
    """The number of tiles by the words of the page under "Tiles"."""
    words = " ".join(MATHEMATICS.split("- **Tiles.**")[1].split("- **Regions**")[0].split())
    assert r"cut into $m \le \min(G, \lfloor n/4 \rfloor)$ tiles of one side, one tile where $n < 8$" in words
    assert "as large as it can be with 4 pixels and more than half of their side left to them" in words
    for m in range(min(G, n // 4), 1, -1):
        covered = n + (n % 2 == 1 and m % 2 == 0)  # half of the pixel at the centre belongs to either middle tile
        for side in range(1, n + 1):
            beyond = m * side - covered
            left = side - beyond // 2
            if beyond >= 0 and beyond % 2 == 0 and left >= 4 and left > side / 2:
                return m
    return 1


@EVERY_NUMBER
def test_tiles_are_as_many_as_the_page_says(regions: int) -> None:
    for tiling in tilings(regions):
        assert tiling.count == tiles_by_the_page(tiling.size, regions), tiling.size


def test_table_of_the_page_has_the_numbers_of_tiles() -> None:
    rows = MATHEMATICS.split("| pixels of the output along an axis | tiles |\n|---|---|\n")[1].split("\n\n")[0]
    for row in rows.splitlines():
        sizes, tiles = row.strip("| ").split(" | ")
        numbers = [int(number) for number in re.findall(r"\d+", sizes)]
        for size in range(1, numbers[0] + 1) if sizes.startswith("up to") else numbers:
            assert Tiling.of(size, 4).count == int(tiles.split()[0].rstrip(":")), row


@EVERY_NUMBER
def test_weights_are_the_shares_of_the_cells_in_what_a_tile_covers(regions: int) -> None:
    for tiling in tilings(regions):
        weights = np.array(tiling.cell_weights(regions))
        shares = shares_of_cells(tiles_of_each_pixel(tiling.size, regions), regions)
        assert np.abs(weights - np.array(shares, dtype=np.float64)).max() <= FEW_TERMS
        assert (weights >= 0).all()


@EVERY_NUMBER
def test_mean_over_the_pixels_is_the_mean_over_the_cells(regions: int) -> None:
    """This makes the strict part of a kernel the same for images of every size. Each tile has half of the middle."""
    for tiling in tilings(regions):
        weights = np.array(tiling.cell_weights(regions))
        assert np.abs(weights.sum(axis=1) - 1).max() <= FEW_TERMS
        counts = [len(of_tile) for of_tile in pixels_of_tiles(tiling)]
        if tiling.doubles_centre:
            counts = [count - 0.5 * (abs(number - (tiling.count - 1) / 2) < 1) for number, count in enumerate(counts)]
        mean = np.array(counts) / tiling.size @ weights
        assert np.abs(mean - 1 / regions).max() <= FEW_TERMS


@EVERY_NUMBER
def test_weights_are_symmetric_about_the_centre(regions: int) -> None:
    for tiling in tilings(regions):
        weights = np.array(tiling.cell_weights(regions))
        assert np.abs(weights - weights[::-1, ::-1]).max() <= FEW_TERMS


def test_regions_are_cells_where_the_number_divides_the_sides() -> None:
    for regions in range(1, 10):
        for size in range(1, 81):
            partition = RegionPartition.of((size, 8 * regions), regions)
            divides = size % regions == 0 and size >= LEAST_SIDE * regions
            assert partition.is_of_cells == (divides or regions == 1)
            if partition.is_of_cells:
                assert np.abs(np.array(partition.axes[0].cell_weights(regions)) - np.eye(regions)).max() <= FEW_TERMS
    assert RegionPartition.of_cells(5).is_of_cells


@EVERY_NUMBER
def test_pixels_are_divided_into_tiles_by_the_adjoint_of_what_joins_them(regions: int) -> None:
    for tiling in tilings(regions):
        tiles, pixels = np.eye(tiling.count * tiling.side), np.eye(tiling.size)
        joined = tiling.join(torch.from_numpy(tiles), 0)
        assert torch.equal(tiling.divide(torch.from_numpy(pixels), 0), joined.mT)


def test_partition_of_an_image_cuts_each_axis() -> None:
    partition = RegionPartition.of((13, 24), 4)
    assert partition.axes == (Tiling.of(13, 4), Tiling.of(24, 4))
    turned = RegionPartition.of((24, 13), 4)
    assert turned.axes == partition.axes[::-1]


def test_limit_of_the_frequency_is_half_a_wave_between_regions() -> None:
    assert [region_limit(regions) for regions in (1, 4, 8)] == [0.25, 1.0, 2.0]


# Tiles that fit, that stick out, that share the middle, and both.
SIZES = [(8, 12), (14, 8), (9, 16), (11, 13)]


@pytest.mark.parametrize("size", SIZES)
def test_means_are_over_the_cells_that_a_region_covers(size: tuple[int, int]) -> None:
    cells = 3
    partition = RegionPartition.of(size, cells)
    values = torch.randn(2, cells**2, 4, dtype=torch.float64, requires_grad=True)
    down, across = (shares_of_cells(tiles_of_each_pixel(side, cells), cells) for side in size)
    expected = [
        sum(float(a * b) * values[:, cells * i + j] for i, a in enumerate(row) for j, b in enumerate(column))
        for row in down
        for column in across
    ]
    found = partition.means(values, 1)
    assert relative_error(found.detach(), torch.stack(expected, dim=1).detach()) <= ROUNDING
    assert torch.autograd.gradcheck(lambda v: partition.means(v, 1), values, fast_mode=True)


def test_means_over_cells_are_the_values() -> None:
    values = torch.randn(9, 2)
    assert RegionPartition.of((12, 15), 3).means(values, 0) is values


CELLS = 3


def problem(
    geometry: ConvolutionGeometry, output_size: tuple[int, int], rest: int = 0
) -> tuple[Tensor, Tensor, Tensor, RegionPartition]:
    """An image with 4 channels, a bank to 6 channels for each region, a bias.

    Args:
        geometry: of the convolution.
        output_size: that the image has.
        rest: pixels at the end of each axis that no tap reads, as far as the stride leaves any.
    """
    rest = min(rest, geometry.stride - 1)
    size = [
        (side - 1) * geometry.stride + geometry.extent - 2 * padding + rest
        for side, padding in zip(output_size, geometry.padding, strict=True)
    ]
    assert geometry.output_size(*size) == output_size
    partition = RegionPartition.of(output_size, CELLS)
    regions, k = math.prod(partition.counts), geometry.kernel_size
    return (
        torch.randn(2, 4, *size, dtype=torch.float64, requires_grad=True),
        torch.randn(regions, 6, 4 // geometry.groups, k, k, dtype=torch.float64, requires_grad=True),
        torch.randn(6, dtype=torch.float64, requires_grad=True),
        partition,
    )


def region_by_region(
    features: Tensor, banks: Tensor, bias: Tensor | None, geometry: ConvolutionGeometry, output_size: tuple[int, int]
) -> Tensor:
    """A convolution with each bank, of whose result the pixels of its region are taken; a mean where two meet."""
    mode = "constant" if geometry.padding_mode == "zeros" else geometry.padding_mode
    rows, columns = geometry.padding
    padded = functional.pad(features, (columns, columns, rows, rows), mode=mode)
    place = geometry.stride, 0, geometry.dilation, geometry.groups
    down, across = (_parts(tiles_of_each_pixel(side, CELLS)) for side in output_size)
    answers = [functional.conv2d(padded, bank, bias, *place) for bank in banks]
    parts = [row[:, None] * column for row in down for column in across]
    return sum(answer * part for answer, part in zip(answers, parts, strict=True))


def _parts(tiles: Tiles) -> list[Tensor]:
    """For each tile, how much of each pixel is its own."""
    return [
        torch.tensor([(number in of_pixel) / len(of_pixel) for of_pixel in tiles], dtype=torch.float64)
        for number in range(max(tiles)[-1] + 1)
    ]


@EACH_GEOMETRY
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("output_size", SIZES)
def test_grouped_convolution_is_one_of_each_region(
    geometry: ConvolutionGeometry, output_size: tuple[int, int], biased: bool
) -> None:
    """Values and gradients, on images whose last pixels are read and on such where the stride leaves some."""
    for rest in sorted({0, geometry.stride - 1}):
        features, banks, bias, partition = problem(geometry, output_size, rest)
        assert len(banks) > 1
        inputs = [features, banks, *([bias] if biased else [])]
        given = bias if biased else None
        found = integrate(features, banks, given, geometry, partition)
        expected = region_by_region(features, banks, given, geometry, output_size)
        assert found.shape == expected.shape
        assert relative_error(found.detach(), expected.detach()) <= ROUNDING
        cotangent = torch.randn_like(found)
        gradients = (torch.autograd.grad(answer, inputs, cotangent) for answer in (found, expected))
        for gradient, expected_gradient in zip(*gradients, strict=True):
            assert relative_error(gradient, expected_gradient) <= ROUNDING


@pytest.mark.parametrize("name", ["plain", "stride", "everything"])
def test_second_derivatives(name: str) -> None:
    geometry = GEOMETRIES[name]
    features, banks, bias, partition = problem(geometry, (8, 13))

    def convolved(*inputs: Tensor) -> Tensor:
        return integrate(*inputs, geometry, partition)

    assert torch.autograd.gradcheck(convolved, (features, banks, bias), fast_mode=True)
    assert torch.autograd.gradgradcheck(convolved, (features, banks, bias), fast_mode=True)


@EACH_GEOMETRY
def test_one_region_is_a_convolution(geometry: ConvolutionGeometry) -> None:
    features, banks, bias, partition = problem(geometry, (7, 7))
    assert len(banks) == 1
    found = integrate(features, banks, bias, geometry, partition)
    assert torch.equal(found, integrate_stationary(features, banks[0], bias, geometry))


@pytest.mark.parametrize("output_size", [(7, 7), (8, 13)], ids=["one region", "regions"])
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
def test_result_under_autocast_has_its_dtype(output_size: tuple[int, int], biased: bool) -> None:
    """As that of a convolution, whose bias it casts."""
    geometry = GEOMETRIES["padding"]
    features, banks, bias, partition = problem(geometry, output_size)
    single = [value.detach().float() for value in (features, banks)]
    with torch.autocast("cpu", torch.bfloat16):
        found = integrate(*single, bias.detach().float() if biased else None, geometry, partition)
    assert found.dtype == torch.bfloat16
    expected = region_by_region(features, banks, bias if biased else None, geometry, output_size)
    # Image, bank and sum are rounded to 8 bits each, the sum with the bias once more.
    assert relative_error(found.double(), expected.detach()) <= 2**-7


def test_channels_last_and_empty_batches_are_taken() -> None:
    geometry = GEOMETRIES["groups"]
    features, banks, bias, partition = problem(geometry, (8, 13))
    expected = integrate(features, banks, bias, geometry, partition).detach()
    last = features.detach().contiguous(memory_format=torch.channels_last)
    assert relative_error(integrate(last, banks, bias, geometry, partition).detach(), expected) <= ROUNDING
    assert integrate(features[:0], banks, bias, geometry, partition).shape == (0, *expected.shape[1:])
