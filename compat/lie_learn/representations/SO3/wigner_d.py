"""Matrices of the irreps of SO(3) in the basis of real spherical harmonics."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

__all__ = ["wigner_D_matrix"]

Array = NDArray[np.float64]


def wigner_D_matrix(  # noqa: N802 — the name of lie_learn
    degree: int, alpha: float, beta: float, gamma: float, field: str = "real"
) -> Array:
    """Return the matrix of the rotation Rz(α) Ry(β) Rz(γ) in the irrep of a degree, (2·degree + 1, 2·degree + 1).

    As rows and columns count the real spherical harmonics from −degree to degree, as lie_learn has them by default.

    Args:
        degree: l ≥ 0.
        alpha: the last turn about z, in radians.
        beta: the turn about y, in radians.
        gamma: the first turn about z, in radians.
        field: "real", all that escnn asks for.

    Raises:
        ValueError: for another field, which lie_learn itself has.

    Example:
        >>> wigner_D_matrix(1, 0.0, 0.0, np.pi / 2).round(3) + 0.0
        array([[ 0.,  0.,  1.],
               [ 0.,  1.,  0.],
               [-1.,  0.,  0.]])
    """
    if field != "real":
        raise ValueError(f"field is {field!r}, and this stand-in for lie_learn has 'real' alone")
    swap = _swap_of_y_and_z(degree)
    # A turn about y is one about z between two swaps of the two axes.
    matrix: Array = _turn_about_z(degree, alpha) @ swap @ _turn_about_z(degree, beta) @ swap
    return matrix @ _turn_about_z(degree, gamma)


def _turn_about_z(degree: int, angle: float) -> Array:
    orders = np.arange(degree, -degree - 1, -1)
    turn = np.diag(np.cos(orders * angle))
    # The two diagonals cross at m = 0, whose sine is 0.
    turn += np.diag(np.sin(orders * angle))[:, ::-1]
    return turn


@functools.cache
def _swap_of_y_and_z(degree: int) -> Array:
    orders = range(-degree, degree + 1)
    return np.array([[_entry(degree, row, column) for column in orders] for row in orders])


def _entry(degree: int, row: int, column: int) -> float:
    """An entry of the matrix of (x, y, z) → (x, z, y): a sum of integers, times the root of a fraction."""
    a, b = abs(row), abs(column)
    # Harmonics are odd in y where the order is negative, and odd in z where degree + order is odd.
    if (row < 0) != (degree + b) % 2 or (column < 0) != (degree + a) % 2:
        return 0.0
    # Wigner's sum for a quarter turn about y. Between it and the swap lie quarter turns about z, which give the sign.
    total = sum(
        (-1) ** k * math.comb(degree + b, k) * math.comb(degree - b, degree - a - k) for k in range(degree - a + 1)
    )
    is_turned = ((a - b) // 2 + (row < 0 or column < 0)) % 2
    ratio = Fraction(
        math.factorial(degree + a) * math.factorial(degree - a), math.factorial(degree + b) * math.factorial(degree - b)
    )
    # Two orders, m and −m, make one real harmonic, but for m = 0.
    square = total**2 * ratio * (1 + (a > 0)) * (1 + (b > 0)) / 4**degree
    return math.copysign(math.sqrt(square), -total if is_turned else total)
