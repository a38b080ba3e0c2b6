"""The filter bank of eval mode is never stale, whatever of the layer is changed and however it is written."""

from __future__ import annotations

import copy

import pytest
import torch
from forms import evaluated, features_of, layer_of, uncached
from tolerances import ROUNDING
from transformations import relative_error
from ways_to_change import CHANGES, CHANGES_IN_TRANSLATION, turned

CONTEXTS = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


# Banks of regions are remembered as the one bank is, so that they are asked in one context.
FORMS_OF_CHANGES = [
    *[("soft", change, context) for change in CHANGES for context in CONTEXTS],
    *[("soft in translation", change, "no_grad") for change in (*CHANGES, *CHANGES_IN_TRANSLATION)],
]


@pytest.mark.parametrize(("form", "change", "context"), FORMS_OF_CHANGES)
def test_change_is_seen_at_the_next_call(form: str, change: str, context: str, device: torch.device) -> None:
    if device.type != "cpu" and change == "through numpy":
        pytest.skip("NumPy shares main memory alone")
    layer = layer_of(form).to(device).eval()
    with CONTEXTS[context]():
        before = evaluated(layer).clone()
    assert relative_error(uncached(layer), before) <= ROUNDING
    (CHANGES | CHANGES_IN_TRANSLATION)[change](layer)
    with CONTEXTS[context]():
        after = evaluated(layer).clone()
    assert relative_error(uncached(layer), after) <= ROUNDING
    if change == "dtype":
        assert after.dtype == torch.float32
    else:
        # More than rounding: the largest of what would be seen if the bank were stale.
        assert relative_error(after, before) > 1e-4


def test_softness_that_starts_at_zero_is_seen_however_it_is_written(device: torch.device) -> None:
    """Whether a layer is soft at all is remembered too."""
    writes = {
        "set": lambda value: layer.set_domain_frequency(rotation=value),
        "in place": lambda value: layer.domain_frequency["rotation"].fill_(value),
        "data": lambda value: layer.domain_frequency["rotation"].data.fill_(value),
    }
    for write in writes.values():
        layer = layer_of("soft").to(device).eval()
        write(0.0)
        strict = evaluated(layer)
        write(0.3)
        soft = evaluated(layer)
        assert relative_error(soft, strict) > 1e-2
        assert relative_error(uncached(layer), soft) <= ROUNDING


def test_copy_does_not_remember_what_was_seen_of_the_frequency(device: torch.device) -> None:
    """Version counters of a copied tensor start anew, and may come to where the original was."""
    layer = layer_of("soft").to(device).eval()
    for value in (0.1, 0.2, 0.0):
        layer.set_domain_frequency(rotation=value)
    evaluated(layer)
    other = copy.deepcopy(layer)
    frequency = other.domain_frequency["rotation"]
    while frequency._version < layer.domain_frequency["rotation"]._version:
        other.set_domain_frequency(rotation=0.3)
    assert relative_error(evaluated(other), uncached(other)) <= ROUNDING
    assert relative_error(evaluated(other), evaluated(layer)) > 1e-2


def test_layer_that_was_made_in_inference_mode_evaluates(device: torch.device) -> None:
    """Such tensors have no version counter."""
    with torch.inference_mode():
        layer = layer_of("soft").to(device).float().eval()
        first = evaluated(layer)
        assert layer.weights.is_inference()
        layer.weights.mul_(1.5)
        layer.set_domain_frequency(rotation=0.3)
        changed = evaluated(layer)
    assert relative_error(changed, first) > 1e-2
    # Sums of some hundred terms in float32.
    assert relative_error(changed, uncached(layer)) <= 1e-5


def test_projection_for_a_while_is_seen_at_both_ends() -> None:
    layer = layer_of("soft").eval()
    before = evaluated(layer)
    layer.hardened = ("rotation",)
    hardened = copy.deepcopy(layer)
    assert relative_error(evaluated(layer), uncached(hardened)) <= ROUNDING
    assert relative_error(evaluated(layer), before) > 1e-2
    layer.hardened = ()
    assert torch.equal(evaluated(layer), before)


def test_random_offset_of_training_does_not_reach_evaluation() -> None:
    layer = layer_of("random offset").eval()
    before = evaluated(layer)
    features = layer.in_type(features_of(layer))
    for _ in range(2):
        drawn = layer.train()(features).tensor.detach()
        assert relative_error(drawn, before) > 1e-4
        assert torch.equal(evaluated(layer.eval()), before)
    turned(layer)
    assert relative_error(evaluated(layer), before) > 1e-4
    assert relative_error(evaluated(layer), uncached(layer)) <= ROUNDING
