"""The options of a layer are listed once, and every other list follows from that."""

from __future__ import annotations

import inspect

import pytest
from escnn.nn import R2Conv

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed
from escnn_relaxed.baselines import STRICT_KEYWORDS
from escnn_relaxed.layer.options import SOFTENING, Softening, check_keywords


@pytest.mark.parametrize("layer", [RelaxedR2Conv, RelaxedR2ConvTransposed])
def test_keywords_of_a_layer_are_the_options_with_their_defaults(layer: type) -> None:
    parameters = inspect.signature(layer).parameters.values()
    keywords = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert keywords == vars(Softening())


def test_a_strict_layer_takes_everything_after_the_padding_that_softens_nothing() -> None:
    soft = {"relax", "learn_relaxation", "keep", "initial_softness", "regions"}
    place = {"in_type", "out_type", "kernel_size", "padding"}
    assert set(STRICT_KEYWORDS) == set(inspect.signature(RelaxedR2Conv).parameters) - soft - place
    assert set(STRICT_KEYWORDS) - {"samples", "kernel"} <= set(inspect.signature(R2Conv).parameters)


def test_another_keyword_is_named() -> None:
    check_keywords("network", {"samples": 8}, SOFTENING, "beside these")
    with pytest.raises(TypeError, match=r"network has no argument 'width' \(=3\); beside these it takes .*relax, "):
        check_keywords("network", {"width": 3}, SOFTENING, "beside these")
