"""Modules of escnn on plain tensors, for exported networks; nothing here needs escnn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

__all__ = [
    "ByChannels",
    "ByField",
    "FieldMaximum",
    "FieldNorm",
    "FieldSquares",
    "Gate",
    "Mask",
    "NormNonLinearity",
    "Residual",
    "Squash",
    "channels_by_field",
]


def channels_by_field(features: Tensor, size: int) -> Tensor:
    """(batch, fields · size, …) → (batch, fields, size, …).

    Not by ``unflatten``, after which torch's older exporter to ONNX holds the batch size for constant.
    """
    batch, channels, *pixels = features.shape
    return features.reshape(batch, channels // size, size, *pixels)


def _by_channel(values: Tensor, like: Tensor) -> Tensor:
    """(C,) → (C, 1, …), with a 1 for each axis of images (batch, C, …)."""
    return values.view(-1, *[1] * (like.dim() - 2))


class ByField(nn.Module):
    """A module that divides channels into fields.

    Args:
        sizes: number of channels of each field.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = list(sizes)
        # (size, number) for fields of equal size that stand side by side.
        self.runs = [(size, len(list(run))) for size, run in groupby(self.sizes)]

    def fields(self, features: Tensor) -> list[Tensor]:
        """(batch, C, …) → (batch, fields, size, …) for each run of fields of a size."""
        parts = features.split([size * count for size, count in self.runs], dim=1)
        return [channels_by_field(part, size) for part, (size, _) in zip(parts, self.runs, strict=True)]

    def extra_repr(self) -> str:
        """Number and size of the fields."""
        return f"{len(self.sizes)} fields of {sorted(set(self.sizes))} channels"


class FieldMaximum(ByField):
    """The largest channel of each field: (batch, C, …) → (batch, fields, …)."""

    def forward(self, features: Tensor) -> Tensor:
        """One channel for each field."""
        return torch.cat([part.amax(dim=2) for part in self.fields(features)], dim=1)


class FieldSquares(ByField):
    """A module that takes ‖·‖² of each field.

    Args:
        sizes: number of channels of each field.
    """

    field_of_channel: Tensor

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(sizes)
        numbers = [number for number, size in enumerate(sizes) for _ in range(size)]
        self.register_buffer("field_of_channel", torch.tensor(numbers), persistent=False)

    def squares(self, features: Tensor) -> Tensor:
        """(batch, C, …) → (batch, fields, …)."""
        return torch.cat([part.square().sum(dim=2) for part in self.fields(features)], dim=1)


class FieldNorm(ByField):
    """The norm of each field: (batch, C, …) → (batch, fields, …)."""

    def forward(self, features: Tensor) -> Tensor:
        """One channel for each field."""
        return torch.cat([part.norm(dim=2) for part in self.fields(features)], dim=1)


class Squash(nn.Module):
    """Norm n → n / (1 + n)."""

    def forward(self, norms: Tensor) -> Tensor:
        """Element by element."""
        return norms / (1 + norms)


class NormNonLinearity(FieldSquares):
    """Fields keep their direction; their norms go through a function.

    Args:
        sizes: number of channels of each field.
        function: new norms of old ones.
        log_bias: (fields,), what is subtracted from norms before, as logarithm; or None.
        least: fields of a smaller norm become 0.
    """

    log_bias: Tensor | None

    def __init__(self, sizes: Sequence[int], function: nn.Module, log_bias: Tensor | None, least: float) -> None:
        super().__init__(sizes)
        self.function = function
        self.least = least
        self.log_bias = None if log_bias is None else nn.Parameter(log_bias)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, H, W) → the same."""
        squares = self.squares(features)
        # The slope of the root has no bound at 0.
        norms = squares.clamp_min(self.least**2).sqrt()
        new = norms if self.log_bias is None else norms - _by_channel(self.log_bias.exp(), norms)
        factors = torch.where(squares > self.least**2, self.function(new) / norms, 0)
        return features * factors.index_select(1, self.field_of_channel)


class Gate(nn.Module):
    """Channels times the sigmoids of other channels.

    Args:
        channels: the channels that are gated, in the order of the output.
        gates: the channel that gates each of them.
        bias: (C_out,), what is subtracted from each gate.
    """

    channels: Tensor
    gates: Tensor

    def __init__(self, channels: Sequence[int], gates: Sequence[int], bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("channels", torch.tensor(channels), persistent=False)
        self.register_buffer("gates", torch.tensor(gates), persistent=False)
        self.bias = nn.Parameter(bias)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, H, W) → (batch, C_out, H, W)."""
        gates = torch.sigmoid(features.index_select(1, self.gates) - _by_channel(self.bias, features))
        return features.index_select(1, self.channels) * gates


class Mask(nn.Module):
    """A module that multiplies each pixel by a fixed factor."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, H, W) → the same."""
        return features * self.mask


class ByChannels(nn.Module):
    """Modules on some of the channels each, their outputs side by side.

    Args:
        branches: numbers of channels, and the module that takes them.
    """

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


class Residual(nn.Module):
    """The sum of a body and a shortcut."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C_in, H, W) → (batch, C_out, H, W)."""
        total: Tensor = self.body(features) + self.shortcut(features)
        return total
