"""Layers as the tests want them: float64 after a start in float32, with every weight away from its start.

What ships is what is built where a test names no form of the kernel: a strict kernel that is tied to its modulation.
The forms of a kernel become arguments of a layer here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import battery
import pytest
import torch
from escnn.nn import FieldType
from torch import nn

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, RelaxedR2ConvTransposed

Layer = TypeVar("Layer", RelaxedR2Conv, RelaxedR2ConvTransposed)

# Where every claim about translation is exact.
TORUS: dict[str, object] = {"padding": 1, "padding_mode": "circular"}

# The forms of a kernel: a strict one that is tied to its modulation, the default; and the paper's continuous one.
SOFT_PARTS = ("tied", "continuous")
EVERY_KERNEL = pytest.mark.parametrize("soft_part", SOFT_PARTS)

# ω of a continuous kernel that is rough on 3×3 taps: with the default it is almost constant there, and invariant with
# it.
ROUGH = {"position": 0.4, "rotation": 0.3, "reflection": 0.7}

# How a kernel follows the position, and a small image; in translation with an odd and an even side.
SIZES = {"stationary": (2, 3), "in translation": (5, 4)}
EVERY_KIND = pytest.mark.parametrize("kind", SIZES)


def relaxation(kind: str, group: dict[str, float], translation: object = (0.3, 0.5)) -> dict[str, object]:
    """Arguments of a layer of this kind that is soft in these subgroups of the group."""
    return {"relax": group | ({} if kind == "stationary" else {"translation": translation})}


def options_of(soft_part: str, **shaping: object) -> dict[str, object]:
    """Arguments of a layer with this form of kernel, and of its κ. A tied one has none, so they are left out."""
    return {} if soft_part == "tied" else {"kernel": ContinuousKernel(**shaping)}


def with_kernel(arguments: Mapping[str, object]) -> dict[str, object]:
    """Arguments of a layer, of which tables give the form of the kernel and κ side by side with the others.

    Without a form it is the default one, or a continuous one where κ is given.
    """
    shaping = {name: arguments[name] for name in ContinuousKernel.__dataclass_fields__ if name in arguments}
    others = {name: value for name, value in arguments.items() if name not in shaping}
    soft_part = str(others.pop("soft_part", "continuous" if shaping else "tied"))
    return {**others, **options_of(soft_part, **shaping)}


def build(
    in_type: FieldType,
    out_type: FieldType,
    kernel_size: int = 3,
    make: type[Layer] = RelaxedR2Conv,
    **arguments: object,
) -> Layer:
    """A layer in float64. Built in float32, so that constants that had lost digits would show.

    It has as few elements of a continuous group, and a continuous kernel as few hidden values, as a claim about any
    number of them needs.
    """
    arguments = {"samples": 8, **arguments}
    if arguments.get("soft_part") == "continuous":
        arguments = {"hidden_size": 6, **arguments}
    layer = make(in_type, out_type, kernel_size, **with_kernel(arguments)).double()
    shake(layer)
    return layer


def soft_layer(space: str, pair: str, **arguments: object) -> RelaxedR2Conv:
    """A layer by :func:`build` between the fields of a pair of ``battery``, so soft that its error is seen: by 0.3."""
    return build(*battery.types(space, pair), **{"initial_softness": 0.3, **arguments})


def soft_transposed_layer(space: str, pair: str, **arguments: object) -> RelaxedR2ConvTransposed:
    """The adjoint of such a layer."""
    place = {"make": RelaxedR2ConvTransposed, "initial_softness": 0.3, "samples": 4}
    return build(*battery.types(space, pair), **{**place, **arguments})


@torch.no_grad()
def shake(layer: nn.Module) -> None:
    """Move every weight and bias from its start; claims about a layer hold for any of them. ω′ stays."""
    for name, parameter in layer.named_parameters():
        if "kernel.frequency" in name:
            continue
        if (parameter == 0).all():
            parameter.copy_(torch.randn_like(parameter) / 4)
        else:
            parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
