"""Non-linearities of escnn that plain_modules.py has not, on plain tensors; nothing here needs escnn."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .plain_modules import FieldSquares, channels_by_field

__all__ = ["Concatenated", "Fourier", "Joined", "NormMaxPool", "VectorField"]


class Fourier(nn.Module):
    """A function of values on a group, between coefficients of fields before and after.

    Args:
        sampling: (samples, coefficients), values of coefficients.
        analysis: (new coefficients, samples), coefficients of values.
        function: of each value.
    """

    sampling: Tensor
    analysis: Tensor

    def __init__(self, sampling: Tensor, analysis: Tensor, function: nn.Module) -> None:
        super().__init__()
        self.register_buffer("sampling", sampling)
        self.register_buffer("analysis", analysis)
        self.function = function

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, …) → (batch, C_out, …)."""
        fields = channels_by_field(features, self.sampling.shape[1])
        values = self.function(torch.einsum("bcf...,gf->bcg...", fields, self.sampling))
        return torch.einsum("bcg...,fg->bcf...", values, self.analysis).flatten(1, 2)


class Concatenated(nn.Module):
    """A function of each channel and of its negative, side by side."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, …) → (batch, 2C, …)."""
        return torch.stack([self.function(features), self.function(-features)], dim=2).flatten(1, 2)


class VectorField(nn.Module):
    """The largest of the values at N angles, as a vector in its direction; 0 where all are negative.

    Args:
        angles: N.
    """

    def __init__(self, angles: int) -> None:
        super().__init__()
        self.angles = angles

    def forward(self, features: Tensor) -> Tensor:
        """(batch, N·fields, …) → (batch, 2·fields, …)."""
        lengths, numbers = channels_by_field(features, self.angles).max(dim=2)
        angles = numbers.to(features.dtype) * (2 * math.pi / self.angles)
        return (torch.stack([angles.cos(), angles.sin()], dim=2) * lengths.relu().unsqueeze(2)).flatten(1, 2)


class NormMaxPool(FieldSquares):
    """Max pooling by norm: each field's vector of the largest norm in each window.

    Args:
        sizes: number of channels of each field.
        pool: the windows, with ``return_indices``.
    """

    def __init__(self, sizes: list[int], pool: nn.MaxPool2d) -> None:
        super().__init__(sizes)
        self.pool = pool

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, H, W) → (batch, C, H_out, W_out)."""
        _, pixels = self.pool(self.squares(features).sqrt())
        of_channels = pixels.index_select(1, self.field_of_channel)
        return features.flatten(2).gather(2, of_channels.flatten(2)).view_as(of_channels)


class Joined(nn.Module):
    """A module that takes the channels of several tensors as those of one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *parts: Tensor) -> Tensor:
        """(batch, C_1, …), (batch, C_2, …), … → (batch, C_out, …)."""
        output: Tensor = self.module(torch.cat(parts, dim=1))
        return output
