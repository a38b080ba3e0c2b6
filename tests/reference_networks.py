"""Small strict networks in float64, in the plane, in space and without a base space, for reference fields."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.gspaces import GSpace
from escnn.nn import FieldType, SequentialModule
from torch import Tensor, nn

from escnn_relaxed import RelaxedLinear, RelaxedR2Conv, RelaxedR3Conv, relax_network
from escnn_relaxed.layer.reference_field import ReferenceField

SPACES: dict[str, Callable[[], GSpace]] = {
    "C8": lambda: gspaces.rot2dOnR2(8),
    "D4": lambda: gspaces.flipRot2dOnR2(4),
    "SO(2)": lambda: gspaces.rot2dOnR2(-1),
    "O(2)": lambda: gspaces.flipRot2dOnR2(-1),
    "octahedral": gspaces.octaOnR3,
    "SO(3)": gspaces.rot3dOnR3,
    "C8 features": lambda: gspaces.no_base_space(gspaces.rot2dOnR2(8).fibergroup),
}


@functools.cache
def space_of(name: str) -> GSpace:
    return SPACES[name]()


def image_type(space: GSpace) -> FieldType:
    """Three scalars of an image; features without positions are vectors, as a linear map of these needs."""
    if space.dimensionality:
        return FieldType(space, [space.trivial_repr] * 3)
    return FieldType(space, [space.fibergroup.irrep(1)] * 2)


def strict_network(name: str, dtype: torch.dtype = torch.float64) -> SequentialModule:
    """Two strict layers with a norm between them, each of this package, so that they are exact in float64."""
    space, group = space_of(name), space_of(name).fibergroup
    with torch.random.fork_rng():
        torch.manual_seed(3)
        irreps = [group.irrep(1, 1) if group.name in ("D4", "O(2)") else group.irrep(1), space.trivial_repr]
        hidden = FieldType(space, [irreps[0], *[space.trivial_repr] * 2] * 2)
        build: Any = {0: RelaxedLinear, 2: RelaxedR2Conv, 3: RelaxedR3Conv}[space.dimensionality]
        sizes = {"kernel_size": 3, "padding": 1} if space.dimensionality else {}
        layers = [
            build(image_type(space), hidden, relax=None, **sizes),
            # The norm of a vector mixes what the reference and the features give; plain ReLU of scalars comes after.
            enn.NormNonLinearity(hidden, "n_relu", bias=True),
            build(hidden, FieldType(space, irreps), relax=None, **sizes),
        ]
        return SequentialModule(*layers).to(dtype)


def with_vector(network: nn.Module, vector: Any = None, size: float = 0.7, **arguments: Any) -> nn.Module:
    """The network with a reference field before its first layer, with a value that points somewhere."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        found = relax_network(network, reference="input", **arguments)
        for reference in references(found):
            value = torch.randn(reference.vector.shape, dtype=torch.float64) if vector is None else vector
            value = torch.as_tensor(value, dtype=torch.float64)
            with torch.no_grad():
                reference.vector.copy_(size * value / value.norm() if vector is None else value)
    return found


def references(network: nn.Module) -> list[ReferenceField]:
    return [module for module in network.modules() if isinstance(module, ReferenceField)]


def images(name: str, batch: int = 3, side: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    space = space_of(name)
    generator = torch.Generator().manual_seed(7)
    shape = batch, image_type(space).size, *[side] * space.dimensionality
    return torch.randn(*shape, dtype=dtype, generator=generator)


def with_values(module: nn.Module) -> nn.Module:
    """A module whose reference fields are not 0."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in [parameter for reference in references(module) for parameter in reference.parameters()]:
            parameter.normal_(generator=generator)
    return module
