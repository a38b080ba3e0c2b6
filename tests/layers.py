"""Layers as the tests want them: float64 after a start in float32, with every weight away from its start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

import battery
import pytest
import torch
from escnn.nn import FieldType
from reference import Oracle
from torch import nn

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, RelaxedR2ConvTransposed

Layer = TypeVar("Layer", RelaxedR2Conv, RelaxedR2ConvTransposed)

# As few hidden values and elements of a continuous group as a claim about any number of them needs.
SMALL: dict[str, object] = {"hidden_size": 6, "samples": 8}

# Frequencies of kernels that are rough on 3×3 taps: the default ones are almost constant there, and invariant with it.
ROUGH = {"position": 0.4, "rotation": 0.3, "reflection": 0.7}

# Where every claim about translation is exact.
TORUS: dict[str, object] = {"padding": 1, "padding_mode": "circular"}

# The forms of a kernel: a strict one tied to its modulation, the default; a strict one beside a continuous soft part;
# and a continuous one that is both parts. Cases are in the first and the last of them, since the second shares its
# code with the last; each file has a few of it.
ALL_SOFT_PARTS = ("continuous", "centred", "tied")
SOFT_PARTS = ("continuous", "tied")

# How a kernel follows the position, and a small image on which it does: regions that are cells and, in the middle rows,
# share pixels.
KINDS: dict[str, dict[str, object]] = {"stationary": {}, "by regions": {"regions": 2}, "per pixel": {"regions": None}}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
SIZES = {"stationary": (2, 3), "by regions": (9, 8), "per pixel": (2, 3)}


def relaxation(kind: str, group: dict[str, float], translation: object = (0.3, 0.5)) -> dict[str, object]:
    """Arguments of a layer of this kind that is soft in these subgroups of the group."""
    return {"relax": group | ({} if kind == "stationary" else {"translation": translation}), **KINDS[kind]}


def options_of(soft_part: str, **shaping: object) -> dict[str, object]:
    """Arguments of a layer with this form of kernel, and of its κ. A tied one has none, so they are left out."""
    if soft_part == "tied":
        return {"strict_kernel": "steerable"}
    strict_kernel = {"centred": "steerable", "continuous": "continuous"}[soft_part]
    return {"strict_kernel": strict_kernel, "kernel": ContinuousKernel(**shaping)}


def with_kernel(arguments: Mapping[str, object]) -> dict[str, object]:
    """Arguments of a layer, of which tables give the form of the kernel and κ side by side with the others.

    Without a form it is the default one, or a centred one where κ is given.
    """
    shaping = {name: arguments[name] for name in ContinuousKernel.__dataclass_fields__ if name in arguments}
    others = {name: value for name, value in arguments.items() if name not in shaping}
    if "soft_part" in others:
        others |= options_of(str(others.pop("soft_part")), **shaping)
        return others
    return {**others, "kernel": ContinuousKernel(**shaping)} if shaping else others


@contextlib.contextmanager
def uncalibrated() -> Iterator[None]:
    """Layers are built without the search for the scale at which their answers have the variance of their input.

    A continuous kernel passes noise through itself to find that scale, which takes most of the time in which a layer is
    built. Without it the weights are drawn at another scale. So a test may leave it out if its claim holds for
    any weights: of equivariance, softness, state or export. Tests of the start itself do not.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("escnn_relaxed.kernel.single_kernel.continuous_maps", lambda bank: None)
        patch.setattr("escnn_relaxed.kernel.single_kernel.gain", lambda *arguments: 1.0)
        yield


def build(
    in_type: FieldType,
    out_type: FieldType,
    kernel_size: int = 3,
    make: type[Layer] = RelaxedR2Conv,
    **arguments: object,
) -> Layer:
    """A layer in float64. Built in float32, so that constants that had lost digits would show."""
    arguments = {"soft_part": "continuous", **SMALL, **arguments}
    with uncalibrated():
        layer = make(in_type, out_type, kernel_size, **with_kernel(arguments)).double()
    shake(layer)
    return layer


def build_with_oracle(
    in_type: FieldType, out_type: FieldType, kernel_size: int = 3, **arguments: object
) -> tuple[RelaxedR2Conv, Oracle]:
    """The same layer and the loops that evaluate it."""
    arguments = {**SMALL, "filter_frequency": ROUGH, **arguments}
    layer = build(in_type, out_type, kernel_size, **arguments)
    return layer, Oracle(layer, kernel_size=kernel_size, **arguments)


def soft_layer(space: str, pair: str, **arguments: object) -> RelaxedR2Conv:
    """A layer by :func:`build` between the fields of a pair of ``battery``, so soft that its error is seen: by 0.3."""
    return build(*battery.types(space, pair), **{"initial_softness": 0.3, **arguments})


@torch.no_grad()
def shake(layer: nn.Module) -> None:
    """Move every weight and bias from its start; claims about a layer hold for any of them. ω′ stays."""
    for name, parameter in layer.named_parameters():
        if "domain_frequency" in name:
            continue
        if (parameter == 0).all():
            parameter.copy_(torch.randn_like(parameter) / 4)
        else:
            parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
