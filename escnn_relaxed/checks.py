"""Checks of single values, and warnings that are given once: each names the argument, the value and what is right."""

from __future__ import annotations

import inspect
import math
import numbers
import reprlib
import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from torch import nn

# The subgroups of a fiber group that can be soft, and all of a gspace.
FIBER_SUBGROUPS = ("rotation", "reflection")
SUBGROUPS = (*FIBER_SUBGROUPS, "translation")
# The whole of a fiber group, and its only subgroup with a name where elements are neither rotations nor reflections.
WHOLE_GROUP = "group"
ALL_SUBGROUPS = (*SUBGROUPS, WHOLE_GROUP)

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")

_warned: set[str] = set()


def is_number(value: Any) -> bool:
    """Return whether a value is a real number of any type, NumPy's included, and not a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_bool(name: str, value: Any) -> bool:
    """Return a value that must be True or False; values that only compare equal to them are refused."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_flag(name: str, value: Any) -> bool:
    """Return an argument of escnn's as a bool; 1 and 0 count as True and False."""
    if not isinstance(value, (numbers.Integral, np.bool_)) or value not in (0, 1):
        raise TypeError(f"{name} must be True or False, or 1 or 0, got {value!r}")
    return bool(value)


def check_number(name: str, value: Any) -> float:
    """Return a real number as a float."""
    if not is_number(value):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)


def check_positive(name: str, value: Any) -> float:
    """Return a finite number above 0 as a float."""
    number = check_number(name, value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be finite and > 0, got {value}")
    return number


def check_not_negative(name: str, value: Any) -> float:
    """Return a finite number, 0 or above, as a float."""
    number = check_number(name, value)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{name} must be finite and >= 0, got {value}")
    return number


def check_integer(name: str, value: Any, least: int) -> int:
    """Return an integer of any type, at least ``least``; a bool is refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {reprlib.repr(value)}")
    if value < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")
    return int(value)


def check_size(name: str, value: Any, axes: int = 2, least: int = 1) -> tuple[int, ...]:
    """Return an integer for each axis of the base space, given as a tuple or as one number for all."""
    numbers = value if isinstance(value, (tuple, list)) else (value,) * axes
    if len(numbers) != axes:
        kind = {2: "a pair (rows, columns)", 3: "a triple (planes, rows, columns)"}[axes]
        raise ValueError(f"{name} must be an integer or {kind}, got {value!r}")
    return tuple(check_integer(name, number, least) for number in numbers)


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return a value that must be one of some words."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")
    return str(value)


def check_callable(name: str, value: Any) -> None:
    """Raise a ``TypeError`` for a value that cannot be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, got {value!r}")


def check_sequence(name: str, value: Any, kinds: str) -> tuple[Any, ...]:
    """Return the items of an iterable, which must be no string and no mapping; ``kinds`` names them in the error."""
    # What has items and is no Iterable may have no end, as a GeometricTensor.
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a sequence of {kinds}, got {value!r}")
    try:
        return tuple(value)
    except TypeError:
        # A tensor without dimensions counts as an iterable and fails only here.
        raise TypeError(f"{name} must be a sequence of {kinds}, got {value!r}") from None


def check_mapping(name: str, value: Any, kinds: str) -> dict[Any, Any]:
    """Return a mapping as a dict; ``kinds`` names its items in the error."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict of {kinds}, got {value!r}")
    return dict(value)


def check_subgroups(*names: str | Collection[str]) -> tuple[str, ...]:
    """Return names of subgroups as a tuple, each given alone or with others in a collection; none means all.

    With the whole fiber group its rotations and reflections are named, too.
    """
    given: list[str] = []
    for part in names:
        given += (part,) if isinstance(part, str) else check_sequence("subgroups", part, "names")
    for name in given:
        if name not in ALL_SUBGROUPS:
            raise ValueError(
                f"subgroups must be of {list(SUBGROUPS)}, got {name!r}; {WHOLE_GROUP!r} is the whole fiber group"
            )
    if WHOLE_GROUP in given:
        given += FIBER_SUBGROUPS  # its parts, where it has them
    return tuple(given) or ALL_SUBGROUPS


def ordered_subgroups(*names: Collection[str]) -> tuple[str, ...]:
    """Return the subgroups that are named in any of several collections, in a fixed order."""
    named = [name for given in names for name in given]
    return tuple([name for name in ALL_SUBGROUPS if name in named])


def check_module(name: str, value: Any) -> nn.Module:
    """Return a value that is a network or a single layer."""
    if not isinstance(value, nn.Module):
        raise TypeError(f"{name} must be a torch.nn.Module, got {type(value).__name__}: {value!r}")
    return value


def has_hooks(module: nn.Module) -> bool:
    """Return whether hooks are registered on a module itself."""
    return any(map(vars(module).get, _HOOKS))


def check_no_hooks(name: str, module: nn.Module, remedy: str) -> None:
    """Raise a ``ValueError`` for a module with hooks, since the module that replaces it would not have them."""
    if hooks := [kind.strip("_") for kind in _HOOKS if getattr(module, kind)]:
        raise ValueError(f"{name} has {', '.join(hooks)}, which would be lost: {remedy}")


def warn_once(message: str) -> None:
    """Issue a ``UserWarning`` at the user's line, once for each message."""
    if message not in _warned:
        _warned.add(message)
        warn(message)


def warn(message: str) -> None:
    """Issue a ``UserWarning`` at the user's line, through any number of functions and decorators."""
    warnings.warn(message, UserWarning, stacklevel=_user_level())


def _user_level() -> int:
    """Return the ``stacklevel``, for the caller, of the innermost frame outside this package and torch."""
    inside = (__name__.partition(".")[0], "torch", "contextlib")
    frame, level = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in inside:
        frame, level = frame.f_back, level + 1
    return level
