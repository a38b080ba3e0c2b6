"""A layer of features and a reference field, as the sum of two layers: of the features and of the field."""

from __future__ import annotations

from typing import Any

import torch
from escnn.group import GroupElement
from escnn.nn import EquivariantModule, GeometricTensor
from torch import Tensor, nn

from ..integral.constant_field import SumWithField
from .arguments import check_on_fields
from .reference_field import ReferenceField


class ReferencedLayer(EquivariantModule):
    """A layer of the features and a reference field, a map of ``in_type`` ⊕ the field's type as a sum of two maps.

    A convolution of channels side by side is the sum of those of each part. So the first layer keeps its weights, names
    and fields, and the field, which is the same for all inputs, costs one image.

    Attributes:
        layer: the layer of the features, as it was without the reference.
        reference: the :class:`~escnn_relaxed.ReferenceField`.
        reference_layer: a strict layer from the field to the output of ``layer``, without a bias.
    """

    def __init__(self, layer: Any, reference: ReferenceField, reference_layer: Any) -> None:
        super().__init__()
        self.in_type, self.out_type, self.space = layer.in_type, layer.out_type, layer.in_type.gspace
        self.layer = layer
        self.reference = reference
        self.reference_layer = reference_layer

    def forward(self, input: GeometricTensor) -> GeometricTensor:
        """Apply the layer to features and field together, (batch, C_in, …) → (batch, C_out, …)."""
        check_on_fields(input, self.in_type)
        output = self.layer(input)
        return GeometricTensor(output.tensor + self.added(input.tensor), self.out_type)

    def added(self, features: Tensor) -> Tensor:
        """Return what the reference adds to the output, (1, C_out, …), or (batch, …) under a gate for each input."""
        field = self.reference.field(features)
        added: Tensor = self.reference_layer(GeometricTensor(field, self.reference.reference_type)).tensor
        return added

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the layer's output."""
        shape: tuple[int, ...] = self.layer.evaluate_output_shape(input_shape)
        return shape

    @torch.no_grad()
    def export(self) -> nn.Module:
        """Return this module on plain tensors, without escnn."""
        return SumWithField(self.layer.export(), self.reference.constant_field(), self.reference_layer.export())

    def check_equivariance(self, *arguments: Any, **keywords: Any) -> list[tuple[GroupElement, float]]:
        """Check the equivariance of the layer under the elements that fix the reference; a warning names the rest."""
        fixed = [element for element, _ in self.reference.check_equivariance(verbose=False)]
        found = self.layer.check_equivariance(*arguments, **keywords)
        return [(element, error) for element, error in found if element in fixed]
