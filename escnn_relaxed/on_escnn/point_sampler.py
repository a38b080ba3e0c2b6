"""escnn's basis of steerable kernels at the edges of clouds: its arguments, and how it is built."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import escnn.nn as enn
import torch
from escnn.group import InsufficientIrrepsException
from escnn.kernels import AdjointBasis
from escnn.nn import FieldType
from torch import Tensor

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

# cos and sin of a sum of two angles, from the products of those of each.
_SUM_OF_ANGLES = ((1.0, 0.0, 0.0, -1.0), (0.0, 1.0, 1.0, 0.0))


class ShellFunctions(NamedTuple):
    """The functions of an offset d that escnn's bases are sums of: Gaussians of |d| times harmonics of d/|d|.

    Attributes:
        radii: where the Gaussians are, (R,).
        widths: theirs, (R,).
        first: from a direction to its harmonics of degree 1, (n, d).
        steps: of each degree above, from the products of the harmonics one below with those of degree 1.
    """

    radii: Tensor
    widths: Tensor
    first: Tensor
    steps: tuple[Tensor, ...]


def shell_functions(block: Any) -> ShellFunctions:
    """Return the functions that the basis of a pair of representations is made of."""
    basis, adjoint = _without_adjoint(block.basis)
    shells = basis.basis
    if hasattr(shells, "axis"):
        cosine, sine = math.cos(shells.axis), math.sin(shells.axis)
        first = torch.tensor([[cosine, sine], [-sine, cosine]], dtype=torch.float64)
        steps = (torch.tensor(_SUM_OF_ANGLES, dtype=torch.float64),) * (shells.L - 1)
    else:
        generator = shells.harmonics_generator
        first = generator.cob_1.double() if shells.L else torch.eye(3, dtype=torch.float64)
        steps = tuple(getattr(generator, f"cob_{degree}").double() for degree in range(2, shells.L + 1))
    first = (first if adjoint is None else first @ adjoint.double())[: None if shells.L else 0]
    radial = shells.radial
    return ShellFunctions(radial.radii.double().flatten(), radial.sigma.double().flatten(), first, steps)


def in_shell_functions(block: Any) -> Tensor:
    """Return the basis of a pair of representations as sums of its functions, (B, |A|, |B|, R, harmonics)."""
    basis, _ = _without_adjoint(block.basis)
    shells = basis.basis
    # escnn makes its bases of the harmonics linearly: here one after the other is 1.
    ones, start, alone = torch.eye(shells.dim, dtype=torch.float64), 0, {}
    for irrep, count in shells.js:
        size = shells.group.irrep(*irrep).size
        alone[irrep] = ones[:, start : start + count * size].view(-1, count, size)
        start += count * size
    made, start, outs = torch.zeros(shells.dim, basis.dim, *basis.shape, dtype=torch.float64), 0, {}
    for irrep in basis.js:
        outs[irrep] = made[:, start : start + basis.dim_harmonic(irrep)]
        start += basis.dim_harmonic(irrep)
    basis.sample_harmonics(alone, outs)
    made = made[:, block._mask].permute(1, 2, 3, 0) * block.sizes.double().view(-1, 1, 1, 1)
    # escnn's order is by degree, then by radius.
    radii, harmonics = len(shells.radial), shells._angular_dim
    if shells._filter is not None:
        of_all = made.new_zeros(*made.shape[:3], radii * harmonics)
        of_all[..., shells._filter] = made
        made = of_all
    sizes = [1, *[2 if hasattr(shells, "axis") else 2 * degree + 1 for degree in range(1, shells.L + 1)]]
    parts = made.split([radii * size for size in sizes], -1)
    return torch.cat([part.unflatten(-1, (radii, -1)) for part in parts], -1)


def _without_adjoint(basis: Any) -> tuple[Any, Tensor | None]:
    """Return the basis in escnn's own coordinates, and the map to these."""
    adjoint = None
    while isinstance(basis, AdjointBasis):
        adjoint = basis.adj if adjoint is None else basis.adj @ adjoint
        basis = basis.basis
    return basis, adjoint


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
