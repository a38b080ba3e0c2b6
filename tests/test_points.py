"""Taps, the window over them, and pixels, against escnn's own grid and a loop."""

from __future__ import annotations

import numpy as np
import pytest
from escnn.nn.modules.conv.rd_convolution import get_grid_coords
from reference_coordinates import window_weight
from tolerances import FEW_TERMS

from escnn_relaxed.group.points import pixel_positions, support_window, tap_grid


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 4, 7])
def test_taps_are_in_escnns_axes_and_order(kernel_size: int, dilation: int) -> None:
    for dimension in (2, 3):
        expected = get_grid_coords(dimension, kernel_size, dilation)
        assert np.allclose(tap_grid(kernel_size, dilation, dimension), expected, rtol=0, atol=FEW_TERMS)


def test_first_row_of_taps_is_on_top() -> None:
    assert tap_grid(3)[:4].tolist() == [[-1, 1], [0, 1], [1, 1], [-1, 0]]
    assert tap_grid(2, dilation=2).tolist() == [[-1, 1], [1, 1], [-1, -1], [1, -1]]


@pytest.mark.parametrize("kernel_size", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("support", ["smooth", "disk"])
def test_window_is_that_of_the_loop_oracle(kernel_size: int, support: str) -> None:
    grid = tap_grid(kernel_size)
    radius, edge = (kernel_size / 2, 1.0) if support == "smooth" else (kernel_size // 2, 0.0)
    expected = [window_weight(tuple(tap), kernel_size, 1, support) for tap in grid]
    assert support_window(grid, radius, edge) == pytest.approx(expected, abs=FEW_TERMS)


def test_window_falls_smoothly_from_one_to_zero() -> None:
    points = np.stack([np.linspace(0, 4, 4001), np.zeros(4001)], axis=-1)
    window = support_window(points, radius=3.5, edge=1.0)
    assert (window[points[:, 0] <= 2.5] == 1).all()
    assert (window[points[:, 0] > 3.5] == 0).all()
    assert (np.diff(window) <= 0).all()
    assert np.abs(np.diff(window)).max() < 2e-3  # steps of 0.001: a slope of π/2 at most


def test_pixels_are_centred_over_half_of_each_side_with_y_up() -> None:
    positions = pixel_positions(2, 4).reshape(2, 4, 2)
    assert positions[..., 0].tolist() == [[-0.75, -0.25, 0.25, 0.75]] * 2
    assert positions[..., 1].tolist() == [[0.5] * 4, [-0.5] * 4]
    assert np.abs(pixel_positions(9, 5)).max() < 1
    assert (pixel_positions(3, 3)[4] == 0).all()


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (4, 9)])
def test_pixel_is_at_the_mean_of_those_it_is_cut_into(size: tuple[int, int]) -> None:
    """So that cells, which divide every image alike, lie where their pixels do."""
    fine = pixel_positions(3 * size[0], 5 * size[1])
    means = fine.reshape(size[0], 3, size[1], 5, 2).mean(axis=(1, 3))
    assert np.allclose(means, pixel_positions(*size).reshape(*size, 2), rtol=0, atol=FEW_TERMS)
