"""The filter bank applied to a feature map, equation (1): h(x) = Σ_d K(d; y) f(y), y = x + d."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "ConvolutionGeometry",
    "PositionalBank",
    "as_convolution",
    "image_size",
    "integrate_non_stationary",
    "integrate_stationary",
]

# K at one tap for the positions y that a window of rows and columns cuts out of the padded image:
# (C_out, C_in/groups, H_out·W_out).
PositionalBank = Callable[[int, tuple[slice, slice]], Tensor]


@dataclass(frozen=True)
class ConvolutionGeometry:
    """Where a k×k kernel meets the image, as of ``conv2d``; ``padding`` is (rows, columns)."""

    kernel_size: int
    padding: tuple[int, int] = (0, 0)
    padding_mode: str = "zeros"
    stride: int = 1
    dilation: int = 1
    groups: int = 1

    @property
    def extent(self) -> int:
        """Pixels that the kernel spans."""
        return self.dilation * (self.kernel_size - 1) + 1

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output."""
        rows, columns = self.padding
        return (
            (height + 2 * rows - self.extent) // self.stride + 1,
            (width + 2 * columns - self.extent) // self.stride + 1,
        )

    def pad(self, features: Tensor) -> Tensor:
        """The image with its padding, in the padding mode."""
        rows, columns = self.padding
        if not rows and not columns:
            return features
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return functional.pad(features, (columns, columns, rows, rows), mode=mode)

    def window(self, tap: int, height: int, width: int) -> tuple[slice, slice]:
        """Rows and columns of the padded image that one tap reads for an output of this size."""
        row, column = divmod(tap, self.kernel_size)
        return self._reads(row, height), self._reads(column, width)

    def _reads(self, tap: int, count: int) -> slice:
        start = tap * self.dilation
        return slice(start, start + (count - 1) * self.stride + 1, self.stride)


def image_size(features: Tensor) -> tuple[int, int]:
    """Height and width as integers, which a trace holds as tensors."""
    return int(features.shape[2]), int(features.shape[3])


def as_convolution(filter_bank: Tensor, bias: Tensor | None, geometry: ConvolutionGeometry) -> nn.Conv2d:
    """A ``Conv2d`` with these weights, in memory of its own.

    Args:
        filter_bank: (C_out, C_in/groups, k, k).
        bias: (C_out,) or None.
        geometry: where taps and pixels meet.
    """
    out_channels, in_channels = filter_bank.shape[:2]
    # Without drawing weights, which would change the state of the random numbers.
    convolution: nn.Conv2d = nn.utils.skip_init(
        nn.Conv2d,
        in_channels * geometry.groups,
        out_channels,
        geometry.kernel_size,
        stride=geometry.stride,
        padding=geometry.padding,
        dilation=geometry.dilation,
        groups=geometry.groups,
        bias=bias is not None,
        padding_mode=geometry.padding_mode,
        device=filter_bank.device,
        dtype=filter_bank.dtype,
    )
    with torch.no_grad():
        convolution.weight.copy_(filter_bank)
        if bias is not None and convolution.bias is not None:
            convolution.bias.copy_(bias)
    return convolution.eval()


def integrate_stationary(
    features: Tensor, filter_bank: Tensor, bias: Tensor | None, geometry: ConvolutionGeometry
) -> Tensor:
    """K does not depend on y: a convolution.

    Args:
        features: f, (batch, C_in, H, W).
        filter_bank: (C_out, C_in/groups, k, k).
        bias: (C_out,) or None.
        geometry: where taps and pixels meet.
    """
    padding = geometry.padding
    if geometry.padding_mode != "zeros":
        features, padding = geometry.pad(features), (0, 0)
    return functional.conv2d(features, filter_bank, bias, geometry.stride, padding, geometry.dilation, geometry.groups)


def integrate_non_stationary(
    features: Tensor,
    bank_at: PositionalBank,
    taps: list[int],
    bias: Tensor | None,
    geometry: ConvolutionGeometry,
) -> Tensor:
    """K depends on y: the sum over taps as it stands, a filter for every position of one tap at a time.

    Args:
        features: f, (batch, C_in, H, W).
        bank_at: K at a tap for a window of positions.
        taps: numbers of the taps where K may be non-zero, in the order of a flattened k×k grid.
        bias: (C_out,) or None.
        geometry: where taps and pixels meet.
    """
    height, width = geometry.output_size(*image_size(features))
    padded = geometry.pad(features)
    # Not len(), which would make the batch size of an example part of a graph.
    batch, groups = padded.shape[0], geometry.groups
    answers = []
    for tap in taps:
        window = geometry.window(tap, height, width)
        bank = bank_at(tap, window)
        # A matrix product for each position and group; contiguous, or bmm copies matrix by matrix.
        bank = bank.unflatten(0, (groups, -1)).permute(3, 0, 1, 2).flatten(0, 1).contiguous()
        values = padded[:, :, window[0], window[1]].flatten(2).unflatten(1, (groups, -1))
        values = values.permute(3, 1, 2, 0).flatten(0, 1).contiguous()
        answers.append(torch.bmm(bank, values))
    answer = sum(answers[1:], answers[0])
    answer = answer.unflatten(0, (height * width, groups)).flatten(1, 2)
    result = answer.permute(2, 1, 0).reshape(batch, answer.shape[1], height, width)
    # Autocast casts the bias of a convolution too.
    return result if bias is None else result + bias.to(result.dtype).view(-1, 1, 1)
