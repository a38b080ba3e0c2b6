"""Small soft layers and networks of them, for what is done with layers once they exist."""

from __future__ import annotations

import battery
import torch
from escnn import nn as enn
from layers import ROUGH, build
from torch import nn

from escnn_relaxed import RelaxedR2Conv


def soft_regular_layer(
    soft_part: str = "tied", space: str = "C4", relax: dict[str, float] | None = None, **arguments
) -> RelaxedR2Conv:
    """A layer of 3×3 on the torus between regular fields; by default soft in rotation."""
    in_type, out_type = battery.types(space, "regular -> regular")
    relax = {"rotation": 0.2} if relax is None else relax
    arguments = {"initial_softness": 0.1, "filter_frequency": ROUGH, **arguments}
    return build(in_type, out_type, padding=1, padding_mode="circular", relax=relax, soft_part=soft_part, **arguments)


def network_of(*layers: RelaxedR2Conv) -> enn.SequentialModule:
    """Layers with ReLUs between them."""
    modules: list[nn.Module] = [layers[0]]
    for layer in layers[1:]:
        modules += [enn.ReLU(layer.in_type), layer]
    return enn.SequentialModule(*modules)


class Network(nn.Module):
    """R2Conv and relaxed layers, batch norm between them, on the torus."""

    def __init__(self, soft_part: str = "tied") -> None:
        super().__init__()
        self.first = soft_regular_layer(soft_part, "D2", {"rotation": 0.15})
        fields = self.first.out_type
        self.plain = enn.R2Conv(fields, fields, 3, padding=1, padding_mode="circular").double()
        self.body = enn.SequentialModule(
            soft_regular_layer(soft_part, "D2", {"reflection": 0.5}),
            enn.InnerBatchNorm(fields).double(),
            enn.ReLU(fields),
            soft_regular_layer(soft_part, "D2", {"rotation": 0.1, "translation": 0.3}),
        )
        self.strict = soft_regular_layer(soft_part, "D2", {})
        self.features = battery.random_input(fields, 8, 8)
        for norm in self.batch_norms():
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def batch_norms(self) -> list[nn.BatchNorm3d]:
        return [module for module in self.modules() if isinstance(module, nn.BatchNorm3d)]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.strict(self.body(self.plain(self.first(self.first.in_type(features))))).tensor
