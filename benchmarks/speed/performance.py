"""The cost of relaxed layers beside strict ones and plain convolutions.

    python -m benchmarks.speed.performance [--rows PARTS] [--threads 1] [--repetitions 9] [--json FILE]
    python -m benchmarks.speed.performance --device cuda --precision bfloat16 --channels-last --compiled

Forward and backward unless a row says otherwise. Each row is a ratio of times, or of memory: two sides called in turn
in one process, the median of the ratios of neighbouring calls, and their quartiles. On CUDA times are taken by events.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from escnn.nn import FieldType, R2Conv

from benchmarks.speed.sides import (
    SOFT_IN_BOTH,
    SOFT_ROTATION,
    SOFT_TRANSLATION,
    Call,
    Setting,
    convolution,
    dihedral,
    evaluation,
    irreps,
    layer,
    regular,
    step,
)
from benchmarks.speed.timing import Ratio, alternate, peak_memory
from escnn_relaxed import RelaxedR2Conv
from experiments.data_files import save

warnings.filterwarnings("ignore", message=".*py3nj.*")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: what is compared.
        against: with what.
        sides: makes both calls.
        is_memory: whether the peak of memory is compared, and not the time.
    """

    name: str
    against: str
    sides: Callable[[Setting], tuple[Call, Call]]
    is_memory: bool = False


def rows() -> list[Row]:
    """Return the rows of docs/results/cost.md."""
    cases = [(partial(regular, rotations, fields), 16, 32) for rotations, fields in ((4, 8), (8, 8), (8, 16))]
    cases += [(partial(irreps, count, False), 16, 32) for count in (8, 32)]
    cases.append((partial(regular, 8, 8), 4, 8))
    table = []
    for fields_of, batch, size in cases:
        sides = partial(_beside_r2conv, fields_of, batch, size)
        table.append(Row(f"soft rotation, {_place(fields_of(), 7, batch, size)}", "R2Conv", sides))
    return table + _translation_rows()


def _place(fields: FieldType, kernel_size: int, batch: int, size: int) -> str:
    name = f"{fields.gspace.fibergroup.name}, {fields.size} channels, {kernel_size}×{kernel_size}"
    return f"{name}, {size}×{size}, batch {batch}"


def _translation_rows() -> list[Row]:
    """Soft translation beside a plain convolution of as many channels."""
    rows = []
    # Fields, kernel, batch, side of the image.
    for fields_of, kernel_size, batch, size in (
        *((partial(regular, 1, channels), 7, 16, 32) for channels in (32, 64, 128)),
        (partial(regular, 1, 16), 7, 64, 32),
        (partial(regular, 1, 32), 3, 16, 32),
        *((partial(regular, 4, 8), kernel_size, 16, 32) for kernel_size in (3, 7)),
        *((partial(regular, 8, 8), kernel_size, 16, 32) for kernel_size in (3, 7)),
        (partial(dihedral, 4, 4), 5, 16, 32),
        (partial(regular, 4, 8), 3, 2, 64),
        (partial(regular, 4, 2), 3, 2, 64),
        # Later stages of a network.
        (partial(regular, 8, 16), 5, 4, 16),
        (partial(regular, 8, 16), 3, 2, 16),
        (partial(regular, 8, 32), 3, 8, 16),
        (partial(dihedral, 4, 8), 5, 8, 16),
        (partial(regular, 8, 64), 3, 8, 8),
    ):
        fields = fields_of()
        place = _place(fields, kernel_size, batch, size)
        sides = partial(_translation, fields_of, kernel_size, batch, size)
        in_group = {"soft translation and rotation": SOFT_IN_BOTH} if fields.gspace.rotations_order > 1 else {}
        for name, options in ({"soft translation": SOFT_TRANSLATION} | in_group).items():
            rows.append(Row(f"{name}, {place}", "Conv2d", partial(sides, options, step)))
        in_training, in_evaluation = (partial(sides, SOFT_TRANSLATION, call) for call in (step, evaluation))
        rows.append(Row(f"soft translation, eval mode, {place}", "Conv2d", in_evaluation))
        rows.append(Row(f"soft translation, peak memory, {place}", "Conv2d", in_training, is_memory=True))
    return rows


def _translation(
    fields_of: Callable[[], FieldType],
    kernel_size: int,
    batch: int,
    size: int,
    options: dict[str, Any],
    call: Callable[..., Call],
    setting: Setting,
) -> tuple[Call, Call]:
    types = fields_of()
    shape = batch, types.size, size
    ours = layer(RelaxedR2Conv, types, setting, kernel_size, **options)
    return call(ours, setting, *shape), call(convolution(types.size, setting, kernel_size), setting, *shape)


def _beside_r2conv(fields_of: Callable[[], FieldType], batch: int, size: int, setting: Setting) -> tuple[Call, Call]:
    types = fields_of()
    shape = batch, types.size, size
    ours = layer(RelaxedR2Conv, types, setting, **SOFT_ROTATION)
    return step(ours, setting, *shape), step(layer(R2Conv, types, setting), setting, *shape)


def machine(setting: Setting) -> str:
    """Return the machine and the versions that the figures belong to."""
    name = torch.cuda.get_device_name() if setting.device == "cuda" else _processor()
    return f"{name}, {torch.get_num_threads()} thread(s), torch {torch.__version__}, {setting}"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="only rows whose name contains one of these, separated by ;")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--json", type=Path, help="where to write all figures")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["float32", "tf32", "bfloat16"], default="float32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    setting = Setting(arguments.device, arguments.precision, arguments.channels_last, arguments.compiled)
    setting.set_precision()
    print(f"{machine(setting)}\n\n| what | against | ratio | quartiles | ms |\n|---|---|---|---|---|")
    figures: dict[str, Any] = {"machine": machine(setting)}
    for row in rows():
        if not any(part in row.name for part in arguments.rows.split(";")):
            continue
        result = _measure(row, setting, arguments.repetitions)
        figures[f"{row.name} / {row.against}"] = asdict(result)
        time = "" if row.is_memory else f"{1000 * result.seconds:.1f}"
        spread = "" if row.is_memory else f"{result.low:.2f}–{result.high:.2f}"
        print(f"| {row.name} | {row.against} | {result.median:.2f} | {spread} | {time} |", flush=True)
    if arguments.json:
        save(json.dumps(figures, indent=1).encode(), arguments.json)


def _measure(row: Row, setting: Setting, repetitions: int) -> Ratio:
    if row.is_memory:
        ours, theirs = (peak_memory(call) for call in row.sides(setting))
        return Ratio(ours / theirs, ours / theirs, ours / theirs, 0.0)
    return alternate(*row.sides(setting), repetitions)


if __name__ == "__main__":
    main()
