"""Weights of the plain features of many pairs, by one product of padded ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from escnn_relaxed.kernel.trained_weights import PairShape, TrainedWeights

# (o, i, D, F) of pairs that differ in all of them, the second and third alike in o·i and F.
SHAPES = [(2, 3, 4, 5), (1, 2, 3, 6), (2, 1, 1, 6), (1, 1, 0, 2)]
GROUPS = [1, 2, 1]


def some(shapes: list[tuple[int, int, int, int]]) -> tuple[list[Tensor], list[Tensor]]:
    weights = [torch.randn(o, i, d, dtype=torch.float64, requires_grad=True) for o, i, d, _ in shapes]
    return weights, [torch.randn(d, f, dtype=torch.float64) for *_, d, f in shapes]


def trained_of(shapes: list[tuple[int, int, int, int]]) -> TrainedWeights:
    trained = TrainedWeights()
    trained.set_shapes([PairShape(o * i, d, f) for o, i, d, f in shapes])
    return trained


@pytest.mark.parametrize(("shapes", "groups"), [(SHAPES, GROUPS), (SHAPES[:1], [1]), ([(2, 1, 0, 3)] * 2, [2])])
def test_products_are_those_of_each_pair(shapes: list[tuple[int, int, int, int]], groups: list[int]) -> None:
    weights, units = some(shapes)
    found = [part for group in trained_of(shapes)(weights, units, groups) for part in group]
    for product, weight, unit in zip(found, weights, units, strict=True):
        torch.testing.assert_close(product, weight.flatten(0, 1) @ unit)


def test_gradients_are_those_of_finite_differences() -> None:
    weights, units = some(SHAPES)
    trained = trained_of(SHAPES)

    def squares(*weights: Tensor) -> tuple[Tensor, ...]:
        return tuple(product.square() for product in trained(weights, units, GROUPS))

    assert gradcheck(squares, weights)
    assert gradgradcheck(squares, weights)


def test_units_that_change_are_padded_anew() -> None:
    weights, units = some(SHAPES)
    trained = trained_of(SHAPES)
    first = trained(weights, units, GROUPS)
    units[0] *= 2
    units[1] = 2 * units[1]
    units[2].data.mul_(2)  # past its counter of versions
    second = trained(weights, units, GROUPS)
    for before, after in zip(first[:2], second, strict=False):
        torch.testing.assert_close(2 * before, after)
