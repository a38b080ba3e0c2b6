"""Images of ever new sizes, in training and evaluation, leave nothing behind."""

from __future__ import annotations

import gc
import random

import pytest
import torch
from forms import SOFT_IN_TRANSLATION, answer, features_of, layer_of
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv

SIZES = 30  # more than the store holds


def pass_images(layer: RelaxedR2Conv, sizes: random.Random) -> int:
    """Number of tensors that are alive after images of many sizes have passed."""
    for _ in range(SIZES):
        side = sizes.randint(8, 40)
        layer.train()(layer.in_type(features_of(layer, side, batch=1))).tensor.square().mean().backward()
        answer(layer.eval(), features_of(layer, side, batch=1))
    layer.zero_grad()
    gc.collect()
    # Asking an object for its class, as isinstance does, warns of some that torch has deprecated.
    return sum(issubclass(type(value), Tensor) for value in gc.get_objects())


@pytest.mark.parametrize("form", ["soft", *(form for form in SOFT_IN_TRANSLATION if "per pixel" not in form)])
def test_number_of_tensors_does_not_grow_with_the_sizes_seen(form: str) -> None:
    layer, sizes = layer_of(form, torch.float32), random.Random(1)
    first, second = (pass_images(layer, sizes) for _ in range(2))
    # Whether a size has one region along an axis, or several, decides over a few tensors.
    assert second <= first + 8
