"""escnn's basis of steerable kernels at the edges of clouds: its arguments, and how it is built."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import escnn.nn as enn
from escnn.group import InsufficientIrrepsException
from escnn.nn import FieldType

from ..checks import (
    check_callable,
    check_flag,
    check_integer,
    check_not_negative,
    check_number,
    check_positive,
    check_sequence,
    is_number,
)
from .sampled_basis import as_escnn_builds

# escnn's class by the dimension of the base space; escnn has none where torch_geometric is not installed.
POINT_CONVOLUTIONS: dict[int, Any] = {
    axes: getattr(enn, name) for axes, name in ((2, "R2PointConv"), (3, "R3PointConv")) if hasattr(enn, name)
}
# What shapes their basis, and stays on them.
OF_BASIS = ("_rings", "_sigma", "_maximum_frequency")


@functools.cache
def attributes_of_message_passing() -> frozenset[str]:
    """Return the names of the attributes that torch_geometric's base class puts on escnn's layers."""
    if not POINT_CONVOLUTIONS:
        return frozenset()
    from torch_geometric.nn import MessagePassing

    return frozenset(vars(MessagePassing(aggr="mean")))


def strict_point_convolution(name: str, in_type: FieldType, out_type: FieldType, given: Mapping[str, Any]) -> Any:
    """Return escnn's layer with a basis of these arguments, without a bias; ``name`` is for messages."""
    axes = in_type.gspace.dimensionality
    if axes not in POINT_CONVOLUTIONS:
        raise ImportError(
            f"{name} needs torch_geometric, as escnn's R{axes}PointConv does, and it is not installed: "
            f"pip install 'escnn_relaxed[points]'"
        )
    arguments = _checked(given)
    try:
        with as_escnn_builds():
            return POINT_CONVOLUTIONS[axes](in_type, out_type, bias=False, initialize=False, **arguments)
    except ValueError as error:
        if "basis for the steerable filter is empty" not in str(error):
            raise
        words = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise ValueError(
            f"width, n_rings, rings, sigma, frequencies_cutoff and basis_filter must leave an element of the basis, "
            f"got {words}: it is empty for {in_type} and {out_type}"
        ) from error
    except InsufficientIrrepsException as error:
        raise ValueError(
            f"in_type and out_type must live on a gspace on which escnn can build kernels, got {in_type.gspace.name} "
            f"without enough irreps for these frequencies: give the gspace a higher maximum_frequency, or a lower "
            f"frequencies_cutoff"
        ) from error


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are given, in the types that escnn takes."""
    arguments = {name: value for name, value in given.items() if value is not None}
    check_flag("recompute", given.get("recompute", False))
    has_rings, has_width = "rings" in arguments, {"width", "n_rings"} & arguments.keys()
    if has_rings == bool(has_width) or len(has_width) == 1:
        words = ", ".join(f"{name}={given.get(name)!r}" for name in ("width", "n_rings", "rings"))
        raise ValueError(f"width and n_rings must be given, or rings in place of both, got {words}")
    if has_rings:
        radii = check_sequence("rings", arguments["rings"], "radii")
        arguments["rings"] = [check_not_negative("each of rings", radius) for radius in radii]
        if not radii:
            raise ValueError("rings must have at least one radius, got none")
    else:
        arguments["width"] = check_positive("width", arguments["width"])
        arguments["n_rings"] = check_integer("n_rings", arguments["n_rings"], 1)
    count = len(arguments["rings"]) if has_rings else arguments["n_rings"]
    if "sigma" in arguments:
        sigma = arguments["sigma"]
        widths = [sigma] * count if is_number(sigma) else check_sequence("sigma", sigma, "numbers")
        if len(widths) != count:
            raise ValueError(f"sigma must be one width or one for each of the {count} rings, got {sigma!r}")
        arguments["sigma"] = [check_positive("sigma", width) for width in widths]
    if "frequencies_cutoff" in arguments and not callable(arguments["frequencies_cutoff"]):
        name = "frequencies_cutoff, where it is no function of the radius,"
        arguments["frequencies_cutoff"] = check_not_negative(name, check_number(name, arguments["frequencies_cutoff"]))
    check_callable("basis_filter", arguments.get("basis_filter", callable))
    return arguments
