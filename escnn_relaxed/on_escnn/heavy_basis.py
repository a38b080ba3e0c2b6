"""A warning of steerable bases that take gigabytes, before the memory is spent."""

from __future__ import annotations

from escnn.group import Representation
from escnn.nn import FieldType
from escnn.nn.modules.conv.r3convolution import compute_basis_params

from ..checks import warn_once

__all__ = ["basis_bytes", "warn_of_heavy_basis"]

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
    functions = sum(
        2 * degree + 1
        for radius in rings
        for degree in _DEGREES
        if keeps({"irrep:frequency": degree, "radius": radius})
    )
    entries = in_field.size * out_field.size
    elements = functions * entries / group.order()
    return 4.0 * elements * entries * kernel_size**3
