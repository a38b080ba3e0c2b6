"""All that a machine with a GPU is asked for, within minutes: the tests that need one, and the speed table.

    make gpu [OUTPUT=DIRECTORY] [SMOKE=1]
    python -m benchmarks.speed.gpu --output DIRECTORY [--minutes 7] [--parts tests speed] [--smoke]

Writes gpu.json and gpu.md, a page for the docs. What there was no time for is said to be missing. ``--smoke``: tiny,
and on the CPU where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from escnn.nn import R2Conv

from benchmarks.shared.markdown import table
from benchmarks.speed.performance import machine
from benchmarks.speed.sides import SOFT_ROTATION, SOFT_TRANSLATION, Call, Setting, convolution, layer, regular, step
from benchmarks.speed.timing import alternate, captured
from escnn_relaxed import RelaxedR2Conv
from experiments.data_files import save

warnings.filterwarnings("ignore", message=".*py3nj.*")

PARTS = ("tests", "speed")
TESTS = ("tests/test_devices.py", "tests/test_cuda_graphs.py")
ROOT = Path(__file__).parents[2]
GRAPHS = "CUDA graphs"
# Half a minute for each that is compiled: not all are.
COMPILED = ("soft rotation", "soft translation")
Figures = dict[str, Any]


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
    types, images = regular(rotations, fields), (batch, channels, size)
    plane = regular(1, channels)

    def of(kind: Any, types: Any, **options: Any) -> Callable[[Setting], Call]:
        return lambda setting: step(layer(kind, types, setting, kernel_size, **options), setting, *images)

    return {
        "Conv2d": lambda setting: step(convolution(channels, setting, kernel_size), setting, *images),
        "R2Conv": of(R2Conv, types),
        "strict": of(RelaxedR2Conv, types, relax=None),
        "soft rotation": of(RelaxedR2Conv, types, **SOFT_ROTATION),
        "soft translation": of(RelaxedR2Conv, plane, **SOFT_TRANSLATION),
    }


def is_measured(side: str, setting: str) -> bool:
    """R2Conv reads values in each step, which no graph can hold."""
    return (side in COMPILED or "compiled" not in setting) and not (side == "R2Conv" and GRAPHS in setting)


def measure_speed(device: str, smoke: bool, is_over: Callable[[], bool]) -> Iterator[tuple[str, Figures]]:
    """Each side beside a plain convolution, in every setting."""
    for setting_name, setting in settings(device, smoke).items():
        setting.set_precision()
        own = captured if GRAPHS in setting_name else lambda call: call
        (_, plain), *others = sides(smoke).items()
        for name, side in others:
            if not is_measured(name, setting_name):
                continue
            if is_over():
                return
            torch.compiler.reset()
            try:
                ratio = alternate(own(side(setting)), own(plain(setting)), 1 if smoke else 20)
            except RuntimeError as error:
                # One row less, not all of them.
                yield f"{setting_name}: {name}", {"failed": str(error).splitlines()[0]}
            else:
                yield f"{setting_name}: {name}", asdict(ratio)


def run_tests(smoke: bool, seconds: float) -> Figures:
    """Run the tests that need a GPU, for four minutes at most, or nothing would be measured."""
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", *(["--collect-only"] if smoke else ["-n", "4"])]
    start, most = time.perf_counter(), max(min(seconds, 240), 1)
    try:
        process = subprocess.run([*command, *TESTS], cwd=ROOT, capture_output=True, text=True, timeout=most)
        status, lines = process.returncode, (process.stdout + process.stderr).strip().splitlines()
    except subprocess.TimeoutExpired:
        status, lines = None, ["stopped: no time was left"]
    return {"status": status, "seconds": time.perf_counter() - start, "last line": lines[-1] if lines else ""}


def page(figures: Figures) -> str:
    """Return the figures as Markdown."""
    lines = ["# On a GPU", "", "    make gpu", "", f"{figures['machine']}; {figures['seconds']:.0f} s in all."]
    if "speed" in figures:
        header = ["setting", "what", "ratio", "quartiles", "ms of `Conv2d`"]
        rows = [_row(*name.split(": "), found) for name, found in figures["speed"].items()]
        lines += ["", "## Forward and backward, beside `Conv2d`", "", table(header, rows)]
    if "tests" in figures:
        found = figures["tests"]
        lines += ["", "## Tests", "", f"`{found['last line']}` in {found['seconds']:.0f} s, status {found['status']}."]
    if figures["cut short"]:
        lines += ["", f"No time was left in: {', '.join(figures['cut short'])}."]
    return "\n".join(lines) + "\n"


def _row(setting: str, name: str, found: Figures) -> list[str]:
    if "failed" in found:
        return [setting, name, f"failed: {found['failed']}", "", ""]
    spread = f"{found['low']:.2f}–{found['high']:.2f}"
    return [setting, name, f"{found['median']:.2f}", spread, f"{1000 * found['seconds']:.2f}"]


def main() -> None:
    """Measure part after part, and write after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of gpu.json and gpu.md")
    parser.add_argument("--minutes", type=float, default=7, help="for all parts; none is started later")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, one repetition, on a CPU too")
    arguments = parser.parse_args()
    if not (torch.cuda.is_available() or arguments.smoke):
        parser.error("there is no GPU here; --smoke shows on a CPU that all of it runs")
    device, smoke = "cuda" if torch.cuda.is_available() else "cpu", arguments.smoke
    start = time.perf_counter()

    def left() -> float:
        return 60 * arguments.minutes - (time.perf_counter() - start)

    figures: Figures = {"machine": machine(Setting(device)), "cut short": []}
    for part in arguments.parts:
        if part == "tests":
            figures[part] = run_tests(smoke, left())
        else:
            figures[part] = {}
            for name, found in measure_speed(device, smoke, lambda: left() < 0):
                print(f"{name}: {found}", flush=True)
                figures[part][name] = found
        figures["cut short"] += [part] if left() < 0 else []
        figures["seconds"] = time.perf_counter() - start
        save(json.dumps(figures, indent=1).encode(), arguments.output / "gpu.json")
        save(page(figures).encode(), arguments.output / "gpu.md")
    Setting().set_precision()
    if figures.get("tests", {}).get("status"):
        sys.exit("a test failed: see the last line in gpu.md")


if __name__ == "__main__":
    main()
