"""Forecasts of smoke, whose symmetry is broken as much as is asked for: data, networks and scores.

A network sees velocity and smoke and says how they change until the next frame, all in units of their root mean square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from escnn.nn import FieldType
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.shared.flow import puffs_of_smoke
from benchmarks.shared.training import Split, softness_of
from benchmarks.shared.turns import Element, turned
from benchmarks.symmetry.bodies import Layers, regular
from benchmarks.symmetry.data import Data
from benchmarks.symmetry.training import Objective, outputs_of
from benchmarks.symmetry.ways import Setting, Way
from escnn_relaxed import harden_network

POSES = ("level 9", "level 3", "level 0")
# Puffs for training and for validation; the rest is for the test.
TRAINING, VALIDATION = 5, 2
FRAMES_AHEAD, KERNEL_SIZE = 10, 5


def _relative_error(predicted: Tensor, change: Tensor) -> float:
    """Return the root mean square of the error in percent of the change."""
    return 100 * functional.mse_loss(predicted, change).item() ** 0.5


OBJECTIVE = Objective(functional.mse_loss, _relative_error, "gaussian", batch=8)


def load_smoke(symmetry: str, pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return pairs of a state and its change from so many puffs, and films to test, with the size of changes.

    Seeds draw weights and batches alone. Films are kept in ``smoke`` below the folder of the data.
    """
    films = puffs_of_smoke(symmetry, int(pose.removeprefix("level ")), (root or Path("data")) / "smoke")
    held_out, test = films[TRAINING:].tensor_split((VALIDATION,))
    known = films[:TRAINING][:images]
    scale = _root_mean_squares(known)
    step = _root_mean_squares(known.diff(dim=2)) / scale
    train, validation = (_pairs(part / scale, step) for part in (known, held_out))
    tested = (test / scale).flatten(0, 1), step
    return Data(train, validation, tested, tested, turned if symmetry == "translation" else fields_turned)


def _root_mean_squares(films: Tensor) -> Tensor:
    """Return the root mean square of velocity, twice, and of smoke, (3, 1, 1)."""
    squares = films.square().mean(dim=(-1, -2)).flatten(0, -2).mean(dim=0)
    velocity, smoke = squares[:2].mean(), squares[2]
    return squares.new_tensor([velocity, velocity, smoke]).sqrt()[:, None, None]


def _pairs(films: Tensor, step: Tensor) -> Split:
    """Return all states (n, 3, H, W) that have a next one, and their changes in units of a step."""
    now, later = films[:, :, :-1].flatten(0, 2), films[:, :, 1:].flatten(0, 2)
    return now, (later - now) / step


def fields_turned(fields: Tensor, element: Element) -> Tensor:
    """Return fields (n, channels, H, W) of velocity and smoke, one or more of each, turned by a quarter turn."""
    quarters = element.degrees // 90
    moved = turned(fields, element).unflatten(1, (-1, 3))
    for _ in range(quarters):
        right, up, smoke = moved.unbind(2)
        moved = torch.stack([-up, right, smoke], 2)
    return moved.flatten(1, 2)


@dataclass(frozen=True)
class ForecastFrame:
    """What smoke asks of its networks: see :class:`~benchmarks.symmetry.networks.Frame`."""

    # Fields of the hidden layers.
    widths: tuple[int, ...] = (6, 6, 6)
    relax: Any = field(default=None, hash=False)
    # The left and the right side of the box are one.
    is_periodic: bool = False

    def build(self, group: str, way: Way, setting: Setting, widths: tuple[int, ...]) -> Forecaster:
        """Return the network of a way, with so many fields in each hidden layer.

        A free head is a last layer without symmetry. Others end in fields of the group, so that the network is as
        equivariant as its layers.
        """
        gspace = way.gspace(group)
        velocity = [gspace.irrep(1)] if gspace.fibergroup.order() > 1 else [gspace.trivial_repr] * 2
        state = FieldType(gspace, [*velocity, gspace.trivial_repr])
        types = [state, *(regular(gspace, width) for width in widths)]
        axes = int(self.is_periodic) if way.has_free_biases else None
        convolution = Layers(*way.layers(setting, self.relax), bias_axes=axes)
        # Pixels that come in from the other side are put there before.
        padding = (KERNEL_SIZE // 2, 0 if self.is_periodic else KERNEL_SIZE // 2)
        layers = [convolution(*ends, KERNEL_SIZE, padding=padding) for ends in pairwise(types)]
        if way.head == "free":
            layers.append(nn.Conv2d(types[-1].size, state.size, KERNEL_SIZE, padding=padding, bias=False))
        else:
            layers.append(convolution(types[-1], state, KERNEL_SIZE, is_last=True, padding=padding))
        return Forecaster(layers, self.is_periodic)


class Forecaster(nn.Module):
    """Velocity and smoke → their change until the next frame: four convolutions with SiLUs between."""

    def __init__(self, layers: Sequence[nn.Module], is_periodic: bool) -> None:
        super().__init__()
        self.layers, self.is_periodic = nn.ModuleList(layers), is_periodic
        # Draws differ much in the size of what they predict; so all start near saying that nothing changes.
        self.gain = nn.Parameter(torch.tensor(0.1))

    def forward(self, state: Tensor) -> Tensor:
        """(batch, 3, H, W) → the same shape."""
        features = state
        for number, layer in enumerate(self.layers):
            features = functional.silu(features) if number else features
            if self.is_periodic:
                features = functional.pad(features, (KERNEL_SIZE // 2, KERNEL_SIZE // 2, 0, 0), mode="circular")
            features = layer(features) if isinstance(layer, nn.Conv2d) else layer(layer.in_type(features)).tensor
        return self.gain * features


def scores(network: nn.Module, data: Data, elements: Sequence[Element]) -> dict[str, Any]:
    """Return the errors in percent that protocol.md names; ``hardened`` is that of the nearest strict network."""
    films, step = data.test
    states, changes = _pairs(films.unsqueeze(0), step)
    predicted = outputs_of(network, states)
    errors, differences = [], []
    for element in elements:
        turned_changes = outputs_of(network, data.act(states, element))
        truth = data.act(states + step * changes, element)
        errors.append(_error(data.act(states, element) + step * turned_changes, truth))
        if element != elements[0]:
            expected = data.act(predicted, element)
            differences.append(100 * float((turned_changes - expected).norm() / expected.norm()))
    found = {
        "error": errors[0],
        "rollout": _rollout(network, films, step),
        "turned": fmean(errors[1:]),
        "worst": max(errors[1:]),
        "change": fmean(differences),
    }
    soft = softness_of(network)
    if soft:
        strict = outputs_of(harden_network(network), states)
        found["hardened"] = _error(states + step * strict, states + step * changes)
    return found | soft


def _rollout(network: nn.Module, films: Tensor, step: Tensor) -> float:
    """Return the error ten frames ahead, each frame predicted from the prediction before."""
    parts = films.unfold(1, FRAMES_AHEAD + 1, 1).movedim(-1, 2).flatten(0, 1)
    state = parts[:, 0]
    for _ in range(FRAMES_AHEAD):
        state = state + step * outputs_of(network, state)
    return _error(state, parts[:, -1])


def _error(predicted: Tensor, truth: Tensor) -> float:
    """Return ‖predicted − true‖ / ‖true‖ of velocities in percent."""
    return 100 * float((predicted - truth)[:, :2].norm() / truth[:, :2].norm())
