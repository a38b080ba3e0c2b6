"""Seams of soft translation: how far the output steps from region to region, on smooth input.

    python -m benchmarks.accuracy.seams [--draws 20]

The soft part of the output, h − strict h, of newly drawn layers on smooth random images: root mean square of its
difference between neighbouring pixels across a seam, over its own root mean square. Beside it the same between pixels
within a region, and with a kernel for every pixel, which has no seams.
"""

from __future__ import annotations

import argparse
import statistics
import warnings

import torch
from escnn import gspaces
from escnn.nn import FieldType
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv, harden_network

warnings.filterwarnings("ignore", message=".*py3nj.*")
SIDE = 64
CHANNELS = 8


def smooth_images(batch: int) -> Tensor:
    """Random images (batch, channels, side, side) that change over some 8 pixels, on the torus."""
    frequencies = torch.fft.fftfreq(SIDE) * SIDE
    low_pass = torch.exp(-(frequencies[:, None] ** 2 + frequencies**2) / (2 * 4.0**2))
    return torch.fft.ifft2(torch.fft.fft2(torch.randn(batch, CHANNELS, SIDE, SIDE)) * low_pass).real


@torch.no_grad()
def soft_output(regions: int | None, frequency: float, seed: int) -> Tensor:
    """The soft part of the output of a layer on smooth images, (batch, channels, side, side)."""
    torch.manual_seed(seed)
    gspace = gspaces.trivialOnR2()
    fields = FieldType(gspace, [gspace.trivial_repr] * CHANNELS)
    layer = RelaxedR2Conv(
        fields,
        fields,
        5,
        padding=2,
        padding_mode="circular",
        bias=False,
        relax={"translation": frequency},
        regions=regions,
    ).eval()
    images = fields(smooth_images(2))
    soft: Tensor = layer(images).tensor - harden_network(layer)(images).tensor
    return soft


def steps(soft: Tensor, regions: int) -> tuple[float, float]:
    """Relative root mean square differences of neighbouring columns: across the seams of G regions, and elsewhere."""
    squares = (soft[..., 1:] - soft[..., :-1]).square().mean(dim=(0, 1, 2))
    is_seam = (torch.arange(SIDE - 1) + 1) % (SIDE // regions) == 0
    size = soft.square().mean().sqrt()
    return float(squares[is_seam].mean().sqrt() / size), float(squares[~is_seam].mean().sqrt() / size)


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20, help="layers of each row; the median is printed")
    arguments = parser.parse_args()
    print(
        f"{SIDE}×{SIDE}, {CHANNELS} channels, kernel 5×5, softness 0.01\n\n"
        "| ω′ | regions | step across a seam | step within | of a kernel for every pixel |\n|---|---|---|---|---|"
    )
    for frequency in (0.1, 0.25, 0.5, 1.0):
        each = [soft_output(None, frequency, seed) for seed in range(arguments.draws)]
        for regions in (2, 4, 8, 16):
            if frequency > regions / 4:
                continue
            found = [steps(soft_output(regions, frequency, seed), regions) for seed in range(arguments.draws)]
            across, within = (statistics.median(values) for values in zip(*found, strict=True))
            smooth = statistics.median(steps(soft, regions)[0] for soft in each)
            print(f"| {frequency:g} | {regions} | {across:.2f} | {within:.2f} | {smooth:.2f} |", flush=True)


if __name__ == "__main__":
    main()
