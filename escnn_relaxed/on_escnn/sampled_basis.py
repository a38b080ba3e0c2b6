"""escnn's own sampled basis of steerable kernels, built as escnn builds it."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator
from typing import Any

import torch
from escnn.group import InsufficientIrrepsException
from escnn.nn import FieldType, R2Conv, R3Conv

from .basis_arguments import shaping_arguments

__all__ = ["as_escnn_builds", "refuse_emptied_basis", "sampled_basis"]

_CONVOLUTIONS = {2: R2Conv, 3: R3Conv}


def _one_frequency(radius: float) -> float:
    return 1.0


@contextlib.contextmanager
def as_escnn_builds() -> Iterator[None]:
    """Let escnn build in float32 and main memory, since it fails under other defaults, and without printing."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        torch.set_default_dtype(default)


def sampled_basis(
    in_type: FieldType, out_type: FieldType, kernel_size: int, dilation: int, **basis_arguments: Any
) -> Any:
    """Return escnn's sampled basis, or None where no steerable kernel fits into the support."""
    if kernel_size == 2 and basis_arguments["rings"] is None:
        # escnn's default ring of a 2×2 kernel is the origin, where it has no tap, and its basis is empty.
        # The ring is placed at the taps, a bit inside of their distance ½√d.
        basis_arguments["rings"] = [dilation * math.sqrt(in_type.gspace.dimensionality) / 2 - 1e-6]
        if basis_arguments["frequencies_cutoff"] is None:
            basis_arguments["frequencies_cutoff"] = _one_frequency
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
    """Raise a ``ValueError`` where these arguments, those of ``sampled_basis``, are the reason for an empty basis."""
    given = shaping_arguments(basis_arguments)
    place = in_type, out_type, kernel_size, dilation
    if given and sampled_basis(*place, rings=None, frequencies_cutoff=None) is not None:
        values = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ValueError(
            f"{', '.join(given)} must leave an element of the basis, got {values}: it is empty for these field types"
        )
