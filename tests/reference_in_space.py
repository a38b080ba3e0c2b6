"""The loop oracle in three dimensions: equations (1) and (2) of docs/concepts/mathematics.md, soft part alone.

An element is its matrix r fˢ: f is the inversion, or the first mirror that the group lists. Its coordinates are the
nine numbers of r over √2, or where rotations about z are kept the three of r⁻¹e_z; and s/2.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from escnn.group import GroupElement
from reference import Oracle
from reference_fields import Fields, matrix
from reference_tied import Modulation
from torch import Tensor

from escnn_relaxed import RelaxedR3Conv

Voxel = tuple[float, ...]


class OracleInSpace(Oracle):
    """The soft part of a layer of volumes by loops.

    Args:
        layer: gives its numbers.
        elements: those over which the kernel is averaged.
        filter_frequency: ω of each coordinate.
        kept: the elements of the kept group.
        about_axis: whether all rotations about z are kept beside them.
    """

    def __init__(
        self,
        layer: RelaxedR3Conv,
        elements: list[GroupElement],
        filter_frequency: dict[str, float],
        kept: list[GroupElement],
        about_axis: bool = False,
    ) -> None:
        self.layer = layer
        self.kernel_size, self.stride, self.dilation = layer.kernel_size, layer.stride, layer.dilation
        self.support, self.is_centred, self.soft_part = "smooth", True, "centred"
        self.filter_frequency = filter_frequency
        self.space = layer.in_type.gspace
        self.elements, self.kept, self.about_axis = elements, kept, about_axis
        actions = [self._action(element) for element in elements]
        mirrors = [action for action in actions if np.linalg.det(action) < 0]
        self.has = {"rotation": len(actions) - len(mirrors) > 1, "reflection": bool(mirrors)}
        inversions = [action for action in mirrors if np.allclose(action, -np.eye(3))]
        self.mirror = (inversions + mirrors + [np.eye(3)])[0]
        self.inputs = Fields(list(layer.in_type.representations), elements)
        self.outputs = Fields(list(layer.out_type.representations), elements)
        self.sees_relative = all(any(f.is_permutation for f in side.fields) for side in (self.inputs, self.outputs))
        self._hidden: dict[Any, Tensor] = {}
        self._banks: dict[Any, Tensor] = {}
        self._known_weights: dict[Any, Tensor] = {}
        self._points: dict[int, list[tuple[np.ndarray, int]]] = {}

    def __call__(self, features: Tensor) -> Tensor:
        """Equation (1) without padding and without the strict part."""
        reach = self.dilation * (self.kernel_size - 1)
        sizes = [(size - reach - 1) // self.stride + 1 for size in features.shape[2:]]
        steps = list(itertools.product(range(self.kernel_size), repeat=3))
        outputs = []
        for voxel in itertools.product(*map(range, sizes)):
            total = torch.zeros((), dtype=torch.float64)
            for step, tap in zip(steps, self.taps(), strict=True):
                place = [at * self.stride + by * self.dilation for at, by in zip(voxel, step, strict=True)]
                total = total + features[:, :, place[0], place[1], place[2]] @ self.bank(tap).T
            outputs.append(total)
        return torch.stack(outputs, -1).unflatten(-1, sizes)

    def taps(self) -> list[Voxel]:
        """Offsets (x, y, z): x along the columns, y and z against the rows and the planes."""
        line = [(i - (self.kernel_size - 1) / 2) * self.dilation for i in range(self.kernel_size)]
        return [(x, -y, -z) for z, y, x in itertools.product(line, repeat=3)]

    def _action(self, element: GroupElement) -> np.ndarray:
        return matrix(self.space.basespace_action, element)

    def _rotation(self, element: GroupElement) -> tuple[np.ndarray, int]:
        action = self._action(element)
        reflected = int(np.linalg.det(action) < 0)
        return (action @ np.linalg.inv(self.mirror) if reflected else action), reflected

    def _filter_point(self, g: GroupElement, tap: Voxel, relative: GroupElement) -> Tensor:
        radius = self.dilation * self.kernel_size / 2
        point = list(np.linalg.inv(self._action(g)) @ np.array(tap) / radius * self.filter_frequency["position"])
        if self.sees_relative:
            rotation, reflected = self._rotation(relative)
            if self.has["rotation"]:
                point += list(rotation.ravel() / np.sqrt(2) * self.filter_frequency["rotation"])
            if self.has["reflection"]:
                point.append(reflected / 2 * self.filter_frequency["reflection"])
        return torch.tensor(np.array(point), dtype=torch.float64)

    def _domain_points(self, g: GroupElement) -> Tensor:
        """a(hg) for every kept h, in units of ω′."""
        if id(g) not in self._points:
            self._points[id(g)] = [self._rotation(h @ g) for h in self.kept]
        points = []
        for rotation, reflected in self._points[id(g)]:
            of_rotation = rotation.T @ [0, 0, 1] if self.about_axis else rotation.ravel() / np.sqrt(2)
            values = {"rotation": of_rotation, "reflection": np.array([reflected / 2])}
            frequency = self.layer.domain_frequency
            points.append(torch.cat([torch.from_numpy(values[name]) * frequency[name] for name in frequency]))
        return torch.stack(points)

    def _values(self, filter_point: Tensor) -> dict[int, Tensor]:
        """The mean of φ over the kept group for every g, by its identity, less the mean of all."""
        points = [self._domain_points(g) for g in self.elements]
        hidden = self.layer.bank.kernel(filter_point.expand(len(points) * len(self.kept), -1), torch.cat(points))
        means = hidden.unflatten(1, (len(points), len(self.kept))).mean(dim=2)
        return dict(zip(map(id, self.elements), (means - means.mean(dim=1, keepdim=True)).unbind(1), strict=True))

    def hidden_values(self, g: GroupElement, tap: Voxel, position: object, relative: GroupElement) -> Tensor:
        """φ at g⁻¹d and a(g) less its mean over the group, within the window."""
        # escnn's elements are slow to compare: those of the list are known by their identity.
        key = (id(g), tap, relative if self.sees_relative else None)
        if key not in self._hidden:
            point = self._filter_point(g, tap, relative)
            # Elements on the grid see the same few points in another order, which are evaluated once.
            same = tuple((point.round(decimals=9) + 0.0).tolist())
            if same not in self._hidden:
                self._hidden[same] = self._values(point)
            self._hidden[key] = self._hidden[same][id(g)]
        return self._hidden[key] * self._window(tap)

    def _window(self, tap: Voxel) -> float:
        """1 in the ball, falling as cos² over its outer tap."""
        distance, inside = np.linalg.norm(tap) / self.dilation, self.kernel_size / 2 - 1
        return float(np.cos(np.pi / 2 * np.clip(distance - inside, 0, 1)) ** 2) if distance < inside + 1 else 0.0


class ModulationInSpace(Modulation):
    """f of a layer of volumes, at every position the same.

    Args:
        layer: gives its numbers.
        oracle: the elements, their coordinates and the kept group.
        fold: the power of rotations that the coordinates are of.
    """

    def __init__(self, layer: RelaxedR3Conv, oracle: OracleInSpace, fold: int = 1) -> None:
        super().__init__(layer, oracle.elements, [(0.0, 0.0, 0.0)], None)
        self.oracle, self.fold = oracle, fold

    def _kept_elements(self) -> list[GroupElement]:
        return self.oracle.kept

    def functions(self, g: GroupElement, own: Voxel) -> Tensor:
        """tanh(2π ω′ a) of each coordinate of g, squares of the rotation's, products of the rotation's and s/2."""
        rotation, reflected = self.oracle._rotation(g)
        rotation = np.linalg.matrix_power(rotation, self.fold)
        of_rotation = rotation.T @ [0, 0, 1] if self.oracle.about_axis else rotation.ravel() / np.sqrt(2)
        of = {}
        for name, values in {"rotation": of_rotation, "reflection": [reflected / 2]}.items():
            frequency = self.layer.domain_frequency.get(name, [])
            of[name] = [(2 * np.pi * frequency[0] * value).tanh() for value in values] if len(frequency) else []
        products = [a * b for a, b in itertools.product(of["rotation"], of["reflection"])]
        return torch.stack([*of["rotation"], *of["reflection"], *(value**2 for value in of["rotation"]), *products])
