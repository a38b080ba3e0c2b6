"""The cost of `RelaxedR3Conv` beside `R3Conv`: training, evaluation, memory and construction.

    python -m benchmarks.speed.volumes [--layers PART] [--repetitions 9]

One thread. Training is forward and backward, on 4 volumes of 16 voxels a side. Each figure is a ratio of times, or of
memory, of both layers called in turn in one process: the median, and the quartiles.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import torch
from escnn import gspaces
from escnn.nn import FieldType, R3Conv
from torch import nn

from benchmarks.speed.sides import OnTensors
from benchmarks.speed.timing import Ratio, alternate, peak_memory
from escnn_relaxed import RelaxedR3Conv

warnings.filterwarnings("ignore")

Call = Callable[[], object]
BATCH, SIDE = 4, 16


def octahedral(fields: int) -> FieldType:
    """Regular fields of the octahedral group."""
    gspace = gspaces.octaOnR3()
    return FieldType(gspace, [gspace.regular_repr] * fields)


def irreps_of_rotations(fields: int) -> FieldType:
    """Irreps of SO(3) up to degree 2."""
    gspace = gspaces.rot3dOnR3()
    return FieldType(gspace, [gspace.irrep(degree) for degree in range(3)] * fields)


def about_an_axis(fields: int) -> FieldType:
    """Regular fields of the quarter turns about z."""
    gspace = gspaces.rot2dOnR3(4)
    return FieldType(gspace, [gspace.regular_repr] * fields)


# The fields and k of each layer.
LAYERS: dict[str, tuple[Callable[[], FieldType], int]] = {
    "octahedral, 3 regular, 3×3×3": (lambda: octahedral(3), 3),
    "octahedral, 3 regular, 5×5×5": (lambda: octahedral(3), 5),
    "SO(3), 8 × irreps 0–2, 5×5×5": (lambda: irreps_of_rotations(8), 5),
    "C4 about z, 8 regular, 5×5×5": (lambda: about_an_axis(8), 5),
}


def step(layer: Any) -> Call:
    """Forward and backward."""
    module, wanted = OnTensors(layer.train()), list(layer.parameters())
    volumes = torch.randn(BATCH, layer.in_type.size, SIDE, SIDE, SIDE, requires_grad=True)
    with torch.no_grad():
        direction = torch.randn_like(module(volumes))
    return lambda: torch.autograd.grad(module(volumes), [volumes, *wanted], direction, allow_unused=True)


def evaluation(layer: Any) -> Call:
    """Forward without gradients, in eval mode."""
    module = OnTensors(layer).eval()
    volumes = torch.randn(BATCH, layer.in_type.size, SIDE, SIDE, SIDE)

    def call() -> None:
        with torch.no_grad():
            module(volumes)

    return call


def figures(fields_of: Callable[[], FieldType], kernel_size: int, repetitions: int) -> dict[str, Any]:
    """Every figure of one layer."""
    fields = fields_of()

    def build(kind: Any) -> nn.Module:
        layer: nn.Module = kind(fields, fields, kernel_size, padding=kernel_size // 2)
        return layer

    build(R3Conv)  # escnn keeps its basis from now on
    ours, theirs = build(RelaxedR3Conv), build(R3Conv)
    memory = [peak_memory(step(layer)) for layer in (ours, theirs)]
    return {
        "training": alternate(step(ours), step(theirs), repetitions),
        "evaluation": alternate(evaluation(ours), evaluation(theirs), repetitions),
        "memory": memory[0] / memory[1],
        "construction": alternate(lambda: build(RelaxedR3Conv), lambda: build(R3Conv), max(2, repetitions // 2)),
    }


def in_words(value: Ratio | float) -> str:
    """A ratio with its quartiles."""
    return f"{value.median:.2f} ({value.low:.2f}–{value.high:.2f})" if isinstance(value, Ratio) else f"{value:.2f}"


def main() -> None:
    """Measure each layer, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", default="", help="only layers whose name has this part")
    parser.add_argument("--repetitions", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, (fields_of, kernel_size) in LAYERS.items():
        if arguments.layers in name:
            print(name)
            for figure, value in figures(fields_of, kernel_size, arguments.repetitions).items():
                print(f"  {figure:<12} {in_words(value)}", flush=True)


if __name__ == "__main__":
    main()
