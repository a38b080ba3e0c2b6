"""Networks to copy, shown in docs/how-to/segmentation.md: a U-Net, a ResNet, a regression.

Each takes plain tensors. ``relax=None`` makes a layer strict.
"""

from __future__ import annotations

from escnn_relaxed import RelaxedR2Conv

import torch
from escnn import gspaces, nn
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

__all__ = ["Regression", "ResNet", "UNet"]


class UNet(torch.nn.Module):
    """A class for each pixel. The sides of an image are multiples of 4."""

    def __init__(self, channels: int = 3, classes: int = 2, fields: int = 8) -> None:
        super().__init__()
        gspace = gspaces.flipRot2dOnR2(4)
        self.image = FieldType(gspace, [gspace.trivial_repr] * channels)
        fine, middle, coarse = (
            FieldType(gspace, [gspace.regular_repr] * (fields * n)) for n in (1, 2, 4)
        )
        self.down = torch.nn.ModuleList(
            [
                self.block(self.image, fine),
                self.block(fine, middle),
                self.block(middle, coarse),
            ]
        )
        self.pools = torch.nn.ModuleList(
            nn.PointwiseMaxPool(of, 2) for of in (fine, middle)
        )
        self.larger = torch.nn.ModuleList(
            nn.R2Upsampling(of, scale_factor=2) for of in (coarse, middle)
        )
        self.up = torch.nn.ModuleList(
            [self.block(coarse + middle, middle), self.block(middle + fine, fine)]
        )
        scores = FieldType(gspace, [gspace.trivial_repr] * classes)
        self.classifier = RelaxedR2Conv(fine, scores, 1, relax=None)

    @staticmethod
    def block(before: FieldType, after: FieldType) -> nn.SequentialModule:
        """Return a convolution, batch norm and ReLU."""
        return nn.SequentialModule(
            RelaxedR2Conv(before, after, 3, padding=1, bias=False),
            nn.InnerBatchNorm(after),
            nn.ReLU(after),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes at each pixel, (batch, classes, H, W)."""
        fine = self.down[0](self.image(images))
        middle = self.down[1](self.pools[0](fine))
        features = self.down[2](self.pools[1](middle))
        for larger, up, skip in zip(self.larger, self.up, (middle, fine), strict=True):
            features = up(nn.tensor_directsum([larger(features), skip]))
        scores: Tensor = self.classifier(features).tensor
        return scores


class Block(nn.EquivariantModule):
    """Two convolutions and a shortcut, which is a 1×1 convolution with a stride."""

    def __init__(self, in_type: FieldType, out_type: FieldType, stride: int) -> None:
        super().__init__()
        self.in_type, self.out_type = in_type, out_type
        self.body = nn.SequentialModule(
            RelaxedR2Conv(in_type, out_type, 3, padding=1, stride=stride, bias=False),
            nn.InnerBatchNorm(out_type),
            nn.ReLU(out_type),
            RelaxedR2Conv(out_type, out_type, 3, padding=1, bias=False),
            nn.InnerBatchNorm(out_type),
        )
        self.shortcut = RelaxedR2Conv(
            in_type, out_type, 1, stride=stride, bias=False, relax=None
        )
        self.relu = nn.ReLU(out_type)

    def forward(self, features: GeometricTensor) -> GeometricTensor:
        """Return ReLU(body + shortcut)."""
        return self.relu(self.body(features) + self.shortcut(features))

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the output, which escnn's modules say."""
        shape: tuple[int, ...] = self.body.evaluate_output_shape(input_shape)
        return shape


class ResNet(torch.nn.Module):
    """A class for each image. Sides of 4n + 1 pixels halve symmetrically."""

    def __init__(self, channels: int = 3, classes: int = 10, fields: int = 8) -> None:
        super().__init__()
        gspace = gspaces.rot2dOnR2(8)
        self.image = FieldType(gspace, [gspace.trivial_repr] * channels)
        first, second, third = (
            FieldType(gspace, [gspace.regular_repr] * (fields * n)) for n in (1, 2, 4)
        )
        self.features = nn.SequentialModule(
            RelaxedR2Conv(self.image, first, 5, padding=2, bias=False),
            nn.InnerBatchNorm(first),
            nn.ReLU(first),
            Block(first, first, stride=1),
            Block(first, second, stride=2),
            Block(second, third, stride=2),
            nn.GroupPooling(third),
        )
        self.classifier = torch.nn.Linear(len(third), classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes, (batch, classes)."""
        features = self.features(self.image(images)).tensor
        scores: Tensor = self.classifier(adaptive_avg_pool2d(features, 1).flatten(1))
        return scores


class Regression(torch.nn.Module):
    """A number for each image and a vector that turns with it: an energy and a force."""

    def __init__(self, channels: int = 1, fields: int = 8) -> None:
        super().__init__()
        gspace = gspaces.rot2dOnR2(8)
        self.image = FieldType(gspace, [gspace.trivial_repr] * channels)
        hidden = FieldType(gspace, [gspace.regular_repr] * fields)
        # A vector (x, y), x to the right and y upwards, in every group.
        vector = gspace.basespace_action
        both = FieldType(gspace, [gspace.trivial_repr, vector])
        self.network = nn.SequentialModule(
            RelaxedR2Conv(self.image, hidden, 5, padding=2, bias=False),
            nn.InnerBatchNorm(hidden),
            nn.ReLU(hidden),
            RelaxedR2Conv(hidden, hidden, 5, padding=2, bias=False),
            nn.InnerBatchNorm(hidden),
            nn.ReLU(hidden),
            RelaxedR2Conv(hidden, both, 5, padding=2),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers (batch,) and the vectors (batch, 2)."""
        output = self.network(self.image(images)).tensor.mean(dim=(2, 3))
        return output[:, 0], output[:, 1:]
