"""The calls of this package's functions within a call: how many, and how deep. A reader of the code follows them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import escnn_relaxed

PACKAGE = str(Path(escnn_relaxed.__file__).parent)


class Calls(NamedTuple):
    """The number of calls, and the depth of calls within the package."""

    count: int
    depth: int


def count_calls(call: Callable[[], Any]) -> Calls:
    """Return the calls of the package's own functions within one call."""
    count = depth = deepest = 0

    def see(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count, depth, deepest
        if event in ("call", "return") and frame.f_code.co_filename.startswith(PACKAGE):
            count += event == "call"
            depth += 1 if event == "call" else -1
            deepest = max(deepest, depth)

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(before)
    return Calls(count, deepest)
