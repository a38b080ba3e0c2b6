"""The other ways to relax as the tests want them: float64, every weight away from its start, relaxed well."""

import copy

import pytest
import small
import torch
from escnn.group import Representation
from reference_group import Elements, coset
from small import TORUS, shake
from torch import Tensor

from escnn_relaxed import ContinuousKernel
from escnn_relaxed.baselines import LAYERS, WeightedR2Conv
from escnn_relaxed.layer.convolution import RelaxedConvolution

WAYS = tuple(name for name in LAYERS if name != "relaxed")
EVERY_WAY = pytest.mark.parametrize("way", WAYS)
EVERY_STRICT_KERNEL = pytest.mark.parametrize(
    "kernel", [None, ContinuousKernel(hidden_size=2)], ids=["steerable", "continuous"]
)
SOFTNESS = 0.2


def baseline(way: str, space: str, pair: str, kernel_size: int = 3, **arguments: object) -> RelaxedConvolution:
    """A layer on the torus."""
    arguments = {**TORUS, "initial_softness": SOFTNESS, **arguments}
    layer = LAYERS[way](*small.types(space, pair), kernel_size, **arguments).double()
    shake(layer)
    return layer


@torch.no_grad()
def strict_bank(way: str, layer: RelaxedConvolution, number: int = 0) -> Tensor:
    """A strict kernel that the layer relaxes, of several the one of this number."""
    strict = copy.deepcopy(layer)
    if way == "partial":
        strict.set_narrowing(**dict.fromkeys(strict.narrowing, 0.0))
    elif way == "residual":
        strict.kernel.free_weight.zero_()
    else:
        set_group_weights(
            strict, torch.zeros_like(strict.kernel.group_weights()).index_fill(0, torch.tensor(number), 1)
        )
    return strict.filter_bank()


@torch.no_grad()
def set_group_weights(layer: WeightedR2Conv, weights: Tensor) -> None:
    """Set w of each kernel and element, (L, M)."""
    layer.kernel.means.copy_(weights.mean(1))
    layer.kernel.deviations.copy_(weights @ layer.kernel.elements.averaged("contrasts").mT)


def members(field: Representation, elements: Elements, channel: int) -> list[int]:
    """Numbers of the elements of a channel: one or a coset."""
    return [number for number, g in enumerate(elements.elements) if coset(field, g) == channel]
