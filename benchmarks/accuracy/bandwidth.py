"""The error off the pixel grid at each bandwidth ω of a continuous kernel, beside ``R2Conv``'s.

    python -m benchmarks.accuracy.bandwidth

C8, regular fields, ω′ = 0, a turn by 45° read at the centre of random waves, mean of six seeds. The accuracy at the
same bandwidths: ``swap.py --rows "ω, "``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from escnn import gspaces
from escnn.nn import EquivariantModule, FieldType, R2Conv

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from waves import Waves, error_at_centre

PER_PIXEL = (0.03, 0.05, 0.08, 0.12, 0.2)
CYCLES_PER_PIXEL = 0.15
SEEDS = 6


def mean_error(kernel_size: int, omega: float | None, support: str = "smooth") -> float:
    """Return the mean error of a continuous kernel with this ω, of ``R2Conv`` for None."""
    gspace = gspaces.rot2dOnR2(8)
    fields = FieldType(gspace, [gspace.regular_repr] * 2)
    errors = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        waves = Waves(fields.size, CYCLES_PER_PIXEL, size=kernel_size)
        errors.append(error_at_centre(_layer(fields, kernel_size, omega, support), waves, fields.fibergroup.element(1)))
    return sum(errors) / SEEDS


def _layer(fields: FieldType, kernel_size: int, omega: float | None, support: str) -> EquivariantModule:
    if omega is None:
        return R2Conv(fields, fields, kernel_size, bias=False).double()
    kernel = ContinuousKernel(filter_frequency=omega, support=support)
    options = {"relax": None, "strict_kernel": "continuous", "kernel": kernel}
    return RelaxedR2Conv(fields, fields, kernel_size, bias=False, **options).double()


def main() -> None:
    """Print a table, a row a kernel size."""
    print("| kernel | R2Conv | " + " | ".join(f"{w:g} per pixel" for w in PER_PIXEL) + " | 0.05, hard disk |")
    print("|" + "---|" * (3 + len(PER_PIXEL)))
    for size in (3, 5, 7, 9, 4, 6):
        errors = [mean_error(size, None), *(mean_error(size, w * size / 2) for w in PER_PIXEL)]
        errors.append(mean_error(size, 0.05 * size / 2, support="disk"))
        print(f"| {size}×{size} | " + " | ".join(f"{error:.3f}" for error in errors) + " |", flush=True)


if __name__ == "__main__":
    main()
