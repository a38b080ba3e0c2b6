"""Regions of the output: how an axis is cut, of which cells a region is the mean, and which pixels it covers.

A kernel of 1×1 taps between single channels shows its value at every pixel of an image of ones.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from layers import soft_layer
from reference_regions import Tiles, shares_of_cells, tiles_of_each_pixel
from tolerances import ROUNDING
from torch import Tensor
from transformations import answer_to, relative_error

from escnn_relaxed import RelaxedR2Conv

EVERY_NUMBER = pytest.mark.parametrize("regions", range(2, 10))
SIZES = range(1, 81)


@functools.cache
def layer_of(regions: int) -> RelaxedR2Conv:
    arguments = {"kernel_size": 1, "bias": False, "regions": regions, "relax": {"translation": (0.3, 0.5)}}
    return soft_layer("trivial", "trivial -> trivial", **arguments).eval()


def kernel_of_pixels(layer: RelaxedR2Conv, *size: int) -> Tensor:
    """K at every pixel, (rows, columns)."""
    return answer_to(layer, torch.ones(1, 1, *size, dtype=torch.float64))[0, 0]


def shares_of(tiles: Tiles, regions: int) -> Tensor:
    """Of each tile in each cell, (tiles, cells)."""
    return torch.tensor([[float(of) for of in tile] for tile in shares_of_cells(tiles, regions)], dtype=torch.float64)


def means_of(tiles: Tiles) -> Tensor:
    """From values of tiles to those of pixels, (pixels, tiles)."""
    numbers = range(tiles[-1][-1] + 1)
    return torch.tensor([[(n in of) / len(of) for n in numbers] for of in tiles], dtype=torch.float64)


@torch.no_grad()
@EVERY_NUMBER
def test_every_pixel_has_the_kernel_of_its_regions_and_these_the_means_of_their_cells(regions: int) -> None:
    """Those of the loops, which try every number of tiles and every side, and count shares in fractions."""
    # As many tiles as cells, but the outermost stick out: their cells are not theirs alone.
    layer, width = layer_of(regions), 5 * regions - 2
    across = tiles_of_each_pixel(width, regions)
    # The regions of a large image that the number divides are the cells.
    cells = layer.region_banks((8 * regions, 8 * regions)).view(regions, regions)
    assert cells.std() > 1e-3
    for size in SIZES:
        down = tiles_of_each_pixel(size, regions)
        expected = shares_of(down, regions) @ cells @ shares_of(across, regions).mT
        assert relative_error(layer.region_banks((size, width)).view_as(expected), expected) <= ROUNDING
        of_pixels = means_of(down) @ expected @ means_of(across).mT
        assert relative_error(kernel_of_pixels(layer, size, width), of_pixels) <= ROUNDING
        # This makes the strict part of a kernel the same for images of every size.
        assert float(of_pixels.mean()) == pytest.approx(float(cells.mean()), rel=ROUNDING)


@EVERY_NUMBER
def test_rows_and_columns_are_cut_alike(regions: int) -> None:
    layer = layer_of(regions)
    for size in ((13, 24), (24, 13), (7, 40)):
        counts = tuple(layer.region_banks(size).shape[:2])
        assert counts == tuple(max(of[-1] for of in tiles_of_each_pixel(side, regions)) + 1 for side in size)


MATHEMATICS = (Path(__file__).parent.parent / "docs" / "concepts" / "mathematics.md").read_text(encoding="utf-8")


def tiles_by_the_page(n: int, G: int) -> int:
    """The number of tiles by the words of the page under "Tiles"."""
    words = " ".join(MATHEMATICS.split("- **Tiles.**")[1].split("- **Regions**")[0].split())
    assert r"cut into $m \le \min(G, \lfloor n/4 \rfloor)$ tiles of one side, symmetric about the centre" in words
    assert "or into one tile if $n < 8$" in words
    assert "as large as it can be if 4 pixels and more than half of their side are to lie in the image" in words
    for m in range(min(G, n // 4), 1, -1):
        covered = n + (n % 2 == 1 and m % 2 == 0)  # half of the pixel at the centre belongs to either middle tile
        for side in range(1, n + 1):
            beyond = m * side - covered
            left = side - beyond // 2
            if beyond >= 0 and beyond % 2 == 0 and left >= 4 and left > side / 2:
                return m
    return 1


def tiles(size: int, regions: int) -> int:
    return layer_of(regions).region_banks((size, 1)).shape[0]


@EVERY_NUMBER
def test_tiles_are_as_many_as_the_page_says(regions: int) -> None:
    for size in SIZES:
        assert tiles(size, regions) == tiles_by_the_page(size, regions), size
