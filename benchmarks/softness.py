"""Softness of layers whose weights stay: by ω′, by the size of the image, by the number of samples.

    python -m benchmarks.softness

Prints the figures of docs/concepts/mathematics.md and how far its samples of continuous groups are from many more.
Takes a minute on one thread.
"""

from __future__ import annotations

import torch
from escnn import gspaces, nn

from escnn_relaxed import RelaxedR2Conv, RelaxedR3Conv

FREQUENCIES = (0.1, 0.25, 0.5, 1.0)
SIZES = (2, 4, 8, 16, 33)


def by_frequency() -> list[float]:
    """Return s of a layer of C8 at each ω′, with weights that have s = 0.1 at 0.25."""
    torch.manual_seed(0)
    gspace = gspaces.rot2dOnR2(8)
    fields = nn.FieldType(gspace, [gspace.regular_repr] * 8)
    return _at_each(RelaxedR2Conv(fields, fields, 5, initial_softness=0.1))


def by_size() -> list[float]:
    """Return s that a layer of 5×5 kernels has on images of each size, where ``softness()`` is 0.3."""
    torch.manual_seed(0)
    plane = gspaces.trivialOnR2()
    fields = nn.FieldType(plane, [plane.trivial_repr] * 8)
    layer = RelaxedR2Conv(fields, fields, 5, padding=2, relax=("translation",), initial_softness=0.3)
    return [layer.softness(size=size).item() for size in SIZES]


def by_samples(samples: int, in_space: bool) -> list[float]:
    """Return s at each ω′ of a layer of SO(2), or of SO(3), that is sampled by so many rotations."""
    gspace = gspaces.rot3dOnR3() if in_space else gspaces.rot2dOnR2(-1)
    fields = nn.FieldType(gspace, [gspace.irrep(frequency) for frequency in range(2 if in_space else 3)])
    layer = (RelaxedR3Conv if in_space else RelaxedR2Conv)(fields, fields, 3 if in_space else 5, samples=samples)
    torch.manual_seed(0)
    for weights in (layer.weights, *layer.soft_parameters()):
        torch.nn.init.normal_(weights)
    return _at_each(layer)


def _at_each(layer: RelaxedR2Conv | RelaxedR3Conv) -> list[float]:
    """Return s at each ω′."""
    found = []
    for frequency in FREQUENCIES:
        layer.set_domain_frequency(rotation=frequency)
        found.append(layer.softness().item())
    return found


def main() -> None:
    """Print all."""
    torch.set_num_threads(1)
    print("ω′ " + ", ".join(f"{w:g}: {s:.3f}" for w, s in zip(FREQUENCIES, by_frequency(), strict=True)))
    print("pixels " + ", ".join(f"{size}: {s:.2f}" for size, s in zip(SIZES, by_size(), strict=True)))
    for name, in_space, (*few, most) in (("SO(2)", False, (4, 8, 16, 32, 128)), ("SO(3)", True, (24, 48, 96))):
        dense = by_samples(most, in_space)
        for samples in few:
            ratios = [s / of for s, of in zip(by_samples(samples, in_space), dense, strict=True)]
            print(f"| {name}, {samples} | " + " | ".join(f"{ratio:.3f}" for ratio in ratios) + " |")


if __name__ == "__main__":
    main()
