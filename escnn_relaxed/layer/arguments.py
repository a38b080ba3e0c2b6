"""Checks of the layer's arguments: every error names argument, value and what is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from escnn.gspaces import GSpace, GSpace0D, GSpace2D, GSpace3D
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor

from ..checks import check_choice, check_integer, check_number, check_size
from ..integral.geometry import ConvolutionGeometry, Geometry, TransposedGeometry
from ..torch_modes import has_no_values, has_values

# Units in the last place by which sums in two orders differ.
_SUMMED = 64
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
# The base space of each kind of gspace, in words.
_SPACES = {
    GSpace0D: "a point (escnn.gspaces.no_base_space)",
    GSpace2D: "the plane (escnn.gspaces.…OnR2)",
    GSpace3D: "space (escnn.gspaces.…OnR3)",
}


def check_field_type(name: str, value: object, *spaces: type[GSpace]) -> FieldType:
    """Return a field type on one of these base spaces."""
    if not isinstance(value, FieldType):
        raise TypeError(f"{name} must be an escnn.nn.FieldType, got {type(value).__name__}: {value!r}")
    if not isinstance(value.gspace, spaces):
        known = " or of ".join(_SPACES[space] for space in spaces)
        raise ValueError(f"{name} must live on a gspace of {known}, got {value.gspace!r}")
    if len(value) == 0:
        raise ValueError(f"{name} must have at least one field, got {value!r}")
    return value


def check_field_types(in_type: Any, out_type: Any, space: type[GSpace] = GSpace2D) -> None:
    """Raise an error unless both are field types on one gspace of the plane, or of another base space."""
    check_field_type("in_type", in_type, space)
    check_field_type("out_type", out_type, space)
    if in_type.gspace != out_type.gspace:
        raise ValueError(f"in_type and out_type must share a gspace, got {in_type.gspace!r} and {out_type.gspace!r}")


def checked_geometry(
    in_type: FieldType,
    out_type: FieldType,
    kernel_size: object,
    padding: object,
    stride: object,
    dilation: Any,
    groups: Any,
    padding_mode: object = "zeros",
    output_padding: object = None,
) -> Geometry:
    """Return the geometry that arguments of ``R2Conv`` or ``R3Conv`` describe; of an adjoint with an output padding."""
    axes = in_type.gspace.dimensionality
    if isinstance(padding, str):
        formula = "half of dilation * (kernel_size - 1) keeps the size of an image where stride is 1"
        raise TypeError(f"padding must be an integer or one for each axis, got {padding!r}: {formula}")
    steps = check_size("stride", stride, axes, 1)
    if len(set(steps)) > 1:
        kind = {2: "pair", 3: "triple"}[axes]
        raise ValueError(f"stride must be an integer or a {kind} of equal ones, got {stride!r}: one step for all axes")
    shared: dict[str, Any] = {
        "kernel_size": check_integer("kernel_size", kernel_size, 1),
        "stride": steps[0],
        "dilation": check_integer("dilation", dilation, 1),
        "groups": _check_groups(in_type, out_type, groups),
        "padding": check_size("padding", padding, axes, 0),
    }
    if output_padding is None:
        return ConvolutionGeometry(padding_mode=check_choice("padding_mode", padding_mode, PADDING_MODES), **shared)
    behind, limit = check_size("output_padding", output_padding, axes, 0), max(steps[0], dilation)
    if max(behind) >= limit:
        raise ValueError(
            f"output_padding must be below the larger of stride and dilation, got {output_padding!r} for "
            f"stride={steps[0]}, dilation={dilation}: at most {limit - 1}"
        )
    return TransposedGeometry(output_padding=behind, **shared)


def _check_groups(in_type: FieldType, out_type: FieldType, groups: Any) -> int:
    """Return ``groups``, which must divide the fields of both types into equal parts."""
    check_integer("groups", groups, 1)
    for name, field_type in (("in_type", in_type), ("out_type", out_type)):
        count, fields = len(field_type), field_type.representations
        if count % groups:
            raise ValueError(f"groups must divide the number of fields of {name}, got {groups} for {count}")
        # escnn compares representations by their values, which takes long.
        firsts = fields[: count // groups] * groups
        if any(field is not first and field != first for field, first in zip(fields, firsts, strict=True)):
            names = [field.name for field in fields]
            raise ValueError(f"groups={groups} must split {name} into equal parts, got fields {names}")
    return int(groups)


def check_on_fields(input: object, in_type: FieldType) -> None:
    """Raise a ``TypeError`` for anything but a GeometricTensor."""
    if isinstance(input, GeometricTensor):
        return
    remedy = "wrap a tensor with in_type(tensor)"
    if isinstance(input, Tensor) and has_no_values():
        # As torch.export's FakeTensor, for which `type(x) is torch.Tensor` is False.
        remedy += "; where the network asks for the type of x, isinstance(x, torch.Tensor) is true while torch exports"
    raise TypeError(f"input must be a GeometricTensor of type {in_type}, got {type(input).__name__}; {remedy}")


def check_input(input: Any, in_type: FieldType, geometry: Geometry) -> None:
    """Raise unless this is a floating-point GeometricTensor of the layer's input type, not smaller than the kernel."""
    # The same object first: a compiler of torch 2.6 cannot follow how escnn compares types.
    if not isinstance(input, GeometricTensor) or (input.type is not in_type and input.type != in_type):
        check_on_fields(input, in_type)
        raise TypeError(f"input must be of type {in_type}, got {input.type}")
    tensor = input.tensor
    if not tensor.is_floating_point():
        raise TypeError(f"input must be a real floating-point tensor, got {tensor.dtype}")
    # Under a trace sizes are tensors, and comparing them would make constants of them.
    if not isinstance(tensor.shape[0], Tensor):
        check_shape("input", tuple(tensor.shape), in_type, geometry)


def check_dtype(image: Tensor, like: Tensor) -> None:
    """Raise a ``TypeError`` unless an image has the layer's dtype, or autocast casts both."""
    if image.dtype != like.dtype and not torch.is_autocast_enabled(image.device.type):
        raise TypeError(f"input must be of the layer's dtype, {like.dtype}, got {image.dtype}: cast one of the two")


def check_shape(name: str, shape: tuple[int, ...], in_type: FieldType, geometry: Geometry) -> None:
    """Raise a ``ValueError`` unless this is the shape (batch, C_in, …) of an image that the layer can take."""
    axes = len(geometry.padding)
    if len(shape) != axes + 2 or shape[1] != in_type.size:
        sides = ", ".join(["", *"DHW"[3 - axes :]])
        raise ValueError(f"{name} must be (batch, {in_type.size}{sides}), got {shape}")
    size = shape[2:]
    if not size:
        return  # a linear map has no pixels
    output = geometry.output_size(*size)
    if min(*size, *output) < 1:
        raise ValueError(
            f"input must not be smaller than the kernel, and padding must leave a pixel of the output: got an image of "
            f"{_by(size)} for an output of {_by(output)}, where the kernel spans {geometry.extent} and padding is "
            f"{geometry.padding}"
        )
    if geometry.padding_mode in ("reflect", "circular"):
        for pixels, padding in zip(size, geometry.padding, strict=True):
            most = pixels - (geometry.padding_mode == "reflect")
            if padding > most:
                raise ValueError(
                    f"padding {geometry.padding} is more than padding_mode={geometry.padding_mode!r} can copy from an "
                    f"image of {_by(size)}: at most {most}"
                )


def _by(size: Sequence[int]) -> str:
    """Return a size as text, such as 3×3."""
    return "×".join(map(str, size))


def shown_arguments(geometry: Geometry) -> list[str]:
    """Return the arguments of a convolution that are not default, as text for ``repr``."""
    if not geometry.padding:
        return []
    shown = [f"kernel_size={geometry.kernel_size}, stride={geometry.stride}"]
    for field in fields(geometry):
        value = getattr(geometry, field.name)
        is_default = value == field.default or (isinstance(value, tuple) and not any(value))
        if field.name not in ("kernel_size", "stride") and not is_default:
            shown.append(f"{field.name}={value!r}")
    return shown


def check_softness(value: object, name: str = "initial_softness") -> float:
    """Return a softness, which must be in [0, 1)."""
    softness = check_number(name, value)
    if not 0 <= softness < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value}")
    return softness


@torch.no_grad()
def check_derived_tensor(name: str, value: object, own: Tensor | None, parameter: str) -> None:
    """Raise a ``ValueError`` if a tensor that escnn's layers store differs from the one that this layer computes."""
    if value is not None and not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor or None, got {type(value).__name__}: {value!r}")
    is_alike = value is own if value is None or own is None else value.shape == own.shape
    if value is not None and own is not None and is_alike and has_values(value, own):
        # It may be from another device or of another dtype.
        rounding = _SUMMED * max(torch.finfo(of.dtype).eps for of in (value, own))
        is_alike = bool((value.to(own) - own).abs().amax() <= rounding * own.abs().amax())
    if not is_alike:
        raise ValueError(
            f"{name} is computed from `{parameter}` in each call and cannot be another: change `{parameter}`, or take "
            f"the convolution that export() returns, which has a weight and a bias of its own"
        )


def check_keywords(taker: str, given: Mapping[str, Any], known: tuple[str, ...], others: str) -> None:
    """Raise a ``TypeError`` for a keyword that ``taker`` does not accept; ``others`` names its other arguments."""
    unknown = [name for name in given if name not in known]
    if unknown:
        raise TypeError(
            f"{taker} has no argument {unknown[0]!r} (={given[unknown[0]]!r}); {others} it takes these of "
            f"RelaxedR2Conv: {', '.join(known)}"
        )
