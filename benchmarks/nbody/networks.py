"""The networks: two steps of messages between all particles of a scene, with the same information for every way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from escnn import gspaces
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.nbody.particles import PARTICLES, Scenes
from escnn_relaxed import RelaxedLinear, RelaxedR3PointConv

DEPTH = 2
# Radii of the kernel, and widths of its rings; the highest frequency of its spherical harmonics.
RADII, WIDTHS, FREQUENCY = [0.5, 1.5, 3.0], [0.5, 0.7, 1.0], 2.0
# The ball about the origin in which particles lie, for softness in translation.
DOMAIN_RADIUS = 4.0


@dataclass(frozen=True)
class Way:
    """A way to build a network."""

    # Of the layers; None is a network without symmetry.
    softness: dict[str, Any] | None = field(default_factory=lambda: {"relax": None})
    # Each particle is told the vertical, and above a wall its height.
    sees_up: bool = False


WAYS = {
    "strict": Way(),
    "strict, told the vertical": Way(sees_up=True),
    "soft": Way({}),
    'soft, keep="SO(2)"': Way({"keep": "SO(2)"}),
    "plain": Way(None),
}


def edges_of(count: int) -> Tensor:
    """Return the 20 edges of each of so many scenes, (2, 20·count), from a sender to a receiver."""
    one = torch.tensor([(i, j) for j in range(PARTICLES) for i in range(PARTICLES) if i != j]).T
    return (one.unsqueeze(1) + PARTICLES * torch.arange(count).view(-1, 1)).flatten(1)


def build(way: Way, task: str, width: int) -> nn.Module:
    """Return a network: scenes → what the particles have moved by, (scenes, particles, 3)."""
    if way.softness is None:
        return Plain(width, task == "wall")
    softness = dict(way.softness)
    if task == "wall" and "relax" not in softness:
        softness |= {"relax": ("rotation", "translation"), "domain_radius": DOMAIN_RADIUS}
    return Steerable(width, softness, way.sees_up, task == "wall")


class Samples:
    """One of escnn's bases at the edges of scenes, sampled once for all of a split, since edges do not change."""

    scenes: Scenes | None = None

    def __init__(self, name: str, sampler: nn.Module) -> None:
        self._name, self._sample = name, sampler.forward
        sampler.forward = self

    def __call__(self, offsets: Tensor) -> Tensor:
        """Return the basis at the edges of ``scenes``, (E, C_out, C_in, basis)."""
        if self.scenes is None or self.scenes.rows is None or self.scenes.whole is None:
            found: Tensor = self._sample(offsets)
            return found
        whole, rows = self.scenes.whole, self.scenes.rows
        if self._name not in whole.known:
            at_edges = self._sample(offsets_of(whole))
            whole.known[self._name] = at_edges.view(len(whole), -1, *at_edges.shape[1:])
        return whole.known[self._name].index_select(0, rows).flatten(0, 1)


def offsets_of(scenes: Scenes) -> Tensor:
    """Return the position of the sender less that of the receiver, of each edge."""
    source, target = edges_of(len(scenes))
    places = scenes.positions.flatten(0, 1)
    return places[source] - places[target]


class Block(nn.Module):
    """A convolution of the cloud, half of whose fields are multiplied by the receiver's charge, and a linear map."""

    is_charged: Tensor

    def __init__(self, in_type: FieldType, out_type: FieldType, softness: dict[str, Any]) -> None:
        super().__init__()
        self.in_type, self.out_type = in_type, out_type
        self.convolution = RelaxedR3PointConv(
            in_type, out_type, rings=RADII, sigma=WIDTHS, frequencies_cutoff=FREQUENCY, **softness
        )
        samplers = self.convolution.basissampler.named_children()
        self.samples = [Samples(name, each) for name, each in samplers if name.startswith("block_sampler")]
        space = gspaces.no_base_space(in_type.fibergroup)
        self.features, outputs = (FieldType(space, fields.representations) for fields in (in_type, out_type))
        of_linear = {name: value for name, value in softness.items() if name != "domain_radius"}
        if of_linear.get("relax"):
            of_linear["relax"] = "rotation"
        self.linear = RelaxedLinear(self.features, outputs, **of_linear)
        odd = [number % 2 for number, each in enumerate(out_type.representations) for _ in range(each.size)]
        self.register_buffer("is_charged", torch.tensor(odd, dtype=torch.bool), persistent=False)

    def forward(self, values: Tensor, places: Tensor, charges: Tensor, edges: Tensor, offsets: Tensor) -> Tensor:
        """(nodes, C_in) → (nodes, C_out)."""
        heard = self.convolution(GeometricTensor(values, self.in_type, coords=places), edges, offsets).tensor
        heard = torch.where(self.is_charged, charges * heard, heard)
        kept: Tensor = self.linear(self.features(values)).tensor
        return heard + kept


class Steerable(nn.Module):
    """Scalars and vectors of SO(3): the convolutions of clouds with gated nonlinearities."""

    def __init__(self, width: int, softness: dict[str, Any], sees_up: bool, has_wall: bool) -> None:
        super().__init__()
        self.width, self.sees_up, self.has_wall = width, sees_up, has_wall
        space = gspaces.rot3dOnR3(maximum_frequency=2)
        # escnn's irrep of vectors has its coordinates in another order than x, y, z.
        one, vector, irrep = space.trivial_repr, space.basespace_action, space.irrep(1)
        inputs = FieldType(space, [one] * (3 + (sees_up and has_wall)) + [vector] * (2 + sees_up))
        hidden = FieldType(space, [one] * width + [irrep] * width)
        gated = FieldType(space, [one] * (2 * width) + [irrep] * width)
        last = FieldType(space, [vector, vector])
        ins, outs = [inputs, *[hidden] * (DEPTH - 1)], [*[gated] * (DEPTH - 1), last]
        self.blocks = nn.ModuleList(Block(*types, softness) for types in zip(ins, outs, strict=True))

    def forward(self, scenes: Scenes) -> Tensor:
        """Return what the particles have moved by, in units of the training."""
        edges = edges_of(len(scenes))
        places, speeds = scenes.positions.flatten(0, 1), scenes.velocities.flatten(0, 1)
        charges = scenes.charges.flatten().unsqueeze(1)
        values = [torch.ones_like(charges), charges, 4 * speeds.square().sum(1, keepdim=True)]
        if self.sees_up and self.has_wall:
            values.append(places[:, 2:])
        values += [2 * speeds, 2 * charges * speeds]
        if self.sees_up:
            values.append(places.new_tensor([0.0, 0.0, 1.0]).expand(len(places), 3))
        found, offsets = torch.cat(values, 1), offsets_of(scenes)
        for number, block in enumerate(self.blocks):
            for samples in block.samples:
                samples.scenes = scenes
            found = block(self._gated(found) if number else found, places, charges, edges, offsets)
        return found.view(*scenes.positions.shape[:2], 2, 3).sum(2)

    def _gated(self, values: Tensor) -> Tensor:
        scalars, gates, vectors = values.split([self.width, self.width, 3 * self.width], 1)
        gated = vectors.unflatten(1, (-1, 3)) * gates.sigmoid().unsqueeze(2)
        return torch.cat([functional.silu(scalars), gated.flatten(1)], 1)


class Plain(nn.Module):
    """Messages by a network of the two particles and their difference, without any symmetry but that of their order.

    Above a wall the positions are features of the particles, else only differences of positions are seen.
    """

    def __init__(self, width: int, has_wall: bool) -> None:
        super().__init__()
        self.has_wall = has_wall
        self.first = nn.Linear(5 + 3 * has_wall, width)
        self.messages = nn.ModuleList(_perceptron(2 * width + 5, width) for _ in range(DEPTH))
        self.updates = nn.ModuleList(_perceptron(2 * width, width) for _ in range(DEPTH))
        self.last = _perceptron(width, width, 3)

    def forward(self, scenes: Scenes) -> Tensor:
        """Return what the particles have moved by, in units of the training."""
        source, target = edges_of(len(scenes))
        places, speeds = scenes.positions.flatten(0, 1), scenes.velocities.flatten(0, 1)
        charges = scenes.charges.flatten().unsqueeze(1)
        apart = places[source] - places[target]
        at_edges = [apart, apart.norm(dim=1, keepdim=True), charges[source] * charges[target]]
        values = [charges, 2 * speeds, 4 * speeds.square().sum(1, keepdim=True)]
        nodes = self.first(torch.cat(values + ([places] if self.has_wall else []), 1))
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = message(torch.cat([nodes[source], nodes[target], *at_edges], 1))
            heard = torch.zeros_like(nodes).index_add(0, target, sent) / (PARTICLES - 1)
            nodes = nodes + update(torch.cat([nodes, heard], 1))
        found: Tensor = self.last(nodes)
        return found.view_as(scenes.positions)


def _perceptron(inputs: int, width: int, outputs: int | None = None) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, outputs or width))
