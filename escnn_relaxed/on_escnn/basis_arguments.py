"""Checks of the arguments that shape escnn's own basis, in place of escnn's assertions, which have no message."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..checks import check_bool, check_integer, check_number

__all__ = ["check_basis_arguments", "shaping_arguments"]

# The arguments that can leave a basis without elements.
_SHAPING = ("sigma", "frequencies_cutoff", "rings", "basis_filter")


def check_basis_arguments(
    kernel_size: int, dilation: int, arguments: Mapping[str, Any], axes: int = 2
) -> dict[str, Any]:
    """Return the arguments in the types that escnn takes: lists of floats, and numbers that are floats."""
    rings = None if arguments["rings"] is None else _rings(arguments["rings"], kernel_size, dilation, axes)
    count = math.ceil(kernel_size / 2) if rings is None else len(rings)
    keep = arguments["basis_filter"]
    if keep is not None and not callable(keep):
        raise TypeError(f"basis_filter must be a function from the attributes of an element to a bool, got {keep!r}")
    checked = {
        "sigma": None if arguments["sigma"] is None else _sigma(arguments["sigma"], count),
        "frequencies_cutoff": _cutoff(arguments["frequencies_cutoff"]),
        "rings": rings,
        "recompute": check_bool("recompute", arguments["recompute"]),
        "basis_filter": keep,
    }
    if "maximum_offset" in arguments:  # R3Conv has none
        offset = arguments["maximum_offset"]
        checked["maximum_offset"] = None if offset is None else check_integer("maximum_offset", offset, 0)
    return checked


def shaping_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are given and can leave a basis without elements."""
    return {name: arguments[name] for name in _SHAPING if arguments.get(name) is not None}


def _rings(value: Any, kernel_size: int, dilation: int, axes: int) -> list[float]:
    radii = _numbers("rings", value)
    most = dilation * (kernel_size - 1) / 2 * math.sqrt(axes)
    if not radii:
        raise ValueError(f"rings must hold at least one radius, got {value!r}")
    if not all(0 <= radius <= most for radius in radii):
        raise ValueError(
            f"rings must be radii in pixels from 0 to the corner of the kernel, here {most:.4g}, got {value!r}"
        )
    return radii


def _sigma(value: Any, count: int) -> list[float]:
    widths = _numbers("sigma", value) if _is_sequence(value) else [check_number("sigma", value)] * count
    if len(widths) != count:
        raise ValueError(f"sigma must be one width or one for each of the {count} rings, got {value!r}")
    if not all(math.isfinite(width) and width > 0 for width in widths):
        raise ValueError(f"sigma must be finite and > 0, a width in pixels, got {value!r}")
    return widths


def _cutoff(value: Any) -> Any:
    """Return ``frequencies_cutoff`` as escnn takes it: a function of the radius unchanged, a number as a float."""
    if value is None or callable(value):
        return value
    cutoff = check_number("frequencies_cutoff, where it is no function of the radius,", value)
    if not math.isfinite(cutoff):
        raise ValueError(f"frequencies_cutoff must be finite, got {value!r}")
    return cutoff


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str)


def _numbers(name: str, value: Any) -> list[float]:
    if not _is_sequence(value):
        raise TypeError(f"{name} must be a list of numbers, got {value!r}")
    return [check_number(f"each of {name}", number) for number in value]
