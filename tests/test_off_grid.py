"""Angles that the pixel grid does not have: the error at ω′ = 0 against R2Conv's, and by the number of samples.

No image is resampled: inputs are sums of waves, turned in closed form, and the answer is read at the centre of
the image, which a rotation keeps. What is left is the layer's own error.
"""

from __future__ import annotations

import pytest
import small
import torch
from errors import ROUNDING, relative_error
from small import build

from escnn_relaxed import RelaxedR2Conv


def layers_of_samples(soft_part: str, *numbers: int) -> list[RelaxedR2Conv]:
    """Layers of SO(2) in the same state, by so many samples each; no state says its number of samples."""
    types = small.types("SO(2)", "irreps -> irreps")
    # Not 0.25, at which the units of a tied kernel make up for the samples.
    arguments = {"relax": {"rotation": 0.3}, "initial_softness": 0.3, "soft_part": soft_part}
    layers = [build(*types, 5, samples=samples, **arguments) for samples in numbers]
    for layer in layers[1:]:
        layer.load_state_dict(dict(layers[0].state_dict()))
    return layers


@torch.no_grad()
@pytest.mark.parametrize(
    ("soft_part", "bounds"),
    # Band-limited kernels: once the samples resolve their harmonics the error falls faster than any power of N.
    # Functions of the angle alone, which a tied kernel has, are resolved by eight samples.
    [("continuous", {16: 0.01, 32: 1e-6}), ("tied", {8: 0.005, 16: 1e-5, 32: 1e-10})],
)
def test_kernel_of_a_continuous_group_comes_near_the_integral_as_samples_grow(soft_part: str, bounds: dict) -> None:
    dense, *others = (layer.filter_bank() for layer in layers_of_samples(soft_part, 256, *bounds))
    errors = [relative_error(bank, dense) for bank in others]
    above_rounding = [max(error, ROUNDING) for error in errors]
    assert above_rounding == sorted(above_rounding, reverse=True)
    assert all(error <= bound for error, bound in zip(errors, bounds.values(), strict=True)), errors
