"""The time of an update of the evidence, as a part of an epoch of training, and of the penalty, as a part of a step.

python -m benchmarks.speed.evidence [--images 128] [--repetitions 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from escnn import nn as enn
from escnn.nn import FieldType
from torch import nn
from torch.nn import functional

from benchmarks.speed.sides import OnTensors, dihedral, regular
from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence

BATCH, SIDE = 64, 33
NETWORKS: dict[str, Callable[[int], FieldType]] = {
    "C4, 7 fields": lambda fields: regular(4, 7 * fields),
    "C8, 4 fields": lambda fields: regular(8, 4 * fields),
    "C8, 12 fields": lambda fields: regular(8, 12 * fields),
    "D4, 6 fields": lambda fields: dihedral(4, 6 * fields),
}


def network_of(name: str) -> nn.Module:
    """Return four soft layers with pooling between them: images (batch, 1, 33, 33) → logits (batch, 10)."""
    fields_of = NETWORKS[name]
    gspace = fields_of(1).gspace
    types = [FieldType(gspace, [gspace.trivial_repr]), fields_of(1), fields_of(1), fields_of(1), fields_of(2)]
    modules: list[nn.Module] = []
    for in_type, out_type in pairwise(types):
        layer = RelaxedR2Conv(in_type, out_type, 5, padding=2, bias=False)
        modules += [layer, enn.InnerBatchNorm(out_type), enn.ReLU(out_type)]
        modules.append(enn.PointwiseAvgPoolAntialiased(out_type, 0.66, 2))
    body = OnTensors(enn.SequentialModule(*modules, enn.GroupPooling(types[-1])))
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(len(types[-1]), 10))


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Time of the processor, or on a GPU by the clock."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    wait()
    start = clock()
    call()
    wait()
    return clock() - start


def timed(name: str, images: int, repetitions: int) -> str:
    """The times of a network as a line of text."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    network = network_of(name).to(device)
    evidence = SoftnessEvidence(network, 50_000)
    inputs = torch.randn(max(images, BATCH), 1, SIDE, SIDE, device=device)
    labels = torch.randint(0, 10, (BATCH,), device=device)
    optimiser = torch.optim.Adam(network.parameters())

    def step(with_penalty: bool = False) -> None:
        loss = functional.cross_entropy(network(inputs[:BATCH]), labels)
        loss = loss + evidence.penalty() if with_penalty else loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    calls = lambda: evidence.update(inputs[:images]), step, lambda: step(with_penalty=True)
    times = [[seconds(call, device) for call in calls] for _ in range(repetitions + 1)][1:]
    of_update, of_step, of_both = (statistics.median(column) for column in zip(*times, strict=True))
    epochs = ", ".join(f"{of_update / (count / BATCH * of_step):.1%} of {count:,}" for count in (1000, 50_000))
    return (
        f"{name}: update of {images} images {of_update:.2f} s, {epochs}; step of {BATCH} {1000 * of_step:.0f} ms, "
        f"with the penalty {of_both / of_step - 1:+.1%}"
    )


def main() -> None:
    """Parse the command line, time, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in NETWORKS:
        print(timed(name, arguments.images, arguments.repetitions), flush=True)


if __name__ == "__main__":
    main()
