"""The calls of this package's functions within a call, which a reader of the code follows: how many, and how deep."""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from escnn import gspaces
from escnn.nn import SequentialModule

import escnn_relaxed
from benchmarks.speed.sides import regular
from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence

PACKAGE = str(Path(escnn_relaxed.__file__).parent)


# The number of calls, and the depth of calls within the package.
Calls = namedtuple("Calls", ["count", "depth"])


def of_second(call: Callable[[], Any]) -> Calls:
    """Return the calls of the package's own functions when a call is made for the second time."""
    count = depth = deepest = 0

    def see(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count, depth, deepest
        if event in ("call", "return") and frame.f_code.co_filename.startswith(PACKAGE):
            count += event == "call"
            depth += 1 if event == "call" else -1
            deepest = max(deepest, depth)

    call()
    before = sys.getprofile()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(before)
    return Calls(count, deepest)


def counts() -> dict[str, Calls]:
    """Return the calls of what users do most with a default layer, and of an update."""
    gspace = gspaces.rot2dOnR2(8)
    image, fields = gspace.type(*[gspace.trivial_repr] * 8), regular(gspace, 8)
    layer = RelaxedR2Conv(fields, fields, 5, padding=2)
    features = fields(torch.randn(1, fields.size, 16, 16))
    evidence = SoftnessEvidence(SequentialModule(RelaxedR2Conv(image, fields, 5), RelaxedR2Conv(fields, image, 5)), 100)
    images = image(torch.randn(10, image.size, 9, 9))
    found = {"training forward": of_second(lambda: layer(features)), "softness()": of_second(layer.softness)}
    layer.eval()
    with torch.no_grad():
        found["forward in evaluation"] = of_second(lambda: layer(features))
    found["update of the evidence of two layers"] = of_second(lambda: evidence.update(images))
    return {**found, "export()": of_second(layer.export)}
