"""Convolutions of clouds beside loops over edges, for groups of space that few networks have."""

import copy

import pytest
import torch

pytest.importorskip("torch_geometric", reason="escnn's convolutions of clouds need it")

from errors import BROKEN, ROUNDING, relative_error
from escnn.nn import R3PointConv
from small_clouds import MORE_SPACES, SUPPORT, build, cloud, fields
from test_point_loops import LOOPS, layer_and_loops


@pytest.mark.parametrize(
    ("name", "in_translation"),
    [*((name, False) for name in MORE_SPACES), pytest.param("cylinder C4", True, marks=pytest.mark.slow)],
)
def test_values_and_gradients_equal_those_of_the_loops(name: str, in_translation: bool) -> None:
    layer, oracle = layer_and_loops(name, in_translation)
    x, edges = cloud(layer.in_type, nodes=4, neighbours=2)
    x.tensor.requires_grad_()
    inputs = [x.tensor, *layer.parameters()]
    answers = layer(x, edges).tensor, oracle.cloud(x.tensor, x.coords, edges.T.tolist())
    assert relative_error(*answers) <= LOOPS
    cotangent = torch.randn_like(answers[0])
    for found, expected in zip(*(torch.autograd.grad(answer, inputs, cotangent) for answer in answers), strict=True):
        assert expected.norm() > 0
        assert relative_error(found, expected) <= LOOPS
    with torch.no_grad():
        assert relative_error(layer.export()(x.tensor, x.coords, edges), answers[0]) <= ROUNDING
        layer.harden()
        assert relative_error(layer(x, edges).tensor, answers[0]) > BROKEN


@pytest.mark.parametrize("name", MORE_SPACES)
def test_strict_layer_is_that_of_escnn(name: str) -> None:
    theirs = R3PointConv(fields(name), fields(name), **SUPPORT)
    ours = build(fields(name), relax=None).float()
    ours.load_state_dict(theirs.state_dict())
    x, edges = cloud(fields(name))
    in_double = copy.deepcopy(theirs).double()  # and shares its parts
    with torch.no_grad():
        assert relative_error(ours.double()(x, edges).tensor, in_double(x, edges).tensor) <= ROUNDING
