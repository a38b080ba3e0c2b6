"""Small clouds with edges, symmetries of them, and layers in float64, each weight off its start."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from escnn import gspaces
from escnn.gspaces import GSpace
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor

from escnn_relaxed import RelaxedR2PointConv, RelaxedR3PointConv

Layer = RelaxedR2PointConv | RelaxedR3PointConv

SPACES: dict[str, Callable[[], GSpace]] = {
    "C8": functools.partial(gspaces.rot2dOnR2, 8),
    "D4": functools.partial(gspaces.flipRot2dOnR2, 4),
    "SO(2)": gspaces.rot2dOnR2,
    "O(2)": gspaces.flipRot2dOnR2,
    "octahedral": gspaces.octaOnR3,
    "SO(3)": gspaces.rot3dOnR3,
    "O(3)": gspaces.flipRot3dOnR3,
    "SO(2) about z": functools.partial(gspaces.rot2dOnR3, maximum_frequency=6),
}
SUPPORT: dict[str, Any] = {"width": 1.5, "n_rings": 3, "frequencies_cutoff": 2.0}

# Groups of space that few networks have; of cylinders those with the inversion and with all mirrors.
MORE_SPACES: dict[str, Callable[[], GSpace]] = {
    "icosahedral": gspaces.icoOnR3,
    "full octahedral": gspaces.fullOctaOnR3,
    "cylinder C4": functools.partial(gspaces.cylindricalOnR3, 4),
    "full cylinder D2": functools.partial(gspaces.fullCylindricalOnR3, 2),
    "dihedral D3": functools.partial(gspaces.dihedralOnR3, 3),
    "cone D3": functools.partial(gspaces.conicalOnR3, 3),
}


@functools.cache
def fields(name: str) -> FieldType:
    """Fields of many kinds, those of a kind not side by side."""
    space = (SPACES | MORE_SPACES)[name]()
    group = space.fibergroup
    irreps = [irrep for irrep in group.irreps() if not irrep.is_trivial()][:2]
    regular = [] if group.continuous or group.order() > 24 or name in MORE_SPACES else [space.regular_repr]
    if name == "octahedral":
        regular = [group.quotient_representation((False, 4))]
    return FieldType(space, [space.trivial_repr, *irreps, *regular, space.trivial_repr])


def cloud(of: FieldType, nodes: int = 7, neighbours: int = 3) -> tuple[GeometricTensor, Tensor]:
    """A cloud in which each node hears its nearest ones, with a loop at the first node and none to the last."""
    axes = of.gspace.dimensionality
    places = torch.randn(nodes, axes, dtype=torch.float64)
    near = torch.cdist(places, places).argsort(1)[:, 1 : neighbours + 1]
    edges = torch.stack([near.flatten(), torch.arange(nodes).repeat_interleave(neighbours)])
    edges = torch.cat([edges[:, edges[1] < nodes - 1], torch.zeros(2, 1, dtype=torch.long)], 1)
    return GeometricTensor(torch.randn(nodes, of.size, dtype=torch.float64), of, places), edges


def build(in_type: FieldType, out_type: FieldType | None = None, **arguments: Any) -> Any:
    """A layer in float64 with a bias."""
    kind = {2: RelaxedR2PointConv, 3: RelaxedR3PointConv}[in_type.gspace.dimensionality]
    layer = kind(in_type, out_type or in_type, **{**SUPPORT, **arguments}).double()
    if layer.bias is not None:
        torch.nn.init.normal_(layer.bias)
    return layer


def subgroups(of: FieldType) -> tuple[str, ...]:
    """The subgroups that a symmetry has."""
    return build(of, initialize=False).domain.sample.subgroups
