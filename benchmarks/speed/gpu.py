"""The times of layers beside `Conv2d` on a GPU, forward and backward, in several precisions.

    make gpu [OUTPUT=DIRECTORY] [SMOKE=1]
    python -m benchmarks.speed.gpu --output DIRECTORY [--minutes 4] [--smoke]

Writes gpu.md, a page for the docs, which says where no time was left. ``--smoke``: tiny, and on the CPU where there is
no GPU.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from escnn.nn import R2Conv

from benchmarks.shared.markdown import table
from benchmarks.speed.performance import machine
from benchmarks.speed.sides import SOFT_ROTATION, SOFT_TRANSLATION, Call, Setting, convolution, layer, regular, step
from benchmarks.speed.timing import alternate, captured
from escnn_relaxed import RelaxedR2Conv

GRAPHS = "CUDA graphs"
# Half a minute for each that is compiled: not all are.
COMPILED = ("soft rotation", "soft translation")
HEADER = ("setting", "what", "ratio", "quartiles", "ms of `Conv2d`")


def settings(device: str, smoke: bool) -> dict[str, Setting]:
    """Name → how everything runs."""
    plain = Setting(device, backend="eager" if smoke else "inductor")
    return {
        "float32": plain,
        "TF32": replace(plain, precision="tf32"),
        "bfloat16": replace(plain, precision="bfloat16"),
        "bfloat16, channels last": replace(plain, precision="bfloat16", channels_last=True),
        f"float32, {GRAPHS}": plain,
        "float32, compiled": replace(plain, compiled=True),
    }


def sides(smoke: bool) -> dict[str, Callable[[Setting], Call]]:
    """Name → makes a step of training, forward and backward; the first is what others are compared with."""
    rotations, fields, batch, size = (4, 1, 1, 8) if smoke else (8, 16, 64, 32)
    channels, kernel_size = rotations * fields, 3 if smoke else 7
    types, shape = regular(rotations, fields), (batch, channels, size, size)

    def of(kind: Any, types: Any, **options: Any) -> Callable[[Setting], Call]:
        return lambda setting: step(layer(kind, types, setting, kernel_size, **options), setting, *shape)

    return {
        "Conv2d": lambda setting: step(convolution(channels, setting, kernel_size), setting, *shape),
        "R2Conv": of(R2Conv, types),
        "strict": of(RelaxedR2Conv, types, relax=None),
        "soft rotation": of(RelaxedR2Conv, types, **SOFT_ROTATION),
        "soft translation": of(RelaxedR2Conv, regular(1, channels), **SOFT_TRANSLATION),
    }


def is_measured(side: str, setting: str) -> bool:
    """R2Conv reads values in each step, which no graph can hold."""
    return (side in COMPILED or "compiled" not in setting) and not (side == "R2Conv" and GRAPHS in setting)


def measured(device: str, smoke: bool, end: float) -> Iterator[list[str]]:
    """Yield a line of the table for each side in each setting, beside a plain convolution, until a time."""
    for setting_name, setting in settings(device, smoke).items():
        setting.set_precision()
        own = captured if GRAPHS in setting_name else lambda call: call
        (_, plain), *others = sides(smoke).items()
        for name, side in others:
            if not is_measured(name, setting_name):
                continue
            if time.monotonic() > end:
                yield [setting_name, name, "no time was left", "", ""]
                continue
            torch.compiler.reset()
            try:
                ratio = alternate(own(side(setting)), own(plain(setting)), 1 if smoke else 20)
            except RuntimeError as error:
                # One row less, not all of them.
                yield [setting_name, name, f"failed: {str(error).splitlines()[0]}", "", ""]
            else:
                spread = f"{ratio.low:.2f}–{ratio.high:.2f}"
                yield [setting_name, name, f"{ratio.median:.2f}", spread, f"{1000 * ratio.seconds:.2f}"]
    Setting().set_precision()


def main() -> None:
    """Measure side after side, and write after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of gpu.md")
    parser.add_argument("--minutes", type=float, default=4, help="after which nothing is started")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, one repetition, on a CPU too")
    arguments = parser.parse_args()
    if not (torch.cuda.is_available() or arguments.smoke):
        parser.error("there is no GPU here; --smoke shows on a CPU that all of it runs")
    warnings.filterwarnings("ignore", message=".*py3nj.*")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = ["# Forward and backward on a GPU, beside `Conv2d`", "    make gpu", machine(Setting(device))]
    arguments.output.mkdir(parents=True, exist_ok=True)
    lines: list[list[str]] = []
    for line in measured(device, arguments.smoke, time.monotonic() + 60 * arguments.minutes):
        print(*line, sep=", ", flush=True)
        lines.append(line)
        text = "\n\n".join([*start, table(HEADER, lines)]) + "\n"
        (arguments.output / "gpu.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
