"""The picture of the paper's three special cases, and of what lies between them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from escnn import gspaces
from matplotlib import pyplot
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional

from drawing import FONT, show
from escnn_relaxed import ContinuousKernel, RelaxedR2Conv

__all__ = ["missed_variance", "special_cases"]

PLANE = gspaces.trivialOnR2()
FIELD = PLANE.type(PLANE.trivial_repr)
SIDE = 8
FREQUENCIES = (0, 0.0625, 0.125, 0.25, 0.5, 1, 2, 4)
# What wants output weights this many times as large as the easiest map is left out.
LARGEST = 100


def layer(size: int, frequency: float, **options: object) -> RelaxedR2Conv:
    """A layer of T(2) whose domain coordinates have weights of unit size."""
    torch.manual_seed(0)
    found = RelaxedR2Conv(
        FIELD,
        FIELD,
        size,
        padding=size // 2,
        bias=False,
        relax={"translation": frequency},
        kernel=ContinuousKernel(**options),
    ).double()
    found.kernel.net.domain_weight.data.normal_()
    return found


def missed_variance(
    hidden_size: int, frequencies: Sequence[float] = FREQUENCIES
) -> list[float]:
    """The part of the variance of random weights at 8×8 pixels that a 1×1 kernel misses at each ω′, on average."""
    kernel = layer(1, 1.0, hidden_size=hidden_size).kernel
    positions = kernel.domain_points.pixels((SIDE, SIDE))
    missed = []
    for frequency in frequencies:
        kernel.frequency.set(translation=float(frequency))
        with torch.no_grad():
            features = kernel.features(kernel.net, kernel.frequency, (), positions)
        values = features.flatten(1).mT
        least = torch.linalg.matrix_norm(values, 2) / LARGEST
        # Deviations from the mean, since the variance is theirs. Each direction takes an equal part of it.
        rank = torch.linalg.matrix_rank(values - values.mean(0), atol=least, rtol=0)
        missed.append(1 - rank.item() / (SIDE**2 - 1))
    return missed


def side_by_side(banks: Tensor) -> Tensor:
    """Kernels at each pixel (rows, columns, k, k) as one image."""
    if banks.shape[-1] > 1:
        banks = functional.pad(banks, [1] * 4)
    return banks.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)


def special_cases() -> Figure:
    """The kernel at each pixel in the three special cases and between, and the missed variance against ω′."""
    product = torch.randn(SIDE, SIDE, 1, 1, generator=torch.Generator().manual_seed(3))
    soft, strict = layer(5, 0.2), layer(5, 0.0)
    pooling = layer(5, 0.0, filter_frequency={"position": 0.0}, support="disk")
    with torch.no_grad():
        panels = {
            "linear product\nlarge ω′": product,
            "between": soft.filter_banks(SIDE)[:, :, 0, 0],
            "convolution\nω′ = 0": strict.filter_bank().expand(SIDE, SIDE, 5, 5),
            "pooling\nω = ω′ = 0": pooling.filter_bank().expand(SIDE, SIDE, 5, 5),
        }
    figure = pyplot.figure(figsize=(8, 5), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[1.15, 1])
    for axes, (title, banks) in zip(upper.subplots(1, 4), panels.items(), strict=True):
        image = side_by_side(banks)
        show(axes, image, float(image.abs().max()))
        axes.set_title(title, fontsize=FONT)
    axes = lower.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    for hidden_size, colour, marker in ((32, "0.6", "o"), (160, "0.1", "s")):
        label = f"{hidden_size} hidden values"
        missed = missed_variance(hidden_size)
        places = range(len(FREQUENCIES))
        axes.plot(places, missed, color=colour, marker=marker, label=label)
    axes.set_xticks(places, [f"{frequency:g}" for frequency in FREQUENCIES])
    axes.set(ylim=(-0.04, 1.04))
    axes.set_xlabel("ω′ of translation", fontsize=FONT)
    axes.set_ylabel("variance missed", fontsize=FONT)
    axes.tick_params(labelsize=FONT)
    axes.legend(frameon=False, fontsize=FONT)
    return figure
