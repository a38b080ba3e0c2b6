"""All that a machine with a GPU is asked for, within minutes: the tests, the speed table, the paper's rows, a training.

    make gpu [OUTPUT=DIRECTORY] [SMOKE=1]
    python -m benchmarks.speed.gpu --output DIRECTORY [--minutes 7] [--parts tests training paper speed] [--smoke]

Writes gpu.json and gpu.md, a page for the docs. What there was no time for is said to be missing. ``--smoke``: tiny,
and on the CPU where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from escnn.nn import R2Conv

from benchmarks.speed.gpu_page import page
from benchmarks.speed.performance import machine
from benchmarks.speed.runtimes import measure
from benchmarks.speed.sides import SOFT_ROTATION, SOFT_TRANSLATION, Call, Setting, convolution, layer, regular, step
from benchmarks.speed.timing import alternate, captured
from escnn_relaxed import RelaxedR2Conv
from experiments.configuration import read_row, row_names
from experiments.data_files import save

warnings.filterwarnings("ignore", message=".*py3nj.*")

PARTS = ("tests", "training", "paper", "speed")
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


def measure_paper(device: str, smoke: bool, is_over: Callable[[], bool]) -> Iterator[tuple[str, Figures]]:
    """A step and inference of the paper's networks, beside its CNN."""
    names = [name for name in row_names() if "seconds" in read_row(name).published]
    for name in names[:1] if smoke else names:
        if is_over():
            return
        yield name, measure(name, 1 if smoke else 64, 1 if smoke else 5, torch.device(device))


def run_tests(smoke: bool, seconds: float) -> Figures:
    """The tests that need a GPU."""
    # Four minutes at most, or nothing would be measured.
    return _run(["-m", "pytest", "-q", *(["--collect-only"] if smoke else ["-n", "4"]), *TESTS], min(seconds, 240))


def train(smoke: bool, seconds: float) -> Figures:
    """The smallest row of the experiments, as a user trains it."""
    few = ["--set", "epochs=1", "warmup_epochs=0", "images=64"] if smoke else []
    with tempfile.TemporaryDirectory() as folder:
        command = "-m", "experiments", "train", "digits-soft", "--no-progress-bar", "--output", folder
        return _run([*command, *few], seconds)


def _run(command: list[str], seconds: float) -> Figures:
    """Start Python and wait for it, not longer than this."""
    start = time.perf_counter()
    try:
        process = subprocess.run(
            [sys.executable, "-W", "ignore", *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=max(seconds, 1),
        )
        status, lines = process.returncode, (process.stdout + process.stderr).strip().splitlines()
    except subprocess.TimeoutExpired:
        status, lines = None, ["stopped: no time was left"]
    return {"status": status, "seconds": time.perf_counter() - start, "last line": lines[-1] if lines else ""}


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
    many = {"speed": measure_speed, "paper": measure_paper}
    single = {"tests": run_tests, "training": train}
    for part in arguments.parts:
        if part in single:
            figures[part] = single[part](smoke, left())
        else:
            figures[part] = {}
            for name, of in many[part](device, smoke, lambda: left() < 0):
                print(f"{name}: {of}", flush=True)
                figures[part][name] = of
        figures["cut short"] += [part] if left() < 0 else []
        figures["seconds"] = time.perf_counter() - start
        save(json.dumps(figures, indent=1).encode(), arguments.output / "gpu.json")
        save(page(figures).encode(), arguments.output / "gpu.md")
    Setting().set_precision()
    if any(figures[part]["status"] for part in single if part in figures):
        sys.exit("a part failed: see its last line in gpu.md")


if __name__ == "__main__":
    main()
