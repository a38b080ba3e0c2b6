"""The time of an update of the evidence, as a part of an epoch of training, and of the penalty, as a part of a step.

python -m benchmarks.speed.evidence [--images 128] [--repetitions 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional

from benchmarks.shared.networks import build_network
from escnn_relaxed import SoftnessEvidence

BATCH = 64
NETWORKS: dict[str, tuple[str, tuple[int, ...], dict[str, float]]] = {
    "C4, narrow": ("C4 regular", (7, 7, 7, 12), {"rotation": 0.25}),
    "C8, narrow": ("C8 regular", (4, 4, 4, 8), {"rotation": 0.25}),
    "C8, wide": ("C8 regular", (12, 12, 12, 16), {"rotation": 0.25}),
    "D4, rotation and reflection": ("D4 regular", (6, 6, 6, 8), {"rotation": 0.25, "reflection": 0.25}),
    "translation on the torus": ("plain CNN on the torus", (5, 5, 5, 8), {"translation": 0.5}),
}


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
    network_name, widths, relax = NETWORKS[name]
    network = build_network(network_name, widths, 5, {"relax": relax}).to(device)
    evidence = SoftnessEvidence(network, 50_000)
    inputs = torch.randn(max(images, BATCH), 1, 33, 33, device=device)
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
