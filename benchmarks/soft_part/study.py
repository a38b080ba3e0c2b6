"""Relaxed layers beside ``R2Conv`` and ``PartialR2Conv``, with as many parameters, on digits and smoke.

    python -m benchmarks.soft_part.study --data DIRECTORY [--cells …] [--forms …] [--seeds 10,11] [--report]

A *cell* is a task for a network, and a *form* a way to build its layers (``FORMS``). Digits are 1,000 of MNIST (3,000
on the torus), 12 epochs of Adam; smoke is that of ``smoke/levels.py``, rotation. Runs are logged as they end, and a
second call goes on from the log; ``--report`` trains nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.shared.run_log import Log, run_missing
from benchmarks.shared.tasks import image_task
from benchmarks.shared.training import accuracy, fit
from benchmarks.smoke import levels
from benchmarks.smoke.smoke_data import Puffs, simulated
from benchmarks.soft_part.forms import CELLS, DIGITS, FORMS, SMOKE, Run, build, can, network_of, rate_of, widths_of
from benchmarks.soft_part.report import report
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

# Images for validation are drawn as in ways.py, so that the test is on those of its seeds.
IMAGES, VALIDATION, EPOCHS = 1000, 1000, 12


def train(run: Run, root: Path | None, cache: Path) -> dict[str, Any]:
    """One network and what is measured of it."""
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    network = build(run.form, network_of(run.cell), run.widths)
    start = time.process_time()
    measured = _smoke(run, network, cache) if run.cell in SMOKE else _digits(run, network, root)
    softness = [layer.softness().item() for _, layer in named_relaxed_layers(network)]
    parameters = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    return {**measured, "softness": softness, "parameters": parameters, "seconds": time.process_time() - start}


def _digits(run: Run, network: nn.Module, root: Path | None) -> dict[str, Any]:
    # With 1,000 no form learns the digit and the quadrant.
    count = 3 * IMAGES if network_of(run.cell).startswith("plain") else IMAGES
    (images, labels), test = image_task(DIGITS[run.cell][1], count + VALIDATION, run.seed, root)
    fit(network, (images[:count], labels[:count]), torch.optim.Adam(network.parameters(), lr=run.rate), EPOCHS)
    held_out = images[count:], labels[count:]
    return {"validation": accuracy(network, held_out), "test": accuracy(network, test)}


def _smoke(run: Run, network: nn.Module, cache: Path) -> dict[str, Any]:
    films = simulated(Puffs("rotation", SMOKE[run.cell]), cache)
    known, held_out, test = films.tensor_split((levels.TRAINING, levels.TRAINING + levels.VALIDATION))
    losses = levels.fit(network, levels.windows(known, 2), run.rate)
    network.eval()
    return {
        "loss": losses[-1],
        "validation": levels.error(network, held_out, 1),
        "test": levels.error(network, test, 1),
        "rollout": levels.error(network, test, levels.FRAMES_AHEAD),
    }


def wanted_runs(cells: Sequence[str], forms: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """All runs of these, seed by seed."""
    return [
        Run(cell, form, widths_of(cell, form), rate_of(cell), seed)
        for seed in seeds
        for cell in cells
        for form in forms
        if can(form, network_of(cell))
    ]


def train_missing(runs: Sequence[Run], root: Path | None, cache: Path, log: Log, workers: int) -> None:
    """Simulate and train what is not there."""
    for level in dict.fromkeys(SMOKE[run.cell] for run in runs if run.cell in SMOKE):
        simulated(Puffs("rotation", level), cache)
    wanted = {str(run): (run, root, cache) for run in runs}
    for count, name in run_missing(wanted, train, log, workers):
        run, result = wanted[name][0], log.runs[name]
        print(f"{count} {run.cell}: {run.form}, rate {run.rate:g}, seed {run.seed}: {result['test']:.4f}", flush=True)


def main() -> None:
    """Train what is missing, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files; without, scikit-learn's digits")
    parser.add_argument("--cells", default=";".join(CELLS), help="separated by ;")
    parser.add_argument("--forms", default=";".join(FORMS), help="separated by ;")
    parser.add_argument("--seeds", default="10", help="separated by commas")
    parser.add_argument("--output", type=Path, default=Path("runs/soft-part"), help="folder of the log and the table")
    parser.add_argument("--cache", type=Path, default=Path("data/smoke"), help="folder of what is simulated")
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--report", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    log = Log(arguments.output / "runs.jsonl")
    if not arguments.report:
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
        runs = wanted_runs(arguments.cells.split(";"), arguments.forms.split(";"), seeds)
        train_missing(runs, arguments.data, arguments.cache, log, arguments.workers)
    text = report(log)
    print(f"\n{text}")
    (arguments.output / "table.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
