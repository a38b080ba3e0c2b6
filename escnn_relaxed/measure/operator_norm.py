"""Operator norms of convolutions and of other linear maps."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..group.points import padded_index
from ..integral.stationary import Geometry, TransposedGeometry

__all__ = ["convolution_norm", "largest_singular_value"]

_LANCZOS_STEPS = 30


def convolution_norm(kernel: Tensor, size: tuple[int, int], geometry: Geometry) -> float:
    """‖·‖_op of a convolution, or of a transposed one, on images of a size, from above.

    The convolution is a restriction of one on the torus, whose norm is the largest singular value of the kernel's
    Fourier transform at any frequency. It is exact for stride 1 and circular padding that keeps the size.

    Args:
        kernel: (C_out, C_in/groups, k, k); (C_in, C_out/groups, k, k) of a transposed convolution.
        size: height and width of the image in pixels.
        geometry: where taps and pixels meet.
    """
    if isinstance(geometry, TransposedGeometry):
        # The norm of a map is that of its adjoint, on images as large as the output.
        size, geometry = geometry.output_size(*size), geometry.adjoint
    # Fourier transforms in half precision overflow, or do not exist.
    kernel = kernel.detach().to(torch.promote_types(kernel.dtype, torch.float32))
    height, width = size
    rows, columns = geometry.padding
    output = geometry.output_size(height, width)
    if geometry.padding_mode == "circular":
        torus = height, width
        copies = math.ceil(output[0] * geometry.stride / height) * math.ceil(output[1] * geometry.stride / width)
    else:
        torus = height + 2 * rows, width + 2 * columns
        copies = _copies(height, rows, geometry.padding_mode) * _copies(width, columns, geometry.padding_mode)
    frequencies = [torch.fft.fftfreq(n, dtype=kernel.dtype, device=kernel.device) for n in torus]
    taps = torch.arange(geometry.kernel_size, device=kernel.device) * geometry.dilation
    waves = [torch.exp(-2j * math.pi * frequency[:, None] * taps) for frequency in frequencies]
    largest = 0.0
    for block in kernel.chunk(geometry.groups):
        transform = torch.einsum("ua,vb,oiab->uvoi", waves[0], waves[1], block.to(waves[0].dtype))
        largest = max(largest, float(torch.linalg.matrix_norm(transform, ord=2).max()))
    return largest * math.sqrt(copies)


def _copies(size: int, padding: int, mode: str) -> int:
    """How many pixels of the padded image are copies of the same one, at most."""
    index = padded_index(size, padding, mode)
    return int(np.unique(index, return_counts=True)[1].max())


def largest_singular_value(linear: Callable[[Tensor], Tensor], shape: tuple[int, ...], like: Tensor) -> float:
    """The largest singular value of a linear map, from below, by Golub, Kahan and Lanczos' bidiagonalisation.

    Args:
        linear: a map of tensors (1, …) that autograd can differentiate.
        shape: of its arguments, without the leading 1.
        like: their dtype and device.
    """
    generator = torch.Generator().manual_seed(0)
    right = torch.randn(1, *shape, generator=generator).to(like)
    rights = [right / right.norm()]
    lefts: list[Tensor] = []
    diagonal: list[float] = []
    above: list[float] = []
    tiny = torch.finfo(like.dtype).eps
    for _ in range(_LANCZOS_STEPS):
        with torch.enable_grad():
            point = rights[-1].requires_grad_()
            found = linear(point)
            left = _orthogonal(found.detach(), lefts)
            diagonal.append(float(left.norm()))
            if diagonal[-1] <= tiny * max(diagonal):
                break
            lefts.append(left / diagonal[-1])
            (right,) = torch.autograd.grad(found, point, lefts[-1])
        right = _orthogonal(right, [v.detach() for v in rights])
        above.append(float(right.norm()))
        if above[-1] <= tiny * max(diagonal):
            break
        rights.append(right / above[-1])
    size = len(diagonal)
    band = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    band += torch.diag(torch.tensor(above[: size - 1], dtype=torch.float64), 1)
    return float(torch.linalg.matrix_norm(band, ord=2))


def _orthogonal(vector: Tensor, others: list[Tensor]) -> Tensor:
    """The vector less its projection on orthonormal others; taken away twice, as rounding leaves a rest."""
    for _ in range(2):
        for other in others:
            vector = vector - (vector * other).sum() * other
    return vector
