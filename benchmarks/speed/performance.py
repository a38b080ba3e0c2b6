"""The cost of relaxed layers beside strict ones and plain convolutions, and its growth.

    python -m benchmarks.speed.performance [--rows PARTS] [--threads 1] [--repetitions 9] [--json FILE] [--plot FILE]
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
from torch import nn

from benchmarks.speed.growth import draw, scaling, slope
from benchmarks.speed.sides import (
    SOFT_IN_BOTH,
    SOFT_ROTATION,
    SOFT_TRANSLATION,
    Call,
    OnTensors,
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
from escnn_relaxed.models import RelaxedResNet
from experiments.data_files import save

warnings.filterwarnings("ignore", message=".*py3nj.*")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: what is compared.
        against: with what.
        reach: the ratio that was aimed at.
        sides: makes both calls; a memory row gives its figure at once.
    """

    name: str
    against: str
    reach: float
    sides: Callable[[Setting], tuple[Call, Call]] | None = None
    memory: Callable[[Setting], float] | None = None


def rows(largest: int) -> list[Row]:
    """The table, with layers of at most ``largest`` channels."""
    table = []
    for rotations in (4, 8, 16):
        for fields in (8, 16, 32):
            if rotations * fields > largest:
                continue
            name = f"soft rotation, C{rotations}, {fields} regular, 7×7, 32×32, batch 16"
            table.append(
                Row(name, "R2Conv", 1.0, partial(_training, rotations, fields, 16, 32, SOFT_ROTATION, "R2Conv"))
            )
            if fields >= 16:
                table.append(
                    Row(name, "Conv2d", 1.05, partial(_training, rotations, fields, 16, 32, SOFT_ROTATION, "Conv2d"))
                )
    for exported in (False, True):
        name = "soft rotation, C8, 16 regular, " + ("exported" if exported else "eval mode")
        table.append(Row(name, "Conv2d", 1.02, partial(_evaluating, 8, 16, exported)))
    small = partial(_training, 8, 8, 4, 8, SOFT_ROTATION, "R2Conv")
    table.append(Row("soft rotation, C8, 8 regular, 8×8, batch 4", "R2Conv", 1.0, small))
    for count, mixed in ((8, False), (16, False), (32, False), (8, True), (32, True)):
        fields_of = partial(irreps, count, mixed)
        name = f"soft rotation, SO(2), {5 * count} channels of " + ("mixtures" if mixed else "irreps")
        table.append(Row(name, "R2Conv", 1.5, partial(_steerable, fields_of)))
    for strict, options in (("strict", {"relax": None}), ("soft", SOFT_ROTATION)):
        table.append(Row(f"construction, {strict}, C16, 32 regular", "R2Conv", 0.1, partial(_construction, options)))
    table += _translation_rows()
    published = partial(_network, 1, {"translation": 1.0})
    table.append(Row("the paper's network, soft T(2), batch 32", "strict", 2.0, published))
    for rotations in (4, 8, 16):
        name = f"the paper's network, soft SO(2), N = {rotations}, batch 4"
        table.append(Row(name, "strict", 1.02, partial(_network, rotations, {"rotation": 1.0})))
    return table


def _translation_rows() -> list[Row]:
    """Soft translation beside a plain convolution of as many channels."""
    rows = []
    # Fields, kernel, batch, side of the image, what was aimed at.
    for fields_of, kernel_size, batch, size, reach in (
        *((partial(regular, 1, channels), 7, 16, 32, 1.4) for channels in (32, 64, 128)),
        (partial(regular, 1, 16), 7, 64, 32, 1.4),
        (partial(regular, 1, 32), 3, 16, 32, 1.4),
        *((partial(regular, 4, 8), kernel_size, 16, 32, 1.4) for kernel_size in (3, 7)),
        *((partial(regular, 8, 8), kernel_size, 16, 32, 1.4) for kernel_size in (3, 7)),
        (partial(dihedral, 4, 4), 5, 16, 32, 1.4),
        (partial(regular, 4, 8), 3, 2, 64, 1.4),
        (partial(regular, 4, 2), 3, 2, 64, 1.4),
        # Later stages of a network.
        (partial(regular, 8, 16), 5, 4, 16, 1.4),
        (partial(regular, 8, 16), 3, 2, 16, 1.4),
        (partial(regular, 8, 32), 3, 8, 16, 1.4),
        (partial(dihedral, 4, 8), 5, 8, 16, 1.4),
        (partial(regular, 8, 64), 3, 8, 8, 1.4),
    ):
        fields = fields_of()
        place = f"{fields.gspace.fibergroup.name}, {fields.size} channels, {kernel_size}×{kernel_size}"
        place += f", {size}×{size}, batch {batch}"
        sides = partial(_translation, fields_of, kernel_size, batch, size)
        in_group = {"soft translation and rotation": SOFT_IN_BOTH} if fields.gspace.rotations_order > 1 else {}
        for name, options in ({"soft translation": SOFT_TRANSLATION} | in_group).items():
            rows.append(Row(f"{name}, {place}", "Conv2d", reach, partial(sides, options, step)))
        memory = partial(_memory, partial(sides, SOFT_TRANSLATION, step))
        rows += [
            Row(f"soft translation, eval mode, {place}", "Conv2d", 1.4, partial(sides, SOFT_TRANSLATION, evaluation)),
            Row(f"soft translation, peak memory, {place}", "Conv2d", 1.6, memory=memory),
        ]
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


def _training(
    rotations: int, fields: int, batch: int, size: int, options: dict[str, Any], against: str, setting: Setting
) -> tuple[Call, Call]:
    types = regular(rotations, fields)
    others = {
        "R2Conv": lambda: layer(R2Conv, types, setting),
        "Conv2d": lambda: convolution(types.size, setting),
    }
    shape = batch, types.size, size
    return step(layer(RelaxedR2Conv, types, setting, **options), setting, *shape), step(
        others[against](), setting, *shape
    )


def _evaluating(rotations: int, fields: int, exported: bool, setting: Setting) -> tuple[Call, Call]:
    types = regular(rotations, fields)
    ours: nn.Module = OnTensors(RelaxedR2Conv(types, types, 7, padding=3, **SOFT_ROTATION))
    if exported:
        ours = ours.layer.export()
    shape = 16, types.size, 32
    return evaluation(setting.place(ours), setting, *shape), evaluation(
        convolution(types.size, setting), setting, *shape
    )


def _steerable(fields_of: Callable[[], FieldType], setting: Setting) -> tuple[Call, Call]:
    types = fields_of()
    shape = 16, types.size, 32
    ours = layer(RelaxedR2Conv, types, setting, **SOFT_ROTATION)
    return step(ours, setting, *shape), step(layer(R2Conv, types, setting), setting, *shape)


def _construction(options: dict[str, Any], setting: Setting) -> tuple[Call, Call]:
    types = regular(16, 32)
    return lambda: RelaxedR2Conv(types, types, 7, **options), lambda: R2Conv(types, types, 7)


def _network(rotations: int, relax: dict[str, float], setting: Setting) -> tuple[Call, Call]:
    ours, theirs = (setting.place(RelaxedResNet(10, rotations, relax=relaxed)) for relaxed in (relax, None))
    batch = 32 if rotations == 1 else 4
    return step(ours, setting, batch, 3, 32), step(theirs, setting, batch, 3, 32)


def _memory(sides: Callable[[Setting], tuple[Call, Call]], setting: Setting) -> float:
    ours, theirs = (peak_memory(call) for call in sides(setting))
    return ours / theirs


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
    parser.add_argument("--largest", type=int, default=256, help="most channels of a layer")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    parser.add_argument("--plot", type=Path, help="where to draw how the cost grows")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["float32", "tf32", "bfloat16"], default="float32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    setting = Setting(arguments.device, arguments.precision, arguments.channels_last, arguments.compiled)
    setting.set_precision()
    print(f"{machine(setting)}\n\n| what | against | ratio | quartiles | wanted | ms |\n|---|---|---|---|---|---|")
    figures: dict[str, Any] = {"machine": machine(setting)}
    for row in rows(arguments.largest):
        if not any(part in row.name for part in arguments.rows.split(";")):
            continue
        result = _measure(row, setting, arguments.repetitions)
        figures[f"{row.name} / {row.against}"] = asdict(result) | {"wanted": row.reach}
        time = "" if row.memory else f"{1000 * result.seconds:.1f}"
        spread = "" if row.memory else f"{result.low:.2f}–{result.high:.2f}"
        print(f"| {row.name} | {row.against} | {result.median:.2f} | {spread} | ≤ {row.reach:g} | {time} |", flush=True)
    if arguments.plot:
        figures["scaling"] = curves = scaling(setting, max(1, arguments.repetitions // 3))
        for name, curve in curves.items():
            print(
                f"{name}: slope {slope(curve):.2f}, " + ", ".join(f"{n}: {1000 * s:.1f} ms" for n, s in curve.items())
            )
        draw(arguments.plot, curves)
    if arguments.json:
        save(json.dumps(figures, indent=1).encode(), arguments.json)


def _measure(row: Row, setting: Setting, repetitions: int) -> Ratio:
    if row.memory is not None:
        ratio = row.memory(setting)
        return Ratio(ratio, ratio, ratio, 0.0)
    if row.sides is None:
        raise ValueError(f"the row {row.name!r} compares nothing")
    return alternate(*row.sides(setting), repetitions)


if __name__ == "__main__":
    main()
