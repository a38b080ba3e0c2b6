"""escnn's own sampled basis of steerable kernels: its arguments, its size, and how it is built."""

from __future__ import annotations

import contextlib
import functools
import io
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
from escnn.group import InsufficientIrrepsException, Representation
from escnn.nn import FieldType, Linear, R2Conv, R3Conv
from escnn.nn.modules.conv.r3convolution import compute_basis_params
from torch import nn

from ..checks import (
    check_callable,
    check_flag,
    check_integer,
    check_not_negative,
    check_number,
    check_positive,
    check_sequence,
    is_number,
    warn_once,
)

_CONVOLUTIONS = {2: R2Conv, 3: R3Conv}


def _one_frequency(radius: float) -> float:
    return 1.0


def on_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context in which torch makes tensors on a device; a device's own slows every call of torch down."""
    return contextlib.nullcontext() if device == torch.get_default_device() else device


@contextlib.contextmanager
def in_float32_and_main_memory() -> Iterator[None]:
    """Let escnn and torch make tensors in float32 and main memory, since escnn fails under other defaults."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with on_device(torch.device("cpu")):
            yield
    finally:
        torch.set_default_dtype(default)


@contextlib.contextmanager
def as_escnn_builds() -> Iterator[None]:
    """Let escnn build under the defaults that it needs, and without printing."""
    with in_float32_and_main_memory(), contextlib.redirect_stdout(io.StringIO()):
        yield


def sampled_basis(
    in_type: FieldType, out_type: FieldType, kernel_size: int, dilation: int, **basis_arguments: Any
) -> Any:
    """Return escnn's sampled basis, or None where no steerable kernel fits into the support."""
    if in_type.gspace.dimensionality == 0:
        with as_escnn_builds():
            basis = Linear(in_type, out_type, bias=False, initialize=False, **basis_arguments).basisexpansion
        return basis if basis.dimension() else None
    if kernel_size == 2 and "rings" not in basis_arguments:
        # escnn's default ring of a 2×2 kernel is the origin, where it has no tap, and its basis is empty.
        # The ring is placed at the taps, a bit inside of their distance ½√d.
        basis_arguments["rings"] = [dilation * math.sqrt(in_type.gspace.dimensionality) / 2 - 1e-6]
        basis_arguments.setdefault("frequencies_cutoff", _one_frequency)
    if in_type.gspace.dimensionality == 3:
        warn_of_heavy_basis(in_type, out_type, kernel_size, dilation)
        basis_arguments.pop("maximum_offset", None)  # it does nothing there, and R3Conv has none
    arguments = {"dilation": dilation, "bias": False, "initialize": False, **basis_arguments}
    try:
        with as_escnn_builds():
            build = _CONVOLUTIONS[in_type.gspace.dimensionality]
            return build(in_type, out_type, kernel_size, **arguments).basisexpansion
    except ValueError as error:
        if "basis for the steerable filter is empty" in str(error):
            return None
        raise
    except InsufficientIrrepsException as error:
        raise ValueError(
            f"in_type and out_type must live on a gspace on which escnn can build kernels, got {in_type.gspace.name} "
            f"without enough irreps: continuous dihedral and conical gspaces of space want maximum_frequency=6, and "
            f"for continuous cylindrical ones no number is enough"
        ) from error


def refuse_emptied_basis(
    in_type: FieldType, out_type: FieldType, kernel_size: int, dilation: int, **basis_arguments: Any
) -> None:
    """Raise a ``ValueError`` if the arguments of ``sampled_basis`` make the basis empty."""
    given = {name: basis_arguments[name] for name in _SHAPING if name in basis_arguments}
    if given and sampled_basis(in_type, out_type, kernel_size, dilation) is not None:
        values = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ValueError(
            f"{', '.join(given)} must leave an element of the basis, got {values}: it is empty for these field types"
        )


# The arguments that can leave a basis without elements.
_SHAPING = ("sigma", "frequencies_cutoff", "rings", "basis_filter")


def check_basis_arguments(kernel_size: int, dilation: int, given: Mapping[str, Any], axes: int = 2) -> dict[str, Any]:
    """Return the given arguments as the types that escnn takes: lists of floats, and floats."""
    checked = {name: value for name, value in given.items() if value is not None}
    if "recompute" in given:
        check_flag("recompute", given["recompute"])
    if "rings" in checked:
        checked["rings"] = _rings(checked["rings"], kernel_size, dilation, axes)
    if "sigma" in checked:
        checked["sigma"] = _sigma(checked["sigma"], len(checked.get("rings", range(math.ceil(kernel_size / 2)))))
    if "frequencies_cutoff" in checked and not callable(checked["frequencies_cutoff"]):
        name = "frequencies_cutoff, where it is no function of the radius,"
        checked["frequencies_cutoff"] = check_not_negative(name, checked["frequencies_cutoff"])
    check_callable("basis_filter", checked.get("basis_filter", callable))
    if "maximum_offset" in checked:
        check_integer("maximum_offset", checked["maximum_offset"], 0)
    return checked


def _rings(value: Any, kernel_size: int, dilation: int, axes: int) -> list[float]:
    radii = [check_number("each of rings", radius) for radius in check_sequence("rings", value, "numbers")]
    most = dilation * (kernel_size - 1) / 2 * math.sqrt(axes)
    if not radii:
        raise ValueError(f"rings must hold at least one radius, got {value!r}")
    if not all(0 <= radius <= most for radius in radii):
        raise ValueError(
            f"rings must be radii in pixels from 0 to the corner of the kernel, here {most:.4g}, got {value!r}"
        )
    return radii


def _sigma(value: Any, count: int) -> list[float]:
    widths = [value] * count if is_number(value) else check_sequence("sigma", value, "numbers")
    if len(widths) != count:
        raise ValueError(f"sigma must be one width or one for each of the {count} rings, got {value!r}")
    return [check_positive("sigma, a width in pixels,", width) for width in widths]


_GIGABYTE = 2**30
# Layers of irreps take less than this in all.
_HEAVY = _GIGABYTE / 4
# escnn and what makes its basis exact hold this many copies at their peak.
_COPIES = 6.2
# Above the highest degree that a kernel of any size has.
_DEGREES = range(64)


def warn_of_heavy_basis(in_type: FieldType, out_type: FieldType, kernel_size: int, dilation: int) -> None:
    """Warn once of a pair of representations whose sampled basis is large, with the memory that it will take."""
    for in_field in set(in_type.representations):
        for out_field in set(out_type.representations):
            size = basis_bytes(in_field, out_field, kernel_size, dilation)
            if size > _HEAVY:
                warn_once(
                    f"the steerable basis from {in_field.name} to {out_field.name} of {in_type.gspace.name} with "
                    f"kernel_size={kernel_size} takes {size / _GIGABYTE:.1f} GB, and about "
                    f"{_COPIES * size / _GIGABYTE:.1f} GB while escnn samples it: sums of irreps take little"
                )


def basis_bytes(in_field: Representation, out_field: Representation, kernel_size: int, dilation: int = 1) -> float:
    """Return the size in bytes of escnn's basis between two fields, exact for a regular one."""
    group = in_field.group
    if group.continuous:
        return 0.0
    keeps, rings, *_ = compute_basis_params(kernel_size, dilation=dilation)
    pairs = [{"irrep:frequency": degree, "radius": radius} for radius in rings for degree in _DEGREES]
    functions = sum(2 * pair["irrep:frequency"] + 1 for pair in pairs if keeps(pair))
    entries = in_field.size * out_field.size
    return 4.0 * functions * entries**2 / group.order() * kernel_size**3


_Build = TypeVar("_Build", bound=Callable[..., None])


def built_on_the_cpu(build: _Build) -> _Build:
    """Return an ``__init__`` that runs on the CPU and then moves its module to the default ``torch.device``."""

    # escnn keeps its results for all layers of a kind on the device where the first of them is built. And so the same
    # seed draws the same weights for every device.
    @functools.wraps(build)
    def build_and_move(layer: nn.Module, /, *arguments: Any, **keywords: Any) -> None:
        device = torch.get_default_device()
        if device.type == "cpu":
            build(layer, *arguments, **keywords)  # a device context would cost a third of the time
            return
        with torch.device("cpu"):
            build(layer, *arguments, **keywords)
        layer.to(device)

    return cast(_Build, build_and_move)
