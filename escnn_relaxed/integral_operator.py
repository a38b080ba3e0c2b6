"""The filter bank applied to a feature map: equation (1) of the design, h(x) = Σ_d K(d; y) f(y), y = x + d."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["integrate_non_stationary", "integrate_stationary", "output_size", "pad"]


def output_size(
    size: tuple[int, int], kernel_size: int, padding: tuple[int, int], stride: int, dilation: int
) -> tuple[int, int]:
    """Height and width of the output, as of ``conv2d``."""
    height, width = (
        (n + 2 * p - dilation * (kernel_size - 1) - 1) // stride + 1
        for n, p in zip(size, padding, strict=True)
    )
    return height, width


def pad(features: Tensor, padding: tuple[int, int], padding_mode: str) -> Tensor:
    """Pad (rows, columns) on both sides; ``"zeros"`` or a mode of :func:`torch.nn.functional.pad`."""
    vertical, horizontal = padding
    if not vertical and not horizontal:
        return features
    mode = "constant" if padding_mode == "zeros" else padding_mode
    return functional.pad(features, (horizontal, horizontal, vertical, vertical), mode=mode)


def integrate_stationary(
    features: Tensor,
    filter_bank: Tensor,
    bias: Tensor | None,
    *,
    padding: tuple[int, int],
    padding_mode: str,
    stride: int,
    dilation: int,
    groups: int,
) -> Tensor:
    """K does not depend on y: a convolution (:func:`torch.nn.functional.conv2d`)."""
    if padding_mode != "zeros":
        features, padding = pad(features, padding, padding_mode), (0, 0)
    return functional.conv2d(features, filter_bank, bias, stride, padding, dilation, groups)


def integrate_non_stationary(
    features: Tensor,
    bank_at: Callable[[int, tuple[slice, slice]], Tensor],
    taps: list[int],
    bias: Tensor | None,
    *,
    kernel_size: int,
    padding: tuple[int, int],
    padding_mode: str,
    stride: int,
    dilation: int,
    groups: int,
) -> Tensor:
    """K depends on y: the sum over taps as it stands, a filter for every position of one tap at a time.

    Args:
        features: f, (batch, C_in, H, W).
        bank_at: K at one of these taps for the positions y cut out of the padded image by a window of rows and
            columns, (C_out, C_in/groups, H_out·W_out).
        taps: numbers of the taps in the support, in the order of a flattened k×k grid.
        bias: (C_out,) or None.
        kernel_size: k.
        padding: rows and columns.
        padding_mode: as of ``conv2d``.
        stride: as of ``conv2d``.
        dilation: as of ``conv2d``.
        groups: as of ``conv2d``.
    """
    height, width = output_size(features.shape[2:], kernel_size, padding, stride, dilation)
    padded = pad(features, padding, padding_mode)
    batch = padded.shape[0]
    total: Tensor | None = None
    for tap in taps:
        row, column = divmod(tap, kernel_size)
        window = _window(row * dilation, height, stride), _window(column * dilation, width, stride)
        bank = bank_at(tap, window)
        bank = bank.view(groups, -1, *bank.shape[1:])
        values = padded[:, :, window[0], window[1]].reshape(batch, groups, -1, height * width)
        term = torch.einsum("goix,bgix->bgox", bank, values)
        total = term if total is None else total + term
    if total is None:
        raise ValueError("the support has no tap")
    result = total.reshape(batch, -1, height, width)
    return result if bias is None else result + bias.view(-1, 1, 1)


def _window(start: int, count: int, stride: int) -> slice:
    """The ``count`` cells from ``start`` on that one tap reads along an axis."""
    return slice(start, start + (count - 1) * stride + 1, stride)
