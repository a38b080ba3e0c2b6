"""Convolutions of clouds beside loops over edges: values and gradients."""

from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric", reason="escnn's convolutions of clouds need it")

import small_clouds
from errors import BROKEN, relative_error
from reference_group import Elements
from reference_kappas import REFERENCE
from reference_points import PointOracle
from small_clouds import SPACES, build, cloud, fields

# float64; the units of functions are sums over hundreds of points.
LOOPS = 1e-10
FREQUENCIES = {"rotation": 0.2, "reflection": 0.35}

IN_TRANSLATION = [name for name in SPACES if name != "O(3)"]  # of SO(3) there are loops enough


def layer_and_loops(name: str, in_translation: bool = False, keep: Any = None, **others: Any) -> tuple[Any, Any]:
    of = fields(name)
    names = [*small_clouds.subgroups(of), *(["translation"] if in_translation else [])]
    few = 4 if of.gspace.dimensionality == 2 or name.endswith("z") else 24
    relax = {"relax": dict.fromkeys(names, REFERENCE), "initial_softness": 0.3, "samples": few, **others}
    layer = build(of, keep=keep, domain_radius=3.0 if in_translation else None, **relax)
    frequencies = {**FREQUENCIES, "translation": (0.3, 0.5, 0.2)[: layer.d]}
    layer.set_domain_frequency(**{name: frequencies[name] for name in layer.domain_frequency})
    return layer, PointOracle(layer, Elements(of.gspace, few, about_axis=keep == "SO(2)"))


@pytest.mark.parametrize(
    ("name", "in_translation"), [*((name, False) for name in SPACES), *((name, True) for name in IN_TRANSLATION)]
)
def test_layer_equals_the_loops(name: str, in_translation: bool) -> None:
    layer, oracle = layer_and_loops(name, in_translation)
    x, edges = cloud(layer.in_type)
    with torch.no_grad():
        expected = oracle.cloud(x.tensor, x.coords, edges.T.tolist())
        assert relative_error(layer(x, edges).tensor, expected) <= LOOPS
        layer.harden()
        assert relative_error(layer(x, edges).tensor, expected) > BROKEN


def test_layer_soft_in_reflection_alone_equals_the_loops() -> None:
    layer, oracle = layer_and_loops("D4", relax={"reflection": REFERENCE})
    x, edges = cloud(layer.in_type)
    with torch.no_grad():
        assert relative_error(layer(x, edges).tensor, oracle.cloud(x.tensor, x.coords, edges.T.tolist())) <= LOOPS
    assert layer.kernel.input_modulation is not None  # trivial fields take f of the input's channels


def test_layer_that_keeps_turns_about_an_axis_equals_the_loops() -> None:
    layer, oracle = layer_and_loops("SO(3)", keep="SO(2)")
    x, edges = cloud(layer.in_type)
    with torch.no_grad():
        assert relative_error(layer(x, edges).tensor, oracle.cloud(x.tensor, x.coords, edges.T.tolist())) <= LOOPS


@pytest.mark.parametrize(
    ("name", "relax"), [("D4", None), ("D4", "reflection"), ("SO(2)", None), ("SO(3)", None)], ids=str
)
def test_gradients_equal_those_of_the_loops(name: str, relax: str | None) -> None:
    options = {} if relax is None else {"relax": {relax: REFERENCE, "translation": REFERENCE}}
    layer, oracle = layer_and_loops(name, in_translation=True, learn_relaxation=True, **options)
    x, edges = cloud(layer.in_type, nodes=5, neighbours=2)
    # escnn's bases of fields that are no irreps, and at the origin, have no gradient of coordinates.
    inputs = [x.tensor] if name == "D4" else [x.tensor, x.coords]
    edges = edges[:, edges[0] != edges[1]]
    for value in inputs:
        value.requires_grad_()
    answers = layer(x, edges).tensor, oracle.cloud(x.tensor, x.coords, edges.T.tolist())
    cotangent = torch.randn_like(answers[0])
    names = [*["input", "coordinates"][: len(inputs)], *[name for name, _ in layer.named_parameters()]]
    inputs += layer.parameters()
    gradients = [torch.autograd.grad(answer, inputs, cotangent) for answer in answers]
    for name, found, expected in zip(names, *gradients, strict=True):
        assert expected.norm() > 0, name
        assert relative_error(found, expected) <= LOOPS, name
