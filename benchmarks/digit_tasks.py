"""Digits under different amounts of symmetry, and the small network that the accuracy benchmark trains on them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from escnn import gspaces
from escnn import nn as enn
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from escnn_relaxed import RelaxedR2Conv

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from mnist_files import mnist_split

__all__ = ["FIELDS", "TASKS", "DigitNetwork", "Split", "digit_task"]

Split = tuple[Tensor, Tensor]
# Largest angle in radians by which the images of a task are turned.
TASKS = {"upright": 0.0, "within 60°": math.pi / 3, "turned": math.pi}
TEST_IMAGES = 4000


def digit_task(name: str, images: int, seed: int, root: Path | None) -> tuple[Split, Split]:
    """Training and test split on 29×29 pixels, each image turned by its own random angle.

    MNIST's own splits, or without ``root`` scikit-learn's bundled digits, which are few and only good for a trial.

    ``"quadrant"`` instead puts each digit, halved in size, into a random quadrant, and the class is the digit
    plus the number of the quadrant modulo 10: position matters. ``"in a quadrant"`` asks for the digit alone.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    splits = []
    for split, count in (("train", images), ("t10k", TEST_IMAGES)):
        pixels, labels = _bundled_digits(split) if root is None else _mnist(root, split)
        chosen = torch.randperm(len(pixels), generator=generator)[:count]
        digits = functional.pad(pixels[chosen], (0, 1, 0, 1))
        classes = labels[chosen]
        if name in TASKS:
            angles = (torch.rand(len(digits), generator=generator) * 2 - 1) * TASKS[name]
            splits.append((_turned(digits, angles), classes))
        else:
            quadrants = torch.randint(4, (len(digits),), generator=generator)
            moved = _in_quadrants(digits, quadrants)
            splits.append((moved, (classes + quadrants) % 10 if name == "quadrant" else classes))
    return splits[0], splits[1]


def _mnist(root: Path, split: str) -> Split:
    pixels, labels = (torch.from_numpy(array.copy()) for array in mnist_split(root, split))
    return pixels[:, None].float() / 255, labels.long()


def _bundled_digits(split: str) -> Split:
    digits = load_digits()
    half = slice(0, None, 2) if split == "train" else slice(1, None, 2)
    pixels = torch.from_numpy(digits.images[half]).float()[:, None] / 16
    return functional.interpolate(pixels, size=28, mode="bilinear"), torch.from_numpy(digits.target[half]).long()


def _turned(images: Tensor, angles: Tensor) -> Tensor:
    cosine, sine, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    rows = [torch.stack([cosine, -sine, zero], -1), torch.stack([sine, cosine, zero], -1)]
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def _in_quadrants(images: Tensor, quadrants: Tensor) -> Tensor:
    small = functional.interpolate(images, size=14, mode="bilinear", antialias=True)
    result = torch.zeros_like(images)
    for quadrant in range(4):
        row, column = divmod(quadrant, 2)
        members = quadrants == quadrant
        result[members, :, 15 * row : 15 * row + 14, 15 * column : 15 * column + 14] = small[members]
    return result


def _regular(gspace: Any, width: int) -> tuple[list[Any], Callable[[enn.FieldType], nn.Module]]:
    return [gspace.regular_repr] * width, enn.ReLU


def _mixed(gspace: Any, width: int) -> tuple[list[Any], Callable[[enn.FieldType], nn.Module]]:
    quotient = gspace.quotient_repr(2)
    fields = [gspace.regular_repr, gspace.regular_repr, quotient, gspace.trivial_repr] * max(width // 3, 1)
    return fields, enn.ReLU


def _plain(gspace: Any, width: int) -> tuple[list[Any], Callable[[enn.FieldType], nn.Module]]:
    return [gspace.trivial_repr] * (2 * width), enn.ReLU


# Name of a family of field types → its gspace and the fields of a layer of some width.
FIELDS: dict[str, tuple[Callable[[], Any], Callable[[Any, int], Any]]] = {
    "C8 regular": (lambda: gspaces.rot2dOnR2(8), _regular),
    "C8 regular, quotient, trivial": (lambda: gspaces.rot2dOnR2(8), _mixed),
    "D4 regular": (lambda: gspaces.flipRot2dOnR2(4), _regular),
    "D8 regular": (lambda: gspaces.flipRot2dOnR2(8), _regular),
    "plain CNN": (gspaces.trivialOnR2, _plain),
}


class DigitNetwork(nn.Module):
    """Four convolutions with batch norm, anti-aliased pooling, group and spatial pooling, one linear layer.

    Args:
        family: a name in :data:`FIELDS`.
        widths: fields of each convolution.
        kernel_size: k of all but the first convolution, whose k is 2 larger.
        options: arguments of ``RelaxedR2Conv``; None for ``R2Conv``.
    """

    def __init__(self, family: str, widths: tuple[int, ...], kernel_size: int, options: dict[str, Any] | None) -> None:
        super().__init__()
        build_gspace, build_fields = FIELDS[family]
        gspace = build_gspace()
        fields = self.in_type = enn.FieldType(gspace, [gspace.trivial_repr])
        modules: list[nn.Module] = []
        for number, width in enumerate(widths):
            representations, activation = build_fields(gspace, width)
            size = kernel_size + 2 if number == 0 else kernel_size
            out_type = enn.FieldType(gspace, representations)
            modules += [
                _convolution(fields, out_type, size, options),
                enn.InnerBatchNorm(out_type),
                activation(out_type),
            ]
            if number < len(widths) - 1:
                modules.append(enn.PointwiseAvgPoolAntialiased(out_type, 0.66, 2))
            fields = out_type
        modules.append(enn.GroupPooling(fields))
        self.body = enn.SequentialModule(*modules)
        self.head = nn.Linear(len(fields), 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, 10) of images (batch, 1, H, W)."""
        features: Tensor = self.body(self.in_type(images)).tensor
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


def _convolution(
    in_type: enn.FieldType, out_type: enn.FieldType, kernel_size: int, options: dict[str, Any] | None
) -> nn.Module:
    arguments = {"kernel_size": kernel_size, "padding": kernel_size // 2, "bias": False}
    if options is None:
        return enn.R2Conv(in_type, out_type, **arguments)
    return RelaxedR2Conv(in_type, out_type, **arguments, **options)
