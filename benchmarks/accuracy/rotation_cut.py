"""The jump of the kernel where the angle jumps from π to −π, for each form of the rotation's coordinate and ω′.

    python -m benchmarks.accuracy.rotation_cut

The change of the kernel's hidden values over the cut, over their distance at two random angles (root mean squares over
points of the filter and networks): 0 for a smooth kernel, 1 where the two sides have nothing in common.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from escnn_relaxed.kernel.nets import FourierKernel

FREQUENCIES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
FORMS = ("circle", "log")
NETWORKS = 50
ANGLES = 720


@torch.no_grad()
def jump(form: str, frequency: float) -> float:
    """The relative change over the cut."""
    angles = np.linspace(-math.pi, math.pi, ANGLES + 1)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    coordinates = torch.from_numpy(circle if form == "circle" else angles[:, None] / (2 * math.pi)).float()
    changes = distances = 0.0
    for seed in range(NETWORKS):
        torch.manual_seed(seed)
        kernel = FourierKernel(2, coordinates.shape[-1])
        if form == "log":
            kernel.make_periodic([], [0])
        hidden = kernel(0.3 * torch.randn(20, 1, 2), frequency * coordinates[None])
        changes += float((hidden[..., 0] - hidden[..., -1]).square().mean())
        distances += float(2 * hidden[..., 1:].var(dim=-1).mean())
    return math.sqrt(changes / distances)


def main() -> None:
    """Print the table."""
    print("| ω′ | " + " | ".join(f"{frequency:g}" for frequency in FREQUENCIES) + " |")
    print("|---|" + "---|" * len(FREQUENCIES))
    for form in FORMS:
        print(f"| {form} | " + " | ".join(f"{jump(form, frequency):.2g}" for frequency in FREQUENCIES) + " |")


if __name__ == "__main__":
    main()
