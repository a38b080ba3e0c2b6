"""What sampling SO(3) changes: means and softness over 24·n rotations, against a dense grid.

python -m benchmarks.accuracy.rotation_samples
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from escnn import gspaces
from escnn.nn import FieldType
from scipy.spatial.transform import Rotation
from torch import Tensor

from escnn_relaxed import ContinuousKernel, RelaxedR3Conv

warnings.filterwarnings("ignore")

# Of the dense grid: angles about an axis, and nodes in between.
ANGLES, NODES = 28, 14
# Points of κ that are looked at: every 20th of the first 200 steered taps.
POINTS = slice(0, 200, 20)


def dense_grid() -> tuple[Tensor, Tensor]:
    """Coordinates of rotations, (R, 9), and their weights: Gauss–Legendre between two circles."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    circle = np.arange(ANGLES) * 2 * math.pi / ANGLES
    grid = np.meshgrid(circle, np.arccos(nodes), circle, indexing="ij")
    matrices = Rotation.from_euler("ZYZ", np.stack([angle.ravel() for angle in grid], axis=-1)).as_matrix()
    of_points = np.broadcast_to(weights[None, :, None], grid[0].shape).ravel()
    return torch.from_numpy(matrices.reshape(-1, 9) / math.sqrt(2)), torch.from_numpy(of_points / of_points.sum())


@torch.no_grad()
def compared(samples: int, frequency: float) -> tuple[float, float]:
    """The distance of the means over the root of the soft energy, and the softness over that of the dense grid."""
    gspace = gspaces.rot3dOnR3()
    fields = FieldType(gspace, [gspace.irrep(degree) for degree in range(3)])
    torch.manual_seed(0)
    options = {"samples": samples, "kernel": ContinuousKernel(), "relax": {"rotation": frequency}}
    bank = RelaxedR3Conv(fields, fields, 3, **options).double().bank
    taps = bank.grid.taps.flatten(0, 2)[POINTS]

    def hidden(points: Tensor) -> Tensor:
        return torch.stack([bank.kernel(tap.expand(len(points), -1), points * frequency) for tap in taps])

    points, weights = dense_grid()
    dense, sampled = hidden(points), hidden(bank.grid.domain_points(("rotation",)).flatten(0, 2))
    mean, sampled_mean = (dense * weights).sum(-1), sampled.mean(-1)
    energy = ((dense - mean[..., None]).square() * weights).sum()
    sampled_energy = (sampled - sampled_mean[..., None]).square().mean(-1).sum()
    return float((sampled_mean - mean).norm() / energy.sqrt()), float(sampled_energy / energy)


def main() -> None:
    for frequency in (0.1, 0.25, 0.5, 1.0):
        for samples in (24, 48, 96):
            distance, softness = compared(samples, frequency)
            print(f"ω′ {frequency}, {samples} rotations: means {distance:.3f} apart, softness {softness:.2f} of that")


if __name__ == "__main__":
    main()
