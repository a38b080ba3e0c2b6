"""The time of a step of training under a gate on softness, as a ratio to the layer without one and to two layers.

    python -m benchmarks.speed.gates

Both sides are called in turn in one process. The ratio is the median of neighbouring calls, with their quartiles.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from escnn import gspaces
from torch import Tensor, nn

from benchmarks.speed.sides import DEVICE, Call, OnTensors, alternate, regular
from escnn_relaxed import RelaxedR2Conv, gate_softness

SOFT_IN = {"rotation": ("rotation",), "rotation and translation": ("rotation", "translation")}
FIELDS, BATCH, SIDE = 8, 8, 32


def step(module: nn.Module, gate: Callable[[], float | Tensor] | None = None) -> Call:
    """Forward and backward, with gradients to the features, the weights and the gate."""
    channels = next(part for part in module.modules() if isinstance(part, RelaxedR2Conv)).in_type.size
    features = torch.randn(BATCH, channels, SIDE, SIDE, device=DEVICE, requires_grad=True)

    def call() -> None:
        if gate is None:
            module(features).sum().backward()
            return
        with gate_softness(module, gate()):
            module(features).sum().backward()

    return call


class TwoLayers(nn.Module):
    """A soft layer and a strict one, and the weighted sum of their outputs: what a gate replaces."""

    def __init__(self, soft: nn.Module, strict: nn.Module) -> None:
        super().__init__()
        self.soft, self.strict = soft, strict

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C_in, H, W) → (batch, C_out, H, W)."""
        gate = torch.rand(len(features), 1, 1, 1, device=DEVICE, requires_grad=True)
        strict: Tensor = self.strict(features)
        return torch.lerp(strict, self.soft(features), gate)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15)
    repetitions = parser.parse_args().repetitions
    fields = regular(gspaces.rot2dOnR2(8), FIELDS)
    gates: dict[str, Callable[[], float | Tensor]] = {
        "one number": lambda: 0.5,
        "for each input": lambda: torch.rand(BATCH, device=DEVICE, requires_grad=True),
        "for each pixel": lambda: torch.rand(BATCH, 1, SIDE, SIDE, device=DEVICE, requires_grad=True),
    }
    print(
        "| soft in | gate | to the layer without | quartiles | to two layers | quartiles |\n|---|---|---|---|---|---|"
    )
    for name, relax in SOFT_IN.items():
        soft = OnTensors(RelaxedR2Conv(fields, fields, 5, padding=2, relax=relax)).to(DEVICE)
        strict = OnTensors(RelaxedR2Conv(fields, fields, 5, padding=2, relax=None)).to(DEVICE)
        for kind, gate in gates.items():
            cells = []
            for other in (step(soft), step(TwoLayers(soft, strict))):
                found = alternate(step(soft, gate), other, repetitions)
                cells.append(f"{found.median:.2f} | {found.low:.2f}–{found.high:.2f}")
            print(f"| {name} | {kind} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
