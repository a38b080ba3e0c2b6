"""Checks of the layer's arguments: every error names the argument, the value and what would be right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from escnn.gspaces import GSpace2D
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor

from ..checks import check_bool, check_integer, check_number, warn_once
from ..group.elements import SUBGROUPS, has_subgroup
from ..integral.stationary import ConvolutionGeometry
from .domain_frequency import Frequency, RotationSamples, frequency_values

__all__ = [
    "check_field_type",
    "check_field_types",
    "check_groups",
    "check_image",
    "check_input",
    "check_random_offset",
    "check_softness",
    "filter_frequencies",
    "nominal_frequency",
    "padding_pair",
    "resolve_relaxation",
    "rotations_of",
    "warn_ignored",
]

DEFAULT_DOMAIN_FREQUENCY = 0.25
# ω of the position per pixel of the radius. A soft part alone does as well with the lower one, which turns better off
# the pixel grid; a strict part learns more slowly with it (docs/start-of-a-layer.md).
BANDWIDTH_PER_PIXEL = {"steerable": 0.05, "continuous": 0.12}
DEFAULT_ROTATION_FREQUENCY = 0.3
DEFAULT_REFLECTION_FREQUENCY = 1.0


def check_field_type(name: str, value: Any) -> FieldType:
    """A field type on the plane."""
    if not isinstance(value, FieldType):
        raise TypeError(f"{name} must be an escnn.nn.FieldType, got {type(value).__name__}: {value!r}")
    if not isinstance(value.gspace, GSpace2D):
        raise ValueError(f"{name} must live on a gspace of the plane (escnn.gspaces.…OnR2), got {value.gspace!r}")
    if len(value) == 0:
        raise ValueError(f"{name} must have at least one field, got {value!r}")
    return value


def check_field_types(in_type: Any, out_type: Any) -> None:
    """Both are field types on one gspace of the plane."""
    check_field_type("in_type", in_type)
    check_field_type("out_type", out_type)
    if in_type.gspace != out_type.gspace:
        raise ValueError(f"in_type and out_type must share a gspace, got {in_type.gspace!r} and {out_type.gspace!r}")


def check_softness(value: Any) -> float:
    """A part of the kernel's energy, in [0, 1)."""
    softness = check_number("initial_softness", value)
    if not 0 <= softness < 1:
        raise ValueError(f"initial_softness must be in [0, 1), got {value}")
    return softness


def padding_pair(padding: Any) -> tuple[int, int]:
    """An int or a pair (rows, columns) → the pair."""
    pair = padding if isinstance(padding, (tuple, list)) else (padding, padding)
    if len(pair) != 2:
        raise ValueError(f"padding must be an integer or a pair (rows, columns), got {padding!r}")
    return check_integer("padding", pair[0], 0), check_integer("padding", pair[1], 0)


def check_groups(in_type: FieldType, out_type: FieldType, groups: Any) -> int:
    """``groups`` divides the fields of both types into equal parts."""
    check_integer("groups", groups, 1)
    for name, field_type in (("in_type", in_type), ("out_type", out_type)):
        count = len(field_type)
        if count % groups:
            raise ValueError(f"groups must divide the number of fields of {name}, got {groups} for {count}")
        part = count // groups
        fields = field_type.representations
        if any(fields[i] != fields[i % part] for i in range(count)):
            raise ValueError(
                f"groups={groups} must split {name} into equal parts, got fields {[r.name for r in fields]}"
            )
    return int(groups)


def rotations_of(gspace: GSpace2D, samples: int) -> int:
    """Number of rotations that the layer averages over."""
    return int(gspace.rotations_order) if gspace.rotations_order > 0 else samples


def resolve_relaxation(
    relax: Mapping[str, Frequency] | str | None, gspace: GSpace2D, rotations: RotationSamples
) -> dict[str, Frequency]:
    """The starting ω′ of each subgroup that gets a domain coordinate, in a fixed order."""
    if relax is None:
        return {}
    if isinstance(relax, str) and relax == "default":
        available = [name for name in ("rotation", "reflection") if has_subgroup(gspace, name)]
        rotation = 1.0 if rotations.form == "log" else DEFAULT_DOMAIN_FREQUENCY
        start = {"rotation": min(rotation, rotations.limit), "reflection": DEFAULT_DOMAIN_FREQUENCY}
        return {name: start[name] for name in available}
    if not isinstance(relax, Mapping):
        name = relax if relax in SUBGROUPS else "rotation"
        message = (
            f"relax must be a dict from subgroup to domain frequency, as relax={{{name!r}: 0.25}}, or None or "
            f"'default', got {relax!r}"
        )
        raise ValueError(message) if isinstance(relax, str) else TypeError(message)
    for name, value in relax.items():
        if name not in SUBGROUPS:
            raise ValueError(f"relax: unknown subgroup {name!r}; subgroups are {list(SUBGROUPS)}")
        if not has_subgroup(gspace, name):
            raise ValueError(f"relax: {gspace.name} has no {name} to relax, got {name!r}: {value!r}")
        frequency_values("relax", name, value)
    return {name: relax[name] for name in ("translation", "rotation", "reflection") if name in relax}


def check_random_offset(value: Any, gspace: GSpace2D) -> bool:
    """Whether to turn the grid of a continuous group; a finite one is whole, and has nothing to turn."""
    if check_bool("random_offset", value) and not gspace.fibergroup.continuous:
        warn_once(f"random_offset: ignored, because the kernel is averaged over all of the finite group {gspace.name}")
        return False
    return bool(value)


def warn_ignored(arguments: Mapping[str, Any]) -> None:
    """One warning for arguments of ``R2Conv`` that only shape escnn's own basis."""
    given = sorted(name for name, value in arguments.items() if value is not None and value is not False)
    if given:
        warn_once(
            f"{', '.join(given)}: ignored, because these only shape the basis of escnn's R2Conv; "
            f"strict_kernel='steerable' uses them"
        )


def filter_frequencies(
    filter_frequency: Mapping[str, float] | float | None, kernel_size: int, strict_kernel: str
) -> dict[str, float]:
    """ω of the position and of the relative subgroups, with defaults for what is not given."""
    frequencies = {
        "position": BANDWIDTH_PER_PIXEL[strict_kernel] * kernel_size / 2,
        "rotation": DEFAULT_ROTATION_FREQUENCY,
        "reflection": DEFAULT_REFLECTION_FREQUENCY,
    }
    if filter_frequency is None:
        return frequencies
    given = filter_frequency if isinstance(filter_frequency, Mapping) else {"position": filter_frequency}
    for name, value in given.items():
        if name not in frequencies:
            raise ValueError(f"filter_frequency: unknown coordinate {name!r}; known are {list(frequencies)}")
        frequency = check_number(f"filter_frequency: the frequency of {name!r}", value)
        if not (math.isfinite(frequency) and frequency >= 0):
            raise ValueError(f"filter_frequency: the frequency of {name!r} must be finite and >= 0, got {value!r}")
        frequencies[name] = frequency
    return frequencies


def check_input(input: Any, in_type: FieldType, geometry: ConvolutionGeometry) -> None:
    """A floating-point GeometricTensor of the layer's input type, not smaller than the kernel."""
    if not isinstance(input, GeometricTensor):
        raise TypeError(
            f"input must be a GeometricTensor of type {in_type}, got {type(input).__name__}; "
            f"wrap a tensor with in_type(tensor)"
        )
    if input.type != in_type:
        raise TypeError(f"input must be of type {in_type}, got {input.type}")
    tensor = input.tensor
    if not tensor.is_floating_point():
        raise TypeError(f"input must be a real floating-point tensor, got {tensor.dtype}")
    if tensor.dim() != 4:
        raise ValueError(f"input must be (batch, {in_type.size}, H, W), got {tuple(tensor.shape)}")
    check_image(tensor.shape[2], tensor.shape[3], geometry)


def check_image(height: int, width: int, geometry: ConvolutionGeometry) -> None:
    """An image that the padding mode can pad and that is not smaller than the kernel."""
    for size, padding in zip((height, width), geometry.padding, strict=True):
        most = {"reflect": size - 1, "circular": size}.get(geometry.padding_mode, padding)
        if padding > most:
            raise ValueError(
                f"padding {geometry.padding} is more than padding_mode={geometry.padding_mode!r} can copy from an "
                f"image of {height}x{width}: at most {most}"
            )
    padded = height + 2 * geometry.padding[0], width + 2 * geometry.padding[1]
    if min(padded) < geometry.extent:
        raise ValueError(
            f"input must not be smaller than the kernel: the padded image is {padded[0]}x{padded[1]}, "
            f"the kernel spans {geometry.extent}"
        )


def nominal_frequency(frequencies: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """ω′ with the default in place of 0: what the start of a layer that may soften later is fixed on."""
    return {
        name: torch.where(value == 0, DEFAULT_DOMAIN_FREQUENCY, value.detach()) for name, value in frequencies.items()
    }
