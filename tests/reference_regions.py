"""The regions of soft translation as the loop oracle sees them: which pixels share a kernel, over which cells.

Independent of the package: pixels are counted one by one, and shares are fractions.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

LEAST = 4  # pixels of a region along an axis

# The tiles that a pixel of an axis lies in: one, or both of those that meet in the middle.
Tiles = list[tuple[int, ...]]


def tiles_of_each_pixel(size: int, most: int) -> Tiles:
    """The numbers of the tiles that each pixel of an axis lies in.

    As many tiles as can be, at most ``most``. They are of one side, the shortest with which they cover the axis and
    stick out as far at one end as at the other; what is left of the outermost is four pixels at least, and more than
    half a side. Where an odd number of pixels is cut into an even number of tiles, the pixel in the middle is in two.
    """
    for count in range(min(most, size // LEAST), 0, -1):
        pixels = list(range(size))
        if size % 2 and count % 2 == 0:
            pixels.insert(size // 2, size // 2)
        for side in range(LEAST, size + 1):
            out = count * side - len(pixels)
            if out < 0 or out % 2:
                continue
            numbers = [(place + out // 2) // side for place in range(len(pixels))]
            if numbers.count(0) >= LEAST and 2 * numbers.count(0) > side:
                places = zip(pixels, numbers, strict=True)
                return [
                    tuple(n for _, n in group) for _, group in itertools.groupby(places, key=lambda place: place[0])
                ]
            break
    return [(0,)] * size


def shares_of_cells(tiles: Tiles, cells: int) -> list[list[Fraction]]:
    """For each tile the share of what it covers that lies in each of the cells, which divide the axis alike.

    Of a pixel in two tiles each covers its own half.
    """
    pieces: list[list[int]] = [[] for _ in range(max(tiles)[-1] + 1)]
    # Halves of pixels and cells both consist of whole pieces.
    for piece in range(2 * len(tiles) * cells):
        of_pixel = tiles[piece // (2 * cells)]
        is_behind = piece % (2 * cells) >= cells
        pieces[of_pixel[-1] if is_behind else of_pixel[0]].append(piece // (2 * len(tiles)))
    return [[Fraction(of_tile.count(cell), len(of_tile)) for cell in range(cells)] for of_tile in pieces]


class Regions:
    """The regions of an output of some height and width.

    Args:
        size: height and width in pixels.
        cells: G, along each axis.
    """

    def __init__(self, size: tuple[int, int], cells: int) -> None:
        self._tiles = [tiles_of_each_pixel(side, cells) for side in size]
        self._shares = [shares_of_cells(tiles, cells) for tiles in self._tiles]

    def at(self, pixel: tuple[int, int]) -> list[tuple[int, int]]:
        """The regions of a pixel (row, column): its kernel is the mean of theirs."""
        return list(itertools.product(self._tiles[0][pixel[0]], self._tiles[1][pixel[1]]))

    def shares(self, region: tuple[int, int]) -> dict[tuple[int, int], float]:
        """Cell (row, column) → its share of a region, where it has one."""
        axes = (enumerate(shares[tile]) for shares, tile in zip(self._shares, region, strict=True))
        found = {(i, j): float(down * across) for (i, down), (j, across) in itertools.product(*axes)}
        return {cell: share for cell, share in found.items() if share}
