"""Modules of escnn on plain tensors, for exported networks; nothing here needs escnn.

Feature maps are (batch, C, …), with any number of axes; C are the channels of fields side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn


def _channels_by_field(features: Tensor, size: int) -> Tensor:
    """(batch, fields · size, …) → (batch, fields, size, …)."""
    # Not by `unflatten`, after which torch's older exporter to ONNX holds the batch size for constant.
    batch, channels, *pixels = features.shape
    return features.reshape(batch, channels // size, size, *pixels)


def _by_channel(values: Tensor, like: Tensor) -> Tensor:
    """(C,) → (C, 1, …), with a 1 for each axis of images (batch, C, …)."""
    return values.view(-1, *[1] * (like.dim() - 2))


class _ByField(nn.Module):
    """A module that divides channels into fields, with the number of channels of each."""

    field_of_channel: Tensor

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = list(sizes)
        # (size, number) for fields of equal size that stand side by side.
        self.runs = [(size, len(list(run))) for size, run in groupby(self.sizes)]
        numbers = [number for number, size in enumerate(sizes) for _ in range(size)]
        self.register_buffer("field_of_channel", torch.tensor(numbers), persistent=False)

    def fields(self, features: Tensor) -> list[Tensor]:
        """(batch, C, …) → (batch, fields, size, …) for each run of fields of a size."""
        parts = features.split([size * count for size, count in self.runs], dim=1)
        return [_channels_by_field(part, size) for part, (size, _) in zip(parts, self.runs, strict=True)]

    def squares(self, features: Tensor) -> Tensor:
        """Return ‖·‖² of each field: (batch, C, …) → (batch, fields, …)."""
        return torch.cat([part.square().sum(dim=2) for part in self.fields(features)], dim=1)


class FieldMaximum(_ByField):
    """The largest channel of each field."""

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, …) → (batch, fields, …)."""
        return torch.cat([part.amax(dim=2) for part in self.fields(features)], dim=1)


class FieldNorm(_ByField):
    """The norm of each field."""

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, …) → (batch, fields, …)."""
        return torch.cat([part.norm(dim=2) for part in self.fields(features)], dim=1)


class NormMaxPool(_ByField):
    """The vector of the largest norm in each window, for each field; ``pool`` gives the indices of largest numbers."""

    def __init__(self, sizes: Sequence[int], pool: nn.MaxPool2d) -> None:
        super().__init__(sizes)
        self.pool = pool

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, H, W) → (batch, C, H_out, W_out)."""
        _, pixels = self.pool(self.squares(features).sqrt())
        of_channels = pixels.index_select(1, self.field_of_channel)
        return features.flatten(2).gather(2, of_channels.flatten(2)).view_as(of_channels)


class NormNonLinearity(_ByField):
    """Norms of fields, less exp ``log_bias`` (fields,), go through a function, those below ``least`` to 0."""

    log_bias: Tensor | None

    def __init__(self, sizes: Sequence[int], function: nn.Module, log_bias: Tensor | None, least: float) -> None:
        super().__init__(sizes)
        self.function = function
        self.least = least
        self.log_bias = None if log_bias is None else nn.Parameter(log_bias)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, …) → the same."""
        squares = self.squares(features)
        # The slope of the root has no bound at 0.
        norms = squares.clamp_min(self.least**2).sqrt()
        new = norms if self.log_bias is None else norms - _by_channel(self.log_bias.exp(), norms)
        factors = torch.where(squares > self.least**2, self.function(new) / norms, 0)
        return features * factors.index_select(1, self.field_of_channel)


class Squash(nn.Module):
    """Norm n → n / (1 + n)."""

    def forward(self, norms: Tensor) -> Tensor:
        """Element by element."""
        return norms / (1 + norms)


class Concatenated(nn.Module):
    """A function of each channel and of its negative, side by side."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, …) → (batch, 2C, …)."""
        return torch.stack([self.function(features), self.function(-features)], dim=2).flatten(1, 2)


class VectorField(nn.Module):
    """The largest of the values at N angles, as a vector in its direction; 0 where all are negative."""

    def __init__(self, angles: int) -> None:
        super().__init__()
        self.angles = angles

    def forward(self, features: Tensor) -> Tensor:
        """(batch, N·fields, …) → (batch, 2·fields, …)."""
        lengths, numbers = _channels_by_field(features, self.angles).max(dim=2)
        angles = numbers.to(features.dtype) * (2 * math.pi / self.angles)
        return (torch.stack([angles.cos(), angles.sin()], dim=2) * lengths.relu().unsqueeze(2)).flatten(1, 2)


class Gate(nn.Module):
    """Some channels, in the order of the output, times the sigmoids of as many gates less a bias (C_out,)."""

    channels: Tensor
    gates: Tensor

    def __init__(self, channels: Sequence[int], gates: Sequence[int], bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("channels", torch.tensor(channels), persistent=False)
        self.register_buffer("gates", torch.tensor(gates), persistent=False)
        self.bias = nn.Parameter(bias)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, …) → (batch, C_out, …)."""
        gates = torch.sigmoid(features.index_select(1, self.gates) - _by_channel(self.bias, features))
        return features.index_select(1, self.channels) * gates


class Mask(nn.Module):
    """A fixed factor for each pixel."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, …) → the same."""
        return features * self.mask


class ByChannels(nn.Module):
    """Modules on some of the channels each, given by their numbers; the outputs side by side."""

    def __init__(self, branches: Sequence[tuple[Tensor, nn.Module]]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(module for _, module in branches)
        for number, (channels, _) in enumerate(branches):
            self.register_buffer(f"channels_{number}", channels, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, …) → (batch, C_out, …)."""
        parts = [
            module(features.index_select(1, getattr(self, f"channels_{number}")))
            for number, module in enumerate(self.branches)
        ]
        return torch.cat(parts, dim=1)


class Joined(nn.Module):
    """A module that is applied to the channels of several tensors side by side."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *parts: Tensor) -> Tensor:
        """(batch, C_1, …), (batch, C_2, …), … → (batch, C_out, …)."""
        output: Tensor = self.module(torch.cat(parts, dim=1))
        return output


class Residual(nn.Module):
    """The sum of a body and a shortcut."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C_in, …) → (batch, C_out, …)."""
        total: Tensor = self.body(features) + self.shortcut(features)
        return total
