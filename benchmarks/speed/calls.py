"""The calls of this package's functions in a forward of a layer: how many, how deep, in how many files.

python -m benchmarks.speed.calls
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from escnn import gspaces
from escnn.nn import FieldType

import escnn_relaxed
from escnn_relaxed import ContinuousKernel, RelaxedR2Conv

PACKAGE = str(Path(escnn_relaxed.__file__).parent)


class Calls(NamedTuple):
    """The calls of a function: their number, the depth of calls within the package, and files with changes between."""

    count: int
    depth: int
    files: int
    changes: int
    names: list[str]


def count_calls(call: Callable[[], Any]) -> Calls:
    """Return the calls of the package's own functions within one call."""
    depth, deepest = 0, 0
    visited: list[str] = []
    names: list[str] = []

    def see(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth, deepest
        file = frame.f_code.co_filename
        if event not in ("call", "return") or not file.startswith(PACKAGE):
            return
        depth += 1 if event == "call" else -1
        if event == "call":
            deepest = max(deepest, depth)
            visited.append(file)
            names.append(
                f"{Path(file).stem}.{frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name}"
            )

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(before)
    changes = sum(first != second for first, second in itertools.pairwise(visited))
    return Calls(len(visited), deepest, len(set(visited)), changes, names)


def layers() -> dict[str, RelaxedR2Conv]:
    """Return the layers whose forward is counted."""
    regular = FieldType(gspaces.rot2dOnR2(8), [gspaces.rot2dOnR2(8).regular_repr] * 4)
    arguments: dict[str, dict[str, Any]] = {
        "default": {},
        "strict": {"relax": None},
        "learned ω′": {"learn_relaxation": True},
        "soft translation": {"relax": {"translation": 0.25}},
        "continuous": {"kernel": ContinuousKernel()},
    }
    return {name: RelaxedR2Conv(regular, regular, 5, padding=2, **of) for name, of in arguments.items()}


def main() -> None:
    """Print a table: training, evaluation, and the first evaluation after a change of mode."""
    print("| layer | training: calls, depth, files, changes | evaluation | first evaluation |\n|---|---|---|---|")
    for name, layer in layers().items():
        features = layer.in_type(torch.randn(1, layer.in_type.size, 16, 16))
        layer(features)
        cells = [count_calls(lambda layer=layer, features=features: layer(features))]
        layer.eval()
        with torch.no_grad():
            first = count_calls(lambda layer=layer, features=features: layer(features))
            cells += [count_calls(lambda layer=layer, features=features: layer(features)), first]
        print(f"| {name} | {' | '.join(', '.join(map(str, of[:4])) for of in cells)} |")
        if name == "default" and "--names" in sys.argv:
            print("\n".join([*cells[0].names, "----", *cells[1].names]))


if __name__ == "__main__":
    main()
