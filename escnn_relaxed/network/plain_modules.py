"""Modules of escnn on plain tensors, for exported networks; nothing here needs escnn.

Feature maps are (batch, C, …), with any number of axes; C are the channels of fields side by side.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from ..layer import gate as softness_gate


def _by_channel(values: Tensor, like: Tensor) -> Tensor:
    """Reshape (C,) to (C, 1, …), with a 1 for each axis of images (batch, C, …)."""
    return values.view(-1, *[1] * (like.dim() - 2))


class _ByField(nn.Module):
    """A module that divides channels into fields, with the number of channels of each."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = list(sizes)
        # (size, number) for fields of equal size that stand side by side.
        self.runs = [(size, len(list(run))) for size, run in groupby(self.sizes)]

    def fields(self, features: Tensor) -> list[Tensor]:
        """(batch, C, …) → (batch, fields, size, …) for each run of fields of a size."""
        # Not by `unflatten`, after which torch's older exporter to ONNX holds the batch size for constant.
        batch, _, *pixels = features.shape
        splits = features.split([size * count for size, count in self.runs], dim=1)
        sizes = zip(splits, self.runs, strict=True)
        return [part.reshape(batch, count, size, *pixels) for part, (size, count) in sizes]


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


class NormNonLinearity(_ByField):
    """Norms of fields, less exp ``log_bias`` (fields,), go through a function, those below ``least`` to 0."""

    field_of_channel: Tensor
    log_bias: Tensor | None

    def __init__(self, sizes: Sequence[int], function: nn.Module, log_bias: Tensor | None, least: float) -> None:
        super().__init__(sizes)
        self.function = function
        self.least = least
        self.log_bias = None if log_bias is None else nn.Parameter(log_bias)
        numbers = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        self.register_buffer("field_of_channel", numbers, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, …) → the same."""
        squares = torch.cat([part.square().sum(dim=2) for part in self.fields(features)], dim=1)
        # The slope of the root has no bound at 0.
        norms = squares.clamp_min(self.least**2).sqrt()
        new = norms if self.log_bias is None else norms - _by_channel(self.log_bias.exp(), norms)
        factors = torch.where(squares > self.least**2, self.function(new) / norms, 0)
        return features * factors.index_select(1, self.field_of_channel)


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
        outputs = [
            module(features.index_select(1, getattr(self, f"channels_{number}")))
            for number, module in enumerate(self.branches)
        ]
        return torch.cat(outputs, dim=1)


class Residual(nn.Module):
    """The sum of a body and a shortcut."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C_in, …) → (batch, C_out, …)."""
        return self.body(features) + self.shortcut(features)


class GateInput(threading.local):
    """The gate of the current call, shared by all gated modules of a network; each thread has its own."""

    def __init__(self) -> None:
        self.value: Tensor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()  # a copy is in no call


class GatedSoftness(nn.Module):
    """s(x) + g (w(x) − s(x)), with the plain form w of a layer, and s of the layer that is hardened."""

    def __init__(self, whole: nn.Module, strict: nn.Module, gate: GateInput) -> None:
        super().__init__()
        self.whole = whole
        self.strict = strict
        self.gate = gate

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C_in, …) → (batch, C_out, …)."""
        whole, strict, gate = self.whole(features), self.strict(features), self.gate.value
        if gate is None:
            raise RuntimeError(
                "GatedSoftness is called by the network that takes the gate, and not alone: this thread is in no call "
                "of it"
            )
        (at_pixels,) = softness_gate.gates_at([softness_gate.Gate(gate, ())], features, strict.shape[2:])
        value = torch.as_tensor(at_pixels.value)
        return strict + value.to(strict.dtype) * (whole - strict)


class WithGate(nn.Module):
    """A network of plain modules that takes the gate on its softness as a second input."""

    def __init__(self, network: nn.Module, gate: GateInput) -> None:
        super().__init__()
        self.network = network
        self.gate = gate

    def forward(self, features: Tensor, gate: Tensor) -> Tensor:
        """Features (batch, C, …) and a gate: no dimensions, (batch,), or (batch, 1, …) → the output of the network."""
        # A hook may call the network again.
        before, self.gate.value = self.gate.value, gate
        try:
            output: Tensor = self.network(features)
        finally:
            self.gate.value = before
        return output
