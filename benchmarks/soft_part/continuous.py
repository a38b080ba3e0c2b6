"""The paper's continuous kernel at ω′ = 0 beside ``R2Conv``'s basis: errors of turned filters, and accuracy.

    python -m benchmarks.soft_part.continuous [--data DIRECTORY] [--seeds 3]

Prints the tables of "The strict part" and "Band limit of a continuous kernel" in docs/results/soft-part.md. Accuracies
are of 2,000 digits turned by any angle, 12 epochs of Adam. Takes ten minutes on one thread.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from escnn import gspaces, nn
from escnn.nn import R2Conv

from benchmarks.shared.networks import build_network
from benchmarks.shared.tasks import image_task
from benchmarks.shared.training import accuracy, fit
from benchmarks.soft_part.forms import WIDTHS
from escnn_relaxed import RelaxedR2Conv, equivariance_error
from escnn_relaxed.continuous import ContinuousKernel
from experiments.mean_and_error import mean_and_error

__all__ = ["accuracies", "turning_error"]

IMAGES, EPOCHS, SIDE = 2000, 12, 33
FILTER_FREQUENCIES = (0.03, 0.05, 0.12, 0.2)
KERNEL_SIZES = (3, 5, 7)
LAYERS = 6  # over which errors are averaged
# Network, kernel size, learning rates of R2Conv and of continuous kernels. At 0.01 two of three networks of continuous
# kernels of C8 learn little: 68 ± 12 % with 5×5 and 70 ± 7 % with 3×3.
TRAINED = (("C8 regular", 5, 1e-2, 3e-3), ("C8 regular", 3, 1e-2, 3e-3), ("SO(2) irreps, gated", 5, 3e-2, 3e-2))


def turning_error(kernel_size: int, per_pixel: float | None) -> float:
    """Return the error at a turn by 45°, on 33×33 pixels, of layers of C8 with ω per pixel; None is ``R2Conv``."""
    gspace = gspaces.rot2dOnR2(8)
    fields = nn.FieldType(gspace, [gspace.regular_repr] * 4)
    errors = []
    for seed in range(LAYERS):
        torch.manual_seed(seed)
        if per_pixel is None:
            layer = R2Conv(fields, fields, kernel_size, padding=kernel_size // 2)
        else:
            layer = RelaxedR2Conv(
                fields,
                fields,
                kernel_size,
                padding=kernel_size // 2,
                **_strict(filter_frequency=per_pixel * kernel_size / 2),
            )
        errors.append(next(row.error for row in equivariance_error(layer, SIDE).rows if row.name == "rotation 45°"))
    return sum(errors) / LAYERS


def accuracies(
    network: str, kernel_size: int, is_continuous: bool, rate: float, seeds: int, root: Path | None
) -> tuple[list[float], int]:
    """Return the test accuracy of each seed in %, and the number of parameters, with R2Conv or continuous kernels."""
    found = []
    for seed in range(seeds):
        train, test = image_task("turned", IMAGES, seed, root)
        torch.manual_seed(seed)
        module = build_network(network, WIDTHS[network], kernel_size, _strict() if is_continuous else None)
        fit(module, train, torch.optim.Adam(module.parameters(), lr=rate), EPOCHS)
        found.append(accuracy(module, test))
    return found, sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def _strict(**shaping: float) -> dict[str, Any]:
    """Arguments of a strict layer with a continuous kernel."""
    return {"relax": {"rotation": 0.0}, "kernel": ContinuousKernel(**shaping)}


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files; without, scikit-learn's digits")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for kernel_size in KERNEL_SIZES:
        errors = [turning_error(kernel_size, value) for value in (None, *FILTER_FREQUENCIES)]
        print(f"| {kernel_size}×{kernel_size} | " + " | ".join(f"{error:.3f}" for error in errors) + " |", flush=True)
    for network, kernel_size, *rates in TRAINED:
        for is_continuous, rate in zip((False, True), rates, strict=True):
            found, count = accuracies(network, kernel_size, is_continuous, rate, arguments.seeds, arguments.data)
            name = "`ContinuousKernel()`" if is_continuous else "`R2Conv`"
            print(f"{network}, {kernel_size}×{kernel_size}, {name}: {mean_and_error(found)} %, {count:,}", flush=True)


if __name__ == "__main__":
    main()
