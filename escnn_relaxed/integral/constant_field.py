"""A field that does not depend on the input, appended to features or mapped by a layer. Runs without escnn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..group.points import position_functions
from .geometry import image_size


class ConstantField(nn.Module):
    """A field of the same value at every pixel, plus functions of the pixel's position.

    Args:
        value: (C,).
        action: the matrices of the M group elements, (M, d, d), of fields that depend on the position.
        frequency: ω′ of each axis, (d,).
        coefficients: those of the J functions at each element, (C, J·M).
    """

    value: Tensor
    action: Tensor
    frequency: Tensor
    coefficients: Tensor

    def __init__(self, value: Tensor, *positions: Tensor) -> None:
        super().__init__()
        self.has_positions = bool(positions)
        self.register_buffer("value", value.clone())
        for name, tensor in zip(("action", "frequency", "coefficients"), positions, strict=False):
            self.register_buffer(name, tensor.clone())

    def forward(self, features: Tensor) -> Tensor:
        """Return the field at the pixels of features, (1, C, …)."""
        value = self.value.view(1, -1, *[1] * (features.dim() - 2))
        if self.has_positions:
            size = image_size(features)
            functions = position_functions(self.action, self.frequency, size).flatten(0, 1)
            value = value + (self.coefficients @ functions).unflatten(-1, size).unsqueeze(0)
        return value.to(features.dtype).expand(-1, -1, *features.shape[2:])


class AppendedField(nn.Module):
    """Features with a field as further channels."""

    def __init__(self, field: ConstantField) -> None:
        super().__init__()
        self.field = field

    def forward(self, features: Tensor) -> Tensor:
        """Append the field: (batch, C_in, …) → (batch, C_in + C, …)."""
        field = self.field(features).expand(features.shape[0], *[-1] * (features.dim() - 1))
        return torch.cat([features, field], dim=1)


class SumWithField(nn.Module):
    """A layer, plus another layer of a field."""

    def __init__(self, layer: nn.Module, field: ConstantField, of_field: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.field = field
        self.of_field = of_field

    def forward(self, features: Tensor) -> Tensor:
        """Apply the layer and add the field: (batch, C_in, …) → (batch, C_out, …)."""
        output: Tensor = self.layer(features) + self.of_field(self.field(features))
        return output
