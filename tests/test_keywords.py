"""Keyword arguments that are passed on: their names are the layer's, and others are refused."""

from __future__ import annotations

import inspect

import pytest

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.layer.keywords import SofteningKeywords, StrictKeywords, check_keywords


@pytest.mark.parametrize("known", [StrictKeywords, SofteningKeywords])
def test_keywords_are_arguments_of_the_layer(known: type) -> None:
    arguments = inspect.signature(RelaxedR2Conv).parameters
    assert set(known.__annotations__) <= set(arguments)
    check_keywords("f", dict.fromkeys(known.__annotations__), known, "beside others")


def test_unknown_keyword_is_named() -> None:
    with pytest.raises(TypeError, match=r"relax_network has no argument 'colour' \(=3\); beside a network it takes"):
        check_keywords("relax_network", {"relax": None, "colour": 3}, SofteningKeywords, "beside a network")
