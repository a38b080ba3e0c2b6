"""What the tutorials share: digits that are turned, a network that is invariant, its training and its accuracy."""

from __future__ import annotations

import pytest
import torch
from escnn import nn

from escnn_relaxed.tutorials import SteerableCNN, accuracy, digits, is_trial, train, turned

pytest.importorskip("sklearn")


def test_digits_of_training_and_test_differ_and_are_the_same_each_time() -> None:
    (images, labels), (tests, _) = digits(images=100, tests=50)
    again = digits(images=100, tests=50)[0]
    assert images.shape == (100, 1, 17, 17)
    assert tests.shape == (50, 1, 17, 17)
    assert torch.equal(images, again[0])
    assert torch.equal(labels, again[1])
    assert not any(torch.equal(image, test) for image in images[:20] for test in tests)


def test_images_turn_where_that_is_asked() -> None:
    (images, _), _ = digits(images=20, tests=20)
    assert torch.allclose(turned(images, most=0), images, atol=1e-5)  # float32, resampled at the pixels
    assert (turned(images, most=180) - images).abs().max() > 0.1
    assert torch.equal(turned(images, seed=3), turned(images, seed=3))


def test_strict_network_gives_a_turned_image_the_same_logits() -> None:
    torch.manual_seed(0)
    network = SteerableCNN(nn.R2Conv, fields=2).eval()
    images = torch.rand(3, 1, 17, 17)
    with torch.no_grad():
        # float32: rounding of a few layers.
        assert torch.allclose(network(images), network(images.rot90(1, (2, 3))), atol=1e-4)


def test_training_raises_the_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESCNN_RELAXED_SMOKE", "0")
    assert not is_trial()
    data, _ = digits(images=128, tests=10)
    torch.manual_seed(0)
    network = SteerableCNN(nn.R2Conv)
    before = accuracy(network, data)
    after = accuracy(train(network, data, epochs=15), data)
    assert not network.training
    assert after > before + 10
    assert accuracy(torch.nn.Identity(), (torch.eye(4), torch.tensor([0, 1, 2, 0]))) == 75


def test_a_trial_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESCNN_RELAXED_SMOKE", "1")
    assert is_trial()
    assert [len(split[0]) for split in digits()] == [64, 64]
