"""How often the evidence says rightly which symmetry the data break, where the answer is known.

    python -m benchmarks.accuracy.discovery --data FOLDER [--seeds 5] [--images 300,1000,3000] [--log FILE]

Networks are trained with the evidence as in ``benchmarks.accuracy.evidence``, whose log this shares; those of volumes
predict the next moment of a density in a periodic box. A symmetry counts as broken where
``SoftnessEvidence.harden`` does not make all layers strict in it together, on data that were held out.
``benchmarks.accuracy.evidence_report`` makes a table of it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from escnn import gspaces
from escnn import nn as enn
from torch import Tensor
from torch.nn import functional

from benchmarks.accuracy.evidence import LOG, ON_TORUS, Run, key, read, rounded, train
from benchmarks.shared.run_log import Log, run_missing
from benchmarks.shared.training import UPDATE
from escnn_relaxed import RelaxedR3Conv, SoftnessEvidence

TORUS, VOLUMES = "plain CNN on the torus", "octahedral, volumes"


@dataclass(frozen=True)
class Case:
    """A network and a task of which it is known what the data break.

    Attributes:
        network: name of the network, of which all symmetries are asked.
        task: name of the task.
        broken: subgroups that the data break.
        kept: subgroups that they keep.
    """

    network: str
    task: str
    broken: tuple[str, ...]
    kept: tuple[str, ...]

    @property
    def run(self) -> Run:
        """The training."""
        return Run(self.network, self.task, "evidence", 0.0, ON_TORUS if self.network == TORUS else {})


CASES = [
    Case("C8 regular", "MNIST6-180", ("rotation",), ()),
    Case("C8 regular", "upright", ("rotation",), ()),
    Case("C8 regular", "within 60°", ("rotation",), ()),
    Case("C8 regular", "turned", (), ("rotation",)),
    Case("D4 regular", "upright", ("rotation", "reflection"), ()),
    Case("D4 regular", "turned", ("reflection",), ("rotation",)),
    Case("D4 regular", "turned, half of them mirrored", (), ("rotation", "reflection")),
    Case(TORUS, "quadrant", ("translation",), ()),
    Case(TORUS, "anywhere on the torus", (), ("translation",)),
    Case(VOLUMES, "wind along an axis", ("rotation",), ()),
    Case(VOLUMES, "no wind", (), ("rotation",)),
]

SIZE = 8  # voxels on each side of a volume
VOLUME_STEPS, VOLUME_BATCH, VOLUME_RATE, NOISE = 600, 8, 2e-2, 0.1


def density_task(wind: float, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Densities (count, 1, D, H, W) and their changes: they spread, and a wind carries what is dense along z."""
    waves = torch.fft.fftn(torch.randn(count, 1, *[SIZE] * 3, generator=generator), dim=(2, 3, 4))
    is_low = torch.fft.fftfreq(SIZE, 1 / SIZE).abs() <= 2
    smooth = torch.fft.ifftn(waves * (is_low[:, None, None] & is_low[:, None] & is_low), dim=(2, 3, 4)).real
    density = smooth / smooth.square().mean((2, 3, 4), keepdim=True).sqrt()
    flow = density + density.square() / 2
    spread = sum(flow.roll(step, axis) for axis in (2, 3, 4) for step in (-1, 1)) / 6 - flow
    carried = (flow.roll(-1, 2) - flow.roll(1, 2)) / 2
    change = spread / 2 - wind * carried
    return density, change + NOISE * torch.randn(change.shape, generator=generator)


def train_volumes(run: Run, seed: int, images: int, root: Path | None) -> dict[str, Any]:
    """One network of volumes: what the data determine, what hardening costs, CPU time."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    wind = 0.03 if run.task.startswith("wind") else 0.0
    (inputs, targets), held_out = (density_task(wind, count, generator) for count in (images, 300))
    cube = gspaces.octaOnR3()
    density, hidden = cube.type(cube.trivial_repr), cube.type(*[cube.regular_repr] * 2)
    options = {"kernel_size": 3, "padding": 1, "padding_mode": "circular"}
    first, second = RelaxedR3Conv(density, hidden, **options), RelaxedR3Conv(hidden, density, **options)
    network = enn.SequentialModule(first, enn.ELU(hidden), second)
    evidence = SoftnessEvidence(network, images, likelihood="gaussian")
    optimiser = torch.optim.Adam(network.parameters(), VOLUME_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, VOLUME_RATE, total_steps=VOLUME_STEPS, pct_start=0.2)
    start = time.process_time()
    for step in range(VOLUME_STEPS):
        batch = torch.randint(len(inputs), (VOLUME_BATCH,), generator=generator)
        loss = functional.mse_loss(network(density(inputs[batch])).tensor, targets[batch]) + evidence.penalty()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step >= VOLUME_STEPS // 6 and (step + 1) % (VOLUME_STEPS // 12) == 0:
            chosen = torch.randperm(len(inputs), generator=generator)[:UPDATE]
            evidence.update(density(inputs[chosen]), targets[chosen])
    result = {"seconds": time.process_time() - start, **read(evidence, (density(held_out[0]), held_out[1]))}
    return rounded(result)


def train_case(run: Run, seed: int, images: int, root: Path | None) -> dict[str, Any]:
    """One network of a case."""
    return (train_volumes if run.network == VOLUMES else train)(run, seed, images, root)


def stays_soft(subgroup: str, result: dict[str, Any]) -> bool:
    """Return whether hardening did not make all layers strict in a subgroup together."""
    return not next(trial["is_hardened"] for trial in result["trials"] if trial["subgroup"] == subgroup)


def largest_share(subgroup: str, result: dict[str, Any]) -> float:
    """Return the largest γ/n of the layers in a subgroup."""
    return max(row["determined"] / row["weights"] for row in result["rows"] if row["subgroup"] == subgroup)


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files; without, scikit-learn's digits")
    parser.add_argument("--cases", default="", help="only cases whose network and task contain one of these, by ;")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--images", default="300,1000,3000", help="training images, separated by commas")
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes of one thread each")
    arguments = parser.parse_args()
    cases = [case for case in CASES if any(part in case.run.name for part in arguments.cases.split(";"))]
    sizes, log = [int(size) for size in arguments.images.split(",")], Log(arguments.log)
    wanted = {
        key(case.run, seed, size): (case.run, seed, size, arguments.data)
        for seed in range(arguments.seeds)
        for size in sizes
        for case in cases
    }
    for count, name in run_missing(wanted, train_case, log, arguments.workers):
        print(count, json.loads(name)[0]["task"], f"{log.runs[name]['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
