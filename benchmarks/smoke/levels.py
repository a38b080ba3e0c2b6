"""Errors of the ways to relax on smoke whose symmetry is broken more and more, level by level.

    python -m benchmarks.smoke.levels [--parts rotation;translation] [--ways …] [--rate 0.03] [--seeds 3]

Velocity and smoke → those of the next frame, in a box of 32×32 cells: four layers (5×5) with as many parameters each,
within a tenth, Adam for 400 steps of 8 frames. The rate is given, or of each way the best of three on validation puffs,
at the lowest and the highest level. Needs PhiFlow, the extra ``smoke``; what it simulates is kept in the cache. Runs
are logged as they end, and a second call goes on from the log; ``--report`` shows what it holds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from benchmarks.shared.regressions import Learner
from benchmarks.shared.run_log import Log, run_missing
from benchmarks.smoke.smoke_data import Puffs, own_error, simulated
from benchmarks.smoke.smoke_networks import WAYS, Forecaster
from benchmarks.smoke.smoke_report import Found, draw, tables
from escnn_relaxed import harden_network
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

# Puffs for training and for validation; the rest is for the test.
TRAINING, VALIDATION = 5, 2
LEVELS = (0, 1, 3, 9)
RATES = (3e-3, 1e-2, 3e-2)
# The way whose rate another has.
RATE_OF = {"evidence": "relaxed"}
STEPS, BATCH = 400, 8
FRAMES_AHEAD = 10


@dataclass(frozen=True)
class Run:
    """One training."""

    symmetry: str
    level: int
    way: str
    rate: float
    seed: int

    def __str__(self) -> str:
        return f"{self.symmetry}, level {self.level}, {self.way}, rate {self.rate:g}, seed {self.seed}"


def windows(films: Tensor, length: int) -> Tensor:
    """All parts of films that are some frames long, (window, frame, channel, row, column)."""
    return films.unfold(2, length, 1).movedim(-1, 3).flatten(0, 2)


def train(run: Run, cache: Path) -> dict[str, Any]:
    """One network, and what is measured of it."""
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    films = simulated(Puffs(run.symmetry, run.level), cache)
    known, held_out, test = films.tensor_split((TRAINING, TRAINING + VALIDATION))
    way = WAYS[run.symmetry][run.way]
    network = Forecaster(run.symmetry, way)
    pairs = windows(known, 2)
    network.set_scales(pairs)
    learner = Learner(network, network.scales[1], (pairs[:, 0], pairs[:, 1])) if way.has_evidence else None
    start = time.process_time()
    if learner is None:
        losses = fit(network, pairs, run.rate)
    else:
        losses = fit(network, pairs, run.rate, learner.evidence.penalty, learner.after_epoch)
    network.eval()
    result: dict[str, Any] = {
        "seconds": time.process_time() - start,
        "losses": losses,
        "parameters": sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad),
        "validation": error(network, held_out, 1),
        **errors(network, test),
    }
    soft = [layer for _, layer in named_relaxed_layers(network)]
    if soft:
        result["softness"] = [layer.softness().item() for layer in soft]
        result |= {f"hardened {name}": value for name, value in errors(harden_network(network), test).items()}
    if learner is not None:
        others = windows(held_out, 2)
        result |= learner.read((others[:, 0], others[:, 1]), lambda: errors(network, test))
    return result


def fit(
    network: Forecaster,
    pairs: Tensor,
    rate: float,
    penalty: Callable[[], Tensor] | None = None,
    after_epoch: Callable[[int], None] | None = None,
) -> list[float]:
    """Train on pairs of frames; the mean loss of each tenth of the steps, as a part of what changes."""
    network.set_scales(pairs)
    steps_of_an_epoch = max(len(pairs) // BATCH, 1)
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    losses = []
    for step in range(STEPS):
        now, later = pairs[torch.randint(len(pairs), (BATCH,))].unbind(1)
        loss = ((network(now) - later) / network.scales[1]).square().mean()
        losses.append(loss.item())
        if penalty is not None:
            loss = loss + penalty()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if after_epoch is not None and (step + 1) % steps_of_an_epoch == 0:
            after_epoch(step // steps_of_an_epoch)
    tenth = max(STEPS // 10, 1)
    return [fmean(losses[first : first + tenth]) for first in range(0, STEPS, tenth)]


def errors(network: torch.nn.Module, films: Tensor) -> dict[str, float]:
    """The errors of the next frame and of the last of a rollout."""
    return {"error": error(network, films, 1), "rollout": error(network, films, FRAMES_AHEAD)}


@torch.no_grad()
def error(network: torch.nn.Module, films: Tensor, frames: int) -> float:
    """‖predicted − true‖ / ‖true‖ of velocities so many frames ahead, each predicted from the prediction before."""
    parts = windows(films, frames + 1)
    state = parts[:, 0]
    for _ in range(frames):
        state = network(state)
    return float((state - parts[:, -1])[:, :2].norm() / parts[:, -1, :2].norm())


def trials(symmetry: str, way: str, rate: float) -> list[Run]:
    """The runs by which rates are chosen: the first seed at the levels that are furthest apart."""
    return [Run(symmetry, level, RATE_OF.get(way, way), rate, 0) for level in (max(LEVELS), min(LEVELS))]


def chosen_rate(symmetry: str, way: str, log: Log) -> float:
    """The rate of the least product of validation errors."""
    return min(RATES, key=lambda rate: prod(log.runs[str(run)]["validation"] for run in trials(symmetry, way, rate)))


def chosen_runs(symmetry: str, ways: Sequence[str], seeds: int, log: Log, rate: float | None = None) -> list[Run]:
    """All runs of the ways at a rate, or of those whose trials are done at their own; seed by seed."""
    if rate is None:
        ways = [way for way in ways if all(str(run) in log.runs for r in RATES for run in trials(symmetry, way, r))]
    rates = {way: rate or chosen_rate(symmetry, way, log) for way in ways}
    choices = ((seed, level, way) for seed in range(seeds) for level in LEVELS for way in ways)
    return [Run(symmetry, level, way, rates[way], seed) for seed, level, way in choices]


def train_missing(runs: Sequence[Run], cache: Path, log: Log, workers: int) -> None:
    """Simulate and train what is not there."""
    for symmetry, level in dict.fromkeys((run.symmetry, run.level) for run in runs):
        simulated(Puffs(symmetry, level), cache)
    for count, name in run_missing({str(run): (run, cache) for run in runs}, train, log, workers):
        print(f"{count} {name}: {log.runs[name]['error']:.4f}", flush=True)


def found_at(symmetry: str, level: int, runs: Sequence[Run], log: Log, cache: Path) -> Found:
    """The data's own error, that of saying that nothing changes, and the results of each way by seed."""
    films = simulated(Puffs(symmetry, level), cache)
    test = films[TRAINING + VALIDATION :]
    done = [run for run in runs if run.level == level and str(run) in log.runs]
    return Found(
        own_error(films, symmetry),
        errors(torch.nn.Identity(), test),
        {way: [log.runs[str(run)] for run in done if run.way == way] for way in dict.fromkeys(run.way for run in done)},
    )


def main() -> None:
    """Train what is missing, print the tables, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="rotation;translation", help="separated by ;")
    parser.add_argument("--ways", default="", help="only these, separated by ;")
    parser.add_argument("--rate", type=float, help="of all ways, in place of the best of three for each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--output", type=Path, default=Path("runs/smoke"), help="folder of the log, tables and pictures"
    )
    parser.add_argument("--cache", type=Path, default=Path("data/smoke"), help="folder of what is simulated")
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--report", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for symmetry in arguments.parts.split(";"):
        if symmetry not in WAYS:
            parser.error(f"--parts: {symmetry!r} is none of {list(WAYS)}")
        ways = [way for way in WAYS[symmetry] if not arguments.ways or way in arguments.ways.split(";")]
        log = Log(arguments.output / f"{symmetry}.jsonl")
        if not arguments.report:
            if arguments.rate is None:
                tried = [run for rate in RATES for way in ways for run in trials(symmetry, way, rate)]
                train_missing(tried, arguments.cache, log, arguments.workers)
            wanted = chosen_runs(symmetry, ways, arguments.seeds, log, arguments.rate)
            train_missing(wanted, arguments.cache, log, arguments.workers)
        runs = chosen_runs(symmetry, ways, arguments.seeds, log, arguments.rate)
        found = {level: found_at(symmetry, level, runs, log, arguments.cache) for level in LEVELS}
        text = tables(symmetry, found)
        print(f"\n{text}")
        (arguments.output / f"{symmetry}.md").write_text(text)
        draw(arguments.output / f"{symmetry}.png", found)


if __name__ == "__main__":
    main()
