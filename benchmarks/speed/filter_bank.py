"""The cost of a layer's filter bank, softness and construction beside ``escnn.nn.R2Conv``'s.

    python -m benchmarks.speed.filter_bank [--repetitions 20] [--fields PART]

Medians of ratios of CPU time in one process and one thread, the two sides alternating. Filter banks are built and
differentiated, as in a training step; construction is with escnn's cache of bases warm.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from typing import Any

import torch
from escnn import gspaces
from escnn import nn as enn

from benchmarks.shared.timing import alternate
from escnn_relaxed import RelaxedR2Conv


def _regular(gspace: Any, count: int) -> enn.FieldType:
    return enn.FieldType(gspace, [gspace.regular_repr] * count)


def _irreps(gspace: Any, count: int) -> enn.FieldType:
    return enn.FieldType(gspace, [gspace.irrep(0), gspace.irrep(1), gspace.irrep(2)] * count)


CASES: list[tuple[str, Callable[[], enn.FieldType]]] = [
    *(
        (f"C{n}, {f} regular", lambda n=n, f=f: _regular(gspaces.rot2dOnR2(n), f))
        for n, f in ((4, 16), (8, 16), (16, 16))
    ),
    ("D4, 16 regular", lambda: _regular(gspaces.flipRot2dOnR2(4), 16)),
    ("SO(2), 3 × 8 irreps", lambda: _irreps(gspaces.rot2dOnR2(-1), 8)),
]


def bank_step(layer: Any) -> Callable[[], None]:
    """Build and differentiate the filter bank."""
    parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]

    def step() -> None:
        bank, _ = layer.expand_parameters()
        torch.autograd.grad(bank.sum(), parameters, allow_unused=True)

    return step


def training_step(layer: Any, fields: enn.FieldType) -> Callable[[], None]:
    """Forward and backward on 16 images of 32×32 pixels."""
    images = torch.randn(16, fields.size, 32, 32)

    def step() -> None:
        layer(fields(images)).tensor.sum().backward()

    return step


def row(name: str, fields: enn.FieldType, repetitions: int) -> str:
    """One line of the table."""

    def relaxed(relax: str | None) -> RelaxedR2Conv:
        return RelaxedR2Conv(fields, fields, 5, padding=2, bias=False, relax=relax)

    def original() -> enn.R2Conv:
        return enn.R2Conv(fields, fields, 5, padding=2, bias=False)

    strict, soft, few = relaxed(None), relaxed("default"), max(repetitions // 4, 1)
    banks = [alternate(bank_step(layer), bank_step(original()), repetitions) for layer in (strict, soft)]
    built = [alternate(lambda relax=relax: relaxed(relax), original, few) for relax in (None, "default")]
    softness = alternate(lambda: soft.softness().backward(), training_step(soft, fields), few)
    return (
        f"| {name} | {1000 * banks[0].seconds:.1f} ms | {banks[0].median:.2f} | {banks[1].median:.2f} | "
        f"{1000 * built[0].seconds:.0f} ms | {built[0].median:.2f} | {built[1].median:.2f} | {softness.median:.1%} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--fields", default="", help="only cases whose name contains this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {platform.machine()}, one thread, 5×5 kernels\n")
    print(
        "| fields | R2Conv: bank | strict | soft | R2Conv: construction | strict | soft | softness() / training step |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, build in CASES:
        if arguments.fields in name:
            print(row(name, build(), arguments.repetitions), flush=True)


if __name__ == "__main__":
    main()
