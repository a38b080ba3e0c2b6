"""The arguments of a network that is measured, which an isometry carries along, and noise to measure on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from escnn.gspaces import GSpace
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn

from ..checks import check_size
from .field_action import on_fibers
from .isometry import Isometry
from .pixel_grid import PixelGrid, moved

__all__ = ["Argument", "argument_beside", "faded", "noise", "without_what_leaves"]

_BATCH = 16
_SEED = 0
# Width of the smooth noise's Gaussian in pixels: cubic interpolation turns such noise at a cost of about a percent.
_BLUR = 2.0
# The part of the radius of the inscribed circle or ball over which an image is faded.
_EDGE = 0.25


@dataclass(frozen=True)
class Argument:
    """One argument of a network's forward pass.

    Attributes:
        value: a tensor where ``field_type`` is given, else anything.
        field_type: how the group acts on the channels; None for what no isometry changes.
        is_image: whether the value has pixels, (batch, C, H, W) or (batch, C, D, H, W), which an isometry moves.
        is_wrapped: whether the network takes it as a GeometricTensor.
    """

    value: Any
    field_type: FieldType | None = None
    is_image: bool = False
    is_wrapped: bool = False

    def passed(self) -> Any:
        """Return what the network is called with."""
        return self.field_type(self.value) if self.is_wrapped and self.field_type is not None else self.value

    def with_pixels(self, change: Callable[[Tensor], Tensor]) -> Argument:
        """Return the argument with another image in place of its image, and itself where it is none."""
        return replace(self, value=change(self.value)) if self.is_image else self

    def carried(self, isometry: Isometry, source: PixelGrid, target: PixelGrid, on_torus: bool) -> Argument:
        """Return the argument after an isometry: its channels turn, and the pixels of an image move."""
        if self.field_type is None:
            return self
        turned = replace(self, value=on_fibers(self.value, self.field_type, isometry, "input"))
        return turned.with_pixels(lambda image: moved(image, source, target, isometry, on_torus)[0])


def argument_beside(images: Tensor, value: Any, gspace: GSpace, place: int) -> Argument:
    """Return the argument that is passed after the images.

    Args:
        images: (batch, C, …), the first argument.
        value: a GeometricTensor turns; so does a plain tensor of the size of the images, as scalar fields.
        gspace: the symmetry of the images.
        place: of the argument among all, for the error.

    Raises:
        ValueError: for a GeometricTensor that has neither the size of the images nor a single point.
    """
    size = images.shape[2:]
    if isinstance(value, GeometricTensor):
        shape = value.tensor.shape[2:]
        if shape != size and shape.numel() != 1:
            raise ValueError(
                f"data[{place}] must have {tuple(size)} pixels as data[0] has, or one, got {tuple(value.tensor.shape)}"
            )
        return Argument(value.tensor, value.type, shape == size, is_wrapped=True)
    if isinstance(value, Tensor) and value.shape[2:] == size:
        return Argument(value, FieldType(gspace, value.shape[1] * [gspace.trivial_repr]), is_image=True)
    return Argument(value)


def noise(module: nn.Module, in_type: FieldType, input_size: Any) -> tuple[Tensor, Tensor]:
    """Return white and smooth noise of unit variance for a module, (16, C, …) each, the same in every call.

    Raises:
        TypeError: for a size that is no integer or tuple of integers.
        ValueError: for a size below 1, or a tuple of another length than the input has dimensions of space.
    """
    size = check_size("input_size", input_size, in_type.gspace.dimensionality)
    # A generator of its own, so that measuring in training changes nothing of what is drawn there.
    generator = torch.Generator().manual_seed(_SEED)
    white = torch.randn(_BATCH, in_type.size, *size, generator=generator, dtype=torch.float64)
    axes = tuple(range(2, white.dim()))
    frequencies = torch.stack(torch.meshgrid(*(torch.fft.fftfreq(count) for count in size), indexing="ij"))
    response = torch.exp(-2 * (math.pi * _BLUR) ** 2 * frequencies.square().sum(0))
    smooth = torch.fft.ifftn(torch.fft.fftn(white, dim=axes) * response, dim=axes).real
    smooth = smooth / smooth.square().mean().sqrt()
    tensors = (tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.is_floating_point())
    like = next(tensors, torch.zeros(()))
    return white.to(like), smooth.to(like)


def faded(features: Tensor) -> Tensor:
    """Return images (batch, C, …) times a window: 1 inside, falling as cos² to 0 on the circle of the outermost pixels.

    Of volumes it is a ball.
    """
    size = features.shape[2:]
    distance = torch.from_numpy((PixelGrid.of_image(*size).positions() ** 2).sum(-1) ** 0.5)
    radius = max(min(size) - 1, 1) / 2
    fall = ((distance - (1 - _EDGE) * radius) / (_EDGE * radius)).clamp(0, 1)
    return features * torch.cos(math.pi / 2 * fall).square().to(features)


def without_what_leaves(features: Tensor, pixels: Sequence[int]) -> Tensor:
    """Return images (batch, C, …) with 0 where a shift by pixels along their axes would push them out."""
    kept = torch.zeros_like(features)
    inside = [
        slice(max(0, -steps), max(0, size - max(0, steps)))
        for steps, size in zip(pixels, features.shape[2:], strict=True)
    ]
    everywhere = slice(None), slice(None), *inside
    kept[everywhere] = features[everywhere]
    return kept
