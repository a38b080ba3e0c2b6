"""The keywords that baselines and networks pass on are those of the layer."""

from __future__ import annotations

import inspect

import pytest
from escnn.nn import R2Conv

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.layer.keywords import SofteningKeywords, StrictKeywords, check_keywords

OWN = set(inspect.signature(RelaxedR2Conv).parameters) - set(inspect.signature(R2Conv).parameters)


def test_every_keyword_is_an_argument_of_the_layer() -> None:
    known = set(inspect.signature(RelaxedR2Conv).parameters)
    assert {*StrictKeywords.__annotations__, *SofteningKeywords.__annotations__} <= known


def test_what_is_the_layers_own_softens_or_shapes_the_strict_part() -> None:
    assert set(SofteningKeywords.__annotations__) | {"strict_kernel"} == OWN
    assert len(OWN) == 9


def test_a_strict_layer_takes_everything_else() -> None:
    soft = {"relax", "learn_relaxation", "keep", "initial_softness", "regions", "random_offset"}
    place = {"in_type", "out_type", "kernel_size", "padding"}
    assert set(inspect.signature(RelaxedR2Conv).parameters) - soft - place == set(StrictKeywords.__annotations__)


def test_another_keyword_is_named() -> None:
    check_keywords("network", {"samples": 8}, SofteningKeywords, "beside these")
    with pytest.raises(TypeError, match=r"network has no argument 'width' \(=3\); beside these it takes .*relax, "):
        check_keywords("network", {"width": 3}, SofteningKeywords, "beside these")
