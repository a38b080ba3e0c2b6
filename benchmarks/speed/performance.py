"""The cost of relaxed layers beside strict ones and plain convolutions, and of the evidence beside a step of training.

    python -m benchmarks.speed.performance [--rows PARTS] [--settings all] [--repetitions 9]

Forward and backward unless a row says otherwise, on a GPU where there is one, else on one thread. Each row is a ratio
of times, or of memory: two sides called in turn in one process, the median of the ratios of neighbouring calls, and
their quartiles.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType, R2Conv, R3Conv
from torch import nn
from torch.nn import functional

from benchmarks.speed.sides import (
    SOFT_IN_BOTH,
    SOFT_ROTATION,
    SOFT_TRANSLATION,
    Call,
    OnTensors,
    Setting,
    convolution,
    evaluation,
    irreps,
    layer,
    regular,
    regular_of,
    step,
)
from benchmarks.speed.timing import alternate, captured, peak_memory
from escnn_relaxed import RelaxedR2Conv, RelaxedR3Conv, SoftnessEvidence

SETTINGS: dict[str, Setting] = {
    "float32": Setting(),
    "TF32": Setting("tf32"),
    "bfloat16": Setting("bfloat16"),
    "bfloat16, channels last": Setting("bfloat16", channels_last=True),
    "float32, CUDA graphs": Setting(captured=True),
    "float32, compiled": Setting(compiled=True),
}
Sides = Callable[[], tuple[Call, Call]]


@dataclass(frozen=True)
class Row:
    """One line of the table: what is compared, with what, and what makes both calls."""

    name: str
    against: str
    sides: Sides
    is_memory: bool = False


def rows(setting: Setting) -> Iterator[Row]:
    """Yield the rows of docs/results/cost.md, volumes.md and learning.md."""
    yield from _rotation_rows(setting)
    yield from _translation_rows(setting)
    yield from _volume_rows(setting)
    yield from _evidence_rows(setting)


def _rotation_rows(setting: Setting) -> Iterator[Row]:
    """Yield soft rotation beside strict layers."""
    cases = [(fields, 16, 32) for fields in (regular(4, 8), regular(8, 8), regular(8, 16), irreps(8), irreps(32))]
    for fields, batch, size in (*cases, (regular(8, 8), 4, 8)):
        ours, theirs = (
            partial(layer, RelaxedR2Conv, fields, setting, **SOFT_ROTATION),
            partial(layer, R2Conv, fields, setting),
        )
        sides = _beside(setting, ours, theirs, step, (batch, fields.size, size, size))
        yield Row(f"soft rotation, {_named(fields, 7, batch, size)}", "R2Conv", sides)


def _translation_rows(setting: Setting) -> Iterator[Row]:
    """Yield soft translation beside a plain convolution of as many channels."""
    d4 = gspaces.flipRot2dOnR2(4)
    # Fields, kernel, batch, side of the image.
    for fields, kernel_size, batch, size in (
        *((regular(1, channels), 7, 16, 32) for channels in (32, 64, 128)),
        (regular(1, 16), 7, 64, 32),
        (regular(1, 32), 3, 16, 32),
        *((regular(4, 8), kernel_size, 16, 32) for kernel_size in (3, 7)),
        *((regular(8, 8), kernel_size, 16, 32) for kernel_size in (3, 7)),
        (regular_of(d4, 4), 5, 16, 32),
        (regular(4, 8), 3, 2, 64),
        (regular(4, 2), 3, 2, 64),
        # Later stages of a network.
        (regular(8, 16), 5, 4, 16),
        (regular(8, 16), 3, 2, 16),
        (regular(8, 32), 3, 8, 16),
        (regular_of(d4, 8), 5, 8, 16),
        (regular(8, 64), 3, 8, 8),
    ):
        name, shape = _named(fields, kernel_size, batch, size), (batch, fields.size, size, size)
        plain = partial(convolution, fields.size, setting, kernel_size)
        soft = partial(layer, RelaxedR2Conv, fields, setting, kernel_size, **SOFT_TRANSLATION)
        training = _beside(setting, soft, plain, step, shape)
        yield Row(f"soft translation, {name}", "Conv2d", training)
        if fields.gspace.rotations_order > 1:
            in_both = partial(layer, RelaxedR2Conv, fields, setting, kernel_size, **SOFT_IN_BOTH)
            yield Row(f"soft translation and rotation, {name}", "Conv2d", _beside(setting, in_both, plain, step, shape))
        yield Row(f"soft translation, eval mode, {name}", "Conv2d", _beside(setting, soft, plain, evaluation, shape))
        yield Row(f"soft translation, peak memory, {name}", "Conv2d", training, is_memory=True)


def _volume_rows(setting: Setting) -> Iterator[Row]:
    """Yield layers of volumes beside `R3Conv`, on 4 volumes of 16 voxels a side."""
    cube, space = gspaces.octaOnR3(), gspaces.rot3dOnR3()
    of_space = FieldType(space, [space.irrep(degree) for degree in range(3)] * 8)
    for name, fields, kernel_size in (
        ("octahedral, 3 regular", regular_of(cube, 3), 3),
        ("octahedral, 3 regular", regular_of(cube, 3), 5),
        ("SO(3), 8 × irreps 0–2", of_space, 5),
        ("C4 about z, 8 regular", regular_of(gspaces.rot2dOnR3(4), 8), 5),
    ):
        ours, theirs = (partial(layer, kind, fields, setting, kernel_size) for kind in (RelaxedR3Conv, R3Conv))
        training, evaluated = (
            _beside(setting, ours, theirs, call, (4, fields.size, 16, 16, 16)) for call in (step, evaluation)
        )
        name = f"{name}, {'×'.join(3 * [str(kernel_size)])}"
        yield Row(f"volumes, {name}", "R3Conv", training)
        yield Row(f"volumes, eval mode, {name}", "R3Conv", evaluated)
        yield Row(f"volumes, peak memory, {name}", "R3Conv", training, is_memory=True)
        yield Row(f"volumes, construction, {name}", "R3Conv", lambda both=(ours, theirs): both)


def _evidence_rows(setting: Setting) -> Iterator[Row]:
    """Yield an update of the evidence with 128 images, and a step with its penalty, beside a step of 64 images."""
    c4, c8, d4 = gspaces.rot2dOnR2(4), gspaces.rot2dOnR2(8), gspaces.flipRot2dOnR2(4)
    for gspace, fields in ((c4, 7), (c8, 4), (c8, 12), (d4, 6)):
        name = f"{gspace.fibergroup.name}, {fields} fields"
        yield Row(f"evidence, update, {name}", "a step", partial(_evidence_sides, setting, gspace, fields, False))
        yield Row(
            f"evidence, step with the penalty, {name}",
            "a step",
            partial(_evidence_sides, setting, gspace, fields, True),
        )


def _evidence_sides(setting: Setting, gspace: Any, fields: int, is_penalty: bool) -> tuple[Call, Call]:
    """Return an update of the evidence, or a step with its penalty, and a step of a network of four soft layers."""
    hidden, last = regular_of(gspace, fields), regular_of(gspace, 2 * fields)
    modules: list[nn.Module] = []
    for in_type, out_type in pairwise([FieldType(gspace, [gspace.trivial_repr]), hidden, hidden, hidden, last]):
        soft = RelaxedR2Conv(in_type, out_type, 5, padding=2, bias=False)
        modules += [soft, enn.InnerBatchNorm(out_type), enn.ReLU(out_type)]
        modules.append(enn.PointwiseAvgPoolAntialiased(out_type, 0.66, 2))
    body = OnTensors(enn.SequentialModule(*modules, enn.GroupPooling(last)))
    network = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(len(last), 10)).to(setting.device)
    evidence = SoftnessEvidence(network, 50_000)
    images, labels = (some.to(setting.device) for some in (torch.randn(128, 1, 33, 33), torch.randint(0, 10, (64,))))
    optimiser = torch.optim.Adam(network.parameters())

    def train(with_penalty: bool = False) -> None:
        loss = functional.cross_entropy(network(images[:64]), labels)
        loss = loss + evidence.penalty() if with_penalty else loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return partial(train, with_penalty=True) if is_penalty else partial(evidence.update, images), train


def _named(fields: FieldType, kernel_size: int, batch: int, size: int) -> str:
    name = f"{fields.gspace.fibergroup.name}, {fields.size} channels, {kernel_size}×{kernel_size}"
    return f"{name}, {size}×{size}, batch {batch}"


def _beside(
    setting: Setting,
    ours: Callable[[], nn.Module],
    theirs: Callable[[], nn.Module],
    call: Callable[..., Call],
    shape: tuple[int, ...],
) -> Sides:
    """Return what makes the same call of two layers."""
    return lambda: (call(ours(), setting, *shape), call(theirs(), setting, *shape))


def _machine() -> str:
    """Return the machine and the versions that the figures belong to."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else _processor()
    return f"{name}, {torch.get_num_threads()} thread(s), torch {torch.__version__}"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor() or platform.machine()


def _measured(row: Row, setting: Setting, repetitions: int) -> str:
    """Return the ratio, its quartiles, and the time of the other side in milliseconds."""
    torch.compiler.reset()
    try:
        ours, theirs = row.sides()
        if row.is_memory:
            return f"{peak_memory(ours) / peak_memory(theirs):.2f} | |"
        if setting.captured:
            ours, theirs = captured(ours), captured(theirs)
        found = alternate(ours, theirs, repetitions)
    except RuntimeError as error:
        # One row less, not all of them: R2Conv reads values in each step, which no graph can hold.
        return f"failed: {str(error).splitlines()[0]} | |"
    return f"{found.median:.2f} | {found.low:.2f}–{found.high:.2f} | {1000 * found.seconds:.2f}"


def main() -> None:
    """Print a table for each setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="only rows whose name contains one of these, separated by ;")
    parser.add_argument(
        "--settings", choices=["plain", "all"], default="plain", help="float32 alone, or all precisions"
    )
    parser.add_argument("--repetitions", type=int, default=9)
    arguments = parser.parse_args()
    # Other packages' own.
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print(_machine())
    for name, setting in SETTINGS.items() if arguments.settings == "all" else [("float32", Setting())]:
        setting.set_precision()
        print(f"\n| {name} | against | ratio | quartiles | ms |\n|---|---|---|---|---|")
        for row in rows(setting):
            if any(part in row.name for part in arguments.rows.split(";")):
                print(f"| {row.name} | {row.against} | {_measured(row, setting, arguments.repetitions)} |", flush=True)
    Setting().set_precision()


if __name__ == "__main__":
    main()
