"""The cost of relaxed layers beside strict ones and plain convolutions, and of the evidence beside a step of training.

    python -m benchmarks.speed.performance [--rows PARTS] [--repetitions 9]

Each row is a ratio of times, or of memory: two sides called in turn in one process, forward and backward unless it says
otherwise. It is the median of the ratios of neighbouring calls, with their quartiles.
"""

from __future__ import annotations

import argparse
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any

import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType, R2Conv, R3Conv
from torch import nn

from benchmarks.speed.sides import DEVICE, Call, OnTensors, alternate, evaluation, peak_memory, regular, training
from escnn_relaxed import RelaxedR2Conv, RelaxedR3Conv, SoftnessEvidence

Sides = Callable[[], Sequence[Call]]


@dataclass(frozen=True)
class Row:
    """One line of the table: what is compared, with what, and what makes both calls."""

    name: str
    against: str
    sides: Sides
    is_memory: bool = False


def irreps(gspace: Any, fields: int) -> FieldType:
    """Irreps of a continuous group up to frequency 2."""
    return FieldType(gspace, [gspace.irrep(frequency) for frequency in range(3)] * fields)


def convolution(channels: int, kernel_size: int) -> nn.Module:
    """The plain convolution of as many channels."""
    return nn.Conv2d(channels, channels, kernel_size, padding=kernel_size // 2).to(DEVICE)


def layer(kind: Any, fields: FieldType, kernel_size: int, **options: Any) -> nn.Module:
    """``kind`` from these fields to themselves."""
    return OnTensors(kind(fields, fields, kernel_size, padding=kernel_size // 2, **options)).to(DEVICE)


def step(module: nn.Module, *shape: int) -> Call:
    """Forward and backward."""
    images = torch.randn(*shape, device=DEVICE, requires_grad=True)
    wanted = [images, *(parameter for parameter in module.parameters() if parameter.requires_grad)]
    with torch.no_grad():
        direction = torch.randn_like(module(images))
    return lambda: torch.autograd.grad(module(images), wanted, direction, allow_unused=True)


def _rotation_rows() -> Iterator[Row]:
    """Yield soft rotation beside strict layers."""
    c4, c8, so2 = gspaces.rot2dOnR2(4), gspaces.rot2dOnR2(8), gspaces.rot2dOnR2(-1)
    cases = [(fields, 16, 32) for fields in (regular(c4, 8), regular(c8, 8), regular(c8, 16))]
    cases += [(irreps(so2, 8), 16, 32), (irreps(so2, 32), 16, 32), (regular(c8, 8), 4, 8)]
    for fields, batch, size in cases:
        soft = partial(layer, RelaxedR2Conv, fields, 7, relax={"rotation": 0.25})
        sides = _beside(soft, partial(layer, R2Conv, fields, 7), step, (batch, fields.size, size, size))
        yield Row(f"soft rotation, {_named(fields, 7, batch, size)}", "R2Conv", sides)


def _translation_rows() -> Iterator[Row]:
    """Yield soft translation beside a plain convolution of as many channels."""
    c4, c8, d4 = gspaces.rot2dOnR2(4), gspaces.rot2dOnR2(8), gspaces.flipRot2dOnR2(4)
    plane = gspaces.trivialOnR2()
    narrow, *wide = (FieldType(plane, [plane.trivial_repr] * channels) for channels in (16, 32, 64, 128))
    # Fields, kernel, batch, side of the image.
    for fields, kernel_size, batch, size in (
        *((fields, 7, 16, 32) for fields in wide),
        (narrow, 7, 64, 32),
        (wide[0], 3, 16, 32),
        *((regular(gspace, 8), kernel_size, 16, 32) for gspace in (c4, c8) for kernel_size in (3, 7)),
        (regular(d4, 4), 5, 16, 32),
        (regular(c4, 8), 3, 2, 64),
        (regular(c4, 2), 3, 2, 64),
        # Later stages of a network.
        *((regular(c8, 16), 5, 4, 16), (regular(c8, 16), 3, 2, 16), (regular(c8, 32), 3, 8, 16)),
        *((regular(d4, 8), 5, 8, 16), (regular(c8, 64), 3, 8, 8)),
    ):
        name, shape = _named(fields, kernel_size, batch, size), (batch, fields.size, size, size)
        plain = partial(convolution, fields.size, kernel_size)
        soft = partial(layer, RelaxedR2Conv, fields, kernel_size, relax={"translation": 0.25})
        in_training = _beside(soft, plain, step, shape)
        yield Row(f"soft translation, {name}", "Conv2d", in_training)
        if fields.gspace.rotations_order > 1:
            in_both = partial(soft, relax={"rotation": 0.25, "translation": 0.25})
            yield Row(f"soft translation and rotation, {name}", "Conv2d", _beside(in_both, plain, step, shape))
        yield Row(f"soft translation, eval mode, {name}", "Conv2d", _beside(soft, plain, evaluation, shape))
        yield Row(f"soft translation, peak memory, {name}", "Conv2d", in_training, is_memory=True)


def _volume_rows() -> Iterator[Row]:
    """Yield layers of volumes beside `R3Conv`, on 4 volumes of 16 voxels a side."""
    cube = gspaces.octaOnR3()
    for name, fields, kernel_size in (
        ("octahedral, 3 regular, 3×3×3", regular(cube, 3), 3),
        ("octahedral, 3 regular, 5×5×5", regular(cube, 3), 5),
        ("SO(3), 8 × irreps 0–2, 5×5×5", irreps(gspaces.rot3dOnR3(), 8), 5),
        ("C4 about z, 8 regular, 5×5×5", regular(gspaces.rot2dOnR3(4), 8), 5),
    ):
        both = [partial(layer, kind, fields, kernel_size) for kind in (RelaxedR3Conv, R3Conv)]
        shape = 4, fields.size, 16, 16, 16
        in_training = _beside(*both, step, shape)
        yield Row(f"volumes, {name}", "R3Conv", in_training)
        yield Row(f"volumes, eval mode, {name}", "R3Conv", _beside(*both, evaluation, shape))
        yield Row(f"volumes, peak memory, {name}", "R3Conv", in_training, is_memory=True)
        yield Row(f"volumes, construction, {name}", "R3Conv", lambda both=both: both)


def _evidence_rows() -> Iterator[Row]:
    """Yield an update of the evidence with 128 images, and a step with its penalty, beside a step of 64 images."""
    c4, c8, d4 = gspaces.rot2dOnR2(4), gspaces.rot2dOnR2(8), gspaces.flipRot2dOnR2(4)
    for gspace, fields in ((c4, 7), (c8, 4), (c8, 12), (d4, 6)):
        for name, is_penalty in (("update", False), ("step with the penalty", True)):
            sides = partial(_evidence_sides, gspace, fields, is_penalty)
            yield Row(f"evidence, {name}, {gspace.fibergroup.name}, {fields} fields", "a step", sides)


def _evidence_sides(gspace: Any, fields: int, is_penalty: bool) -> tuple[Call, Call]:
    """Return an update of the evidence, or a step with its penalty, and a step of a network of four soft layers."""
    network = _network(RelaxedR2Conv, gspace, fields)
    evidence = SoftnessEvidence(network, 50_000)
    images, labels = torch.randn(128, 1, 33, 33, device=DEVICE), torch.randint(0, 10, (64,), device=DEVICE)
    ours = training(network, images[:64], labels, evidence.penalty) if is_penalty else partial(evidence.update, images)
    return ours, training(network, images[:64], labels)


def _network_rows() -> Iterator[Row]:
    """Yield a step of training of whole networks, soft beside strict."""
    for gspace, fields in ((gspaces.rot2dOnR2(8), 8), (gspaces.rot2dOnR2(4), 32)):
        name = f"network, {gspace.fibergroup.name}, {fields} fields, 33×33, batch 64"
        yield Row(name, "R2Conv", partial(_network_sides, gspace, fields))


def _network_sides(gspace: Any, fields: int) -> Sequence[Call]:
    """Return a step of training of the soft network and of the strict one."""
    images, labels = torch.randn(64, 1, 33, 33, device=DEVICE), torch.randint(0, 10, (64,), device=DEVICE)
    return [training(_network(kind, gspace, fields), images, labels) for kind in (RelaxedR2Conv, R2Conv)]


def _network(kind: Any, gspace: Any, fields: int) -> nn.Module:
    """Return a classifier of four layers."""
    hidden, last = regular(gspace, fields), regular(gspace, 2 * fields)
    modules: list[nn.Module] = []
    for in_type, out_type in pairwise([FieldType(gspace, [gspace.trivial_repr]), hidden, hidden, hidden, last]):
        convolution = kind(in_type, out_type, 5, padding=2, bias=False)
        modules += [convolution, enn.InnerBatchNorm(out_type), enn.ReLU(out_type)]
        modules.append(enn.PointwiseAvgPoolAntialiased(out_type, 0.66, 2))
    body = OnTensors(enn.SequentialModule(*modules, enn.GroupPooling(last)))
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(len(last), 10)).to(DEVICE)


def _named(fields: FieldType, kernel_size: int, batch: int, size: int) -> str:
    name = f"{fields.gspace.fibergroup.name}, {fields.size} channels, {kernel_size}×{kernel_size}"
    return f"{name}, {size}×{size}, batch {batch}"


def _beside(
    ours: Callable[[], nn.Module], theirs: Callable[[], nn.Module], call: Callable[..., Call], shape: tuple[int, ...]
) -> Sides:
    """Return what makes the same call of two layers."""
    return lambda: (call(ours(), *shape), call(theirs(), *shape))


def _measured(row: Row, repetitions: int) -> str:
    """Return the ratio, its quartiles, and the time of the other side in milliseconds."""
    ours, theirs = row.sides()
    if row.is_memory:
        return f"{peak_memory(ours) / peak_memory(theirs):.2f} | |"
    found = alternate(ours, theirs, repetitions)
    return f"{found.median:.2f} | {found.low:.2f}–{found.high:.2f} | {1000 * found.seconds:.2f}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="only rows whose name contains one of these, separated by ;")
    parser.add_argument("--repetitions", type=int, default=9)
    arguments = parser.parse_args()
    # Other packages' own.
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    device = torch.cuda.get_device_name() if DEVICE.type == "cuda" else f"{platform.machine()}, 1 thread"
    print(f"{device}, torch {torch.__version__}\n")
    print("| float32 | against | ratio | quartiles | ms |\n|---|---|---|---|---|")
    for row in chain(_rotation_rows(), _translation_rows(), _volume_rows(), _evidence_rows(), _network_rows()):
        if any(part in row.name for part in arguments.rows.split(";")):
            print(f"| {row.name} | {row.against} | {_measured(row, arguments.repetitions)} |", flush=True)


if __name__ == "__main__":
    main()
