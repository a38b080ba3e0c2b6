"""Networks that predict how smoke goes on: the ways to relax, with as many parameters each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType
from torch import Tensor, nn
from torch.nn import functional

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.baselines import PartialR2Conv, ResidualR2Conv, WeightedR2Conv

__all__ = ["WAYS", "Forecaster", "Way"]

KERNEL_SIZE = 5


@dataclass(frozen=True)
class Way:
    """A way to build the layers.

    Attributes:
        layer: of the network.
        widths: fields of the hidden layers, channels of plain ones.
        options: of the layer.
        has_evidence: learn from the training data how soft.
    """

    layer: Callable[..., nn.Module]
    widths: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    has_evidence: bool = False


# Translations to the side alone are a symmetry of the box.
SIDEWAYS = {"relax": {"translation": (0.25, 0.0)}}
# So many fields that all networks have as many parameters, within a tenth.
WAYS = {
    "rotation": {
        "plain": Way(nn.Conv2d, (7, 7, 7)),
        "strict": Way(enn.R2Conv, (6, 6, 6)),
        "relaxed": Way(RelaxedR2Conv, (6, 6, 6)),
        "evidence": Way(RelaxedR2Conv, (6, 6, 6), has_evidence=True),
        "partial": Way(PartialR2Conv, (6, 6, 6)),
        "residual": Way(ResidualR2Conv, (2, 2, 1)),
        "weighted": Way(WeightedR2Conv, (4, 4, 5)),
    },
    "translation": {
        "plain": Way(nn.Conv2d, (8, 8, 8)),
        "strict": Way(enn.R2Conv, (13, 13, 13)),
        "relaxed": Way(RelaxedR2Conv, (12, 13, 12), SIDEWAYS),
        "evidence": Way(RelaxedR2Conv, (12, 13, 12), SIDEWAYS, has_evidence=True),
    },
}


class Forecaster(nn.Module):
    """Velocity and smoke → the same at the next frame, by their change: four convolutions with SiLUs between.

    Args:
        symmetry: ``"rotation"``: fields of C4, irreps 1 and 0 → regular → irreps 1 and 0, in a closed box.
            ``"translation"``: fields of no group, in a box whose left and right side are one.
        way: of the layers.
    """

    def __init__(self, symmetry: str, way: Way) -> None:
        super().__init__()
        self.is_periodic = symmetry == "translation"
        gspace = gspaces.trivialOnR2() if self.is_periodic else gspaces.rot2dOnR2(4)
        velocity = [gspace.trivial_repr] * 2 if self.is_periodic else [gspace.irrep(1)]
        self.state_type = FieldType(gspace, [*velocity, gspace.trivial_repr])
        hidden_types = [FieldType(gspace, [gspace.regular_repr] * width) for width in way.widths]
        ends = pairwise([self.state_type, *hidden_types, self.state_type])
        self.layers = nn.ModuleList(self._layer(way, *types) for types in ends)
        # Draws differ much in the size of what they predict; so all start near saying that nothing changes.
        self.gain = nn.Parameter(torch.tensor(0.1))
        self.scales: tuple[Tensor | float, Tensor | float] = (1.0, 1.0)

    def _layer(self, way: Way, in_type: FieldType, out_type: FieldType) -> nn.Module:
        # Pixels that come in from the other side are put there before.
        padding = (KERNEL_SIZE // 2, 0 if self.is_periodic else KERNEL_SIZE // 2)
        if way.layer is nn.Conv2d:
            sizes = (kind.size if kind is self.state_type else len(kind) for kind in (in_type, out_type))
            return nn.Conv2d(*sizes, KERNEL_SIZE, padding=padding)
        # The window of a partial layer is on group elements, which the state has none of.
        layer = enn.R2Conv if way.layer is PartialR2Conv and out_type is self.state_type else way.layer
        return layer(in_type, out_type, KERNEL_SIZE, padding=padding, **way.options)

    def set_scales(self, films: Tensor) -> None:
        """Root mean squares of channels and of their changes, (…, frame, channel, row, column); of a vector, as one."""
        self.scales = _root_mean_squares(films), _root_mean_squares(films.diff(dim=-4))

    def forward(self, state: Tensor) -> Tensor:
        """(batch, channel, row, column) → the same shape."""
        features = state / self.scales[0]
        for number, layer in enumerate(self.layers):
            if number:
                features = functional.silu(features)
            if self.is_periodic:
                features = functional.pad(features, (KERNEL_SIZE // 2, KERNEL_SIZE // 2, 0, 0), mode="circular")
            features = layer(features) if isinstance(layer, nn.Conv2d) else layer(layer.in_type(features)).tensor
        return state + self.gain * self.scales[1] * features


def _root_mean_squares(films: Tensor) -> Tensor:
    """(3, 1, 1)."""
    squares = films.square().mean(dim=(-1, -2)).flatten(0, -2).mean(dim=0)
    velocity, smoke = squares[:2].mean(), squares[2]
    return squares.new_tensor([velocity, velocity, smoke]).sqrt()[:, None, None]
