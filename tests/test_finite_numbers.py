"""Finite arguments and weights give finite numbers, whatever their size; what is no number is seen in the softness."""

from __future__ import annotations

import contextlib
import math

import pytest
import small
import torch
from errors import ROUNDING, relative_error
from group_average import acted
from small_networks import EVERY_SOFT_LAYER, answer, features_of, layer_of, soft_weights
from torch import nn

from escnn_relaxed import RelaxedR2Conv, harden_network

REGULAR = small.types("C4", "regular -> regular")


FREQUENCIES = {
    "rotation 1e-20": {"rotation": 1e-20},
    "translation 1e-12": {"translation": 1e-12},
    "translation (0, 10)": {"translation": (0.0, 10.0)},
    "both 10": {"rotation": 10.0, "translation": 10.0},
}


@pytest.mark.parametrize("name", FREQUENCIES)
def test_layer_of_any_finite_frequency_is_finite(name: str) -> None:
    layer = RelaxedR2Conv(*REGULAR, 3, padding=1, relax=FREQUENCIES[name], initial_softness=0.1)
    assert answer(layer).isfinite().all()
    softness = layer.softness().item()
    # So small a modulation may be that of no weights.
    assert 0 <= softness <= 0.1001 if "1e-" in name else softness == pytest.approx(0.1, rel=1e-3)
    layer(layer.in_type(features_of(layer))).tensor.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def strict_weights(layer: nn.Module) -> list[nn.Parameter]:
    """The weights of the kernel that are not its soft ones."""
    known = {id(of) for of in soft_weights(layer)}
    return [of for name, of in layer.named_parameters() if id(of) not in known and name.endswith("weights")]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("which", ["soft weights", "strict weights"])
@pytest.mark.parametrize("form", ["soft", "soft in translation", "residual", "volumes"])
def test_softness_of_what_is_no_number_is_none(form: str, which: str, value: float) -> None:
    layer = layer_of(form)
    with torch.no_grad():
        weights = soft_weights(layer) if which == "soft weights" else strict_weights(layer)
        weights[0].view(-1)[0] = value
    assert not layer.softness().isfinite()


# Weights that make the soft part of a kernel in proportion to the rest, where all of it grows with these together.
OF_ONE_SCALE = {"soft": 0, "soft in translation": 0, "partial": 0, "transposed": 0, "volumes": 0, "residual": 1}


@pytest.mark.parametrize("factor", [1e-3, 1e3, 1e20, 1e-22])
@pytest.mark.parametrize("form", OF_ONE_SCALE)
def test_softness_does_not_depend_on_the_size_of_the_kernel(form: str, factor: float) -> None:
    """In float32, where the squares of kernels this large or small are none."""
    layer = layer_of(form, torch.float32)
    expected = layer.softness().item()
    with torch.no_grad():
        for weights in (*strict_weights(layer), *soft_weights(layer)[: OF_ONE_SCALE[form]]):
            weights.mul_(factor)
    assert layer.softness().item() == pytest.approx(expected, rel=1e-4)


@EVERY_SOFT_LAYER
def test_softness_of_a_layer_without_weights_is_zero(form: str) -> None:
    layer = layer_of(form)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    assert layer.softness().item() == 0


OUTSIDE = ((False, 3), (False, 5), (False, 8), (True, 3), (True, 5), "ico")


@pytest.mark.parametrize("keep", OUTSIDE, ids=str)
def test_kept_group_outside_of_the_sample_is_refused_or_right(keep: object) -> None:
    """The mean over the cube of K, which is averaged over both, is its strict part."""
    with contextlib.suppress(ValueError):
        layer = small.volume_layer(small.volume_type("SO(3)"), keep=keep, initial_softness=0.1)
        hardened = harden_network(layer).filter_bank().detach()
        cube = small.voxel_symmetries(layer.in_type.gspace)
        mean = acted(layer, layer.filter_bank().detach(), cube).mean(dim=0)
        assert relative_error(hardened, mean) <= ROUNDING


def test_continuous_group_of_one_sample_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="samples"):
        RelaxedR2Conv(*small.types("SO(2)", "irreps -> irreps"), 3, samples=1)
