"""In eval mode the filter bank is built once, and never stale; no graph of it is kept."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from forms import (
    EVERY_FORM_WITH_BANKS,
    SOFT_WITH_BANKS,
    answer,
    evaluated,
    features_of,
    layer_of,
    uncached,
)
from layers import shake
from tolerances import ROUNDING
from torch import Tensor
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv

CONTEXTS = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


def count_builds(layer: RelaxedR2Conv, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Every bank that the layer builds from now on, those of all regions as one."""
    banks: list[Tensor] = []

    def recorded(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def record(*arguments: object) -> Tensor:
            banks.append(build(*arguments))
            return banks[-1]

        return record

    for name in ("filter_bank", "_banks_of"):
        monkeypatch.setattr(layer, name, recorded(getattr(layer, name)))
    return banks


@pytest.mark.parametrize("context", CONTEXTS)
@EVERY_FORM_WITH_BANKS
def test_bank_is_built_once_in_evaluation(form: str, context: str, device: torch.device, monkeypatch) -> None:
    layer = layer_of(form).to(device).eval()
    banks = count_builds(layer, monkeypatch)
    with CONTEXTS[context]():
        answers = [layer(layer.in_type(features_of(layer).to(device))).tensor for _ in range(3)]
        layer.linear(torch.zeros(1, layer.in_type.size, 8, 8, dtype=torch.float64, device=device))
    assert len(banks) == 1
    assert all(torch.equal(found, answers[0]) for found in answers)
    fresh = copy.deepcopy(layer.train()).eval()
    assert relative_error(evaluated(fresh), answers[0]) <= ROUNDING


@pytest.mark.parametrize("form", SOFT_WITH_BANKS)
def test_banks_of_regions_are_those_of_the_size_of_the_image(form: str, device: torch.device, monkeypatch) -> None:
    """Banks are built once for each size, and those of the last two are kept."""
    layer = layer_of(form).to(device).eval()
    sizes = [(8, 8), (8, 9), (13, 9), (8, 8)]
    images = [torch.randn(1, layer.in_type.size, *size, dtype=torch.float64, device=device) for size in sizes]
    expected = [answer(copy.deepcopy(layer), image) for image in images]
    banks = count_builds(layer, monkeypatch)
    for image, wanted in zip(images, expected, strict=True):
        for _ in range(2):
            assert torch.equal(answer(layer, image), wanted)
    assert [len(bank) for bank in banks] == [4, 4, 6, 4]


@EVERY_FORM_WITH_BANKS
def test_bank_is_built_at_every_call_where_a_gradient_is_wanted(form: str, monkeypatch) -> None:
    layer = layer_of(form)
    features = layer.in_type(features_of(layer))
    banks = count_builds(layer, monkeypatch)
    for mode in (True, False):
        layer.train(mode)
        for _ in range(2):
            layer(features)
    assert len(banks) == 4
    assert all(bank.requires_grad for bank in banks)


@EVERY_FORM_WITH_BANKS
def test_frozen_layer_builds_its_bank_once_and_passes_gradients_on(form: str, monkeypatch) -> None:
    layer = layer_of(form).eval().requires_grad_(False)
    banks = count_builds(layer, monkeypatch)
    features = features_of(layer).requires_grad_()
    gradients = [torch.autograd.grad(layer(layer.in_type(features)).tensor.sum(), features)[0] for _ in range(2)]
    assert len(banks) == 1
    assert torch.equal(*gradients)
    layer.requires_grad_(True)
    (expected,) = torch.autograd.grad(layer(layer.in_type(features)).tensor.sum(), features)
    assert relative_error(gradients[0], expected) <= ROUNDING


@EVERY_FORM_WITH_BANKS
def test_two_backward_passes_in_evaluation_give_the_right_gradients(form: str) -> None:
    """As in fine-tuning with frozen statistics."""
    layer = layer_of(form).eval()
    evaluated(layer)
    features = layer.in_type(features_of(layer))
    gradients = []
    for _ in range(2):
        layer.zero_grad()
        layer(features).tensor.square().mean().backward()
        gradients.append([parameter.grad for parameter in layer.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert all(gradient.any() for gradient in gradients[0])
    for parameter, gradient in zip(layer.parameters(), gradients[0], strict=True):
        # Along one random direction, by central differences: exact to the step squared, 1e-8, and to rounding over it.
        direction = torch.randn_like(parameter)
        values = []
        for step in (1e-4, -1e-4):
            with torch.no_grad():
                parameter.add_(step * direction)
                values.append(layer(features).tensor.square().mean())
                parameter.sub_(step * direction)
        found = float(values[0] - values[1]) / 2e-4
        assert found == pytest.approx(float((gradient * direction).sum()), rel=1e-4, abs=1e-7)


def test_bank_built_without_gradients_serves_with_gradients(monkeypatch) -> None:
    """One built in inference mode is a normal tensor."""
    layer = layer_of("soft").eval().requires_grad_(False)
    banks = count_builds(layer, monkeypatch)
    with torch.inference_mode():
        expected = layer(layer.in_type(features_of(layer))).tensor.clone()
    features = features_of(layer).requires_grad_()
    found = layer(layer.in_type(features)).tensor
    found.sum().backward()
    assert len(banks) == 1
    assert torch.equal(found.detach(), expected)
    assert features.grad.any()


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda layer: pickle.loads(pickle.dumps(layer))}


@pytest.mark.parametrize("how", COPIES)
def test_copies_have_no_bank_yet(how: str, monkeypatch) -> None:
    layer = layer_of("soft").eval()
    expected = evaluated(layer)
    other = COPIES[how](layer)
    banks = count_builds(other, monkeypatch)
    assert torch.equal(evaluated(other), expected)
    assert len(banks) == 1
    assert layer._banks is not other._banks
    assert layer._remembered is not other._remembered is other.bank.remembered


def test_cache_is_no_state_and_adds_nothing_to_what_is_saved() -> None:
    layer = layer_of("soft").eval()
    keys, size = list(layer.state_dict()), len(pickle.dumps(layer))
    evaluated(layer)
    assert list(layer.state_dict()) == keys
    assert len(pickle.dumps(layer)) == size
    kept = [entry.result for entry in layer._banks._entries.values()]
    assert kept
    assert not any(buffer is bank for buffer in layer.buffers() for bank, _ in kept)


@EVERY_FORM_WITH_BANKS
def test_threads_that_share_a_layer_all_get_its_answer(form: str) -> None:
    layer = layer_of(form).eval()
    expected = uncached(layer)
    layer._banks.clear()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: evaluated(layer), range(40)))
    assert all(relative_error(found, expected) <= ROUNDING for found in answers)


def test_threads_see_a_change_that_another_has_made() -> None:
    layer = layer_of("soft").eval()
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            shake(layer)
            expected = uncached(layer)
            answers = list(pool.map(lambda _: evaluated(layer), range(16)))
            assert all(relative_error(found, expected) <= ROUNDING for found in answers)


def test_training_builds_the_bank_however_it_was_switched_on(monkeypatch) -> None:
    layer = layer_of("soft").eval()
    banks = count_builds(layer, monkeypatch)
    for training in (False, True, False):
        layer.training = training
        with torch.no_grad():
            layer(layer.in_type(features_of(layer)))
    # In evaluation the values are the same as before.
    assert len(banks) == 2
