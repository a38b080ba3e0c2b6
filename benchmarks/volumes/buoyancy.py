"""Ways to predict buoyant flow in space: what softness brings where gravity breaks the symmetry of the cube.

    python -m benchmarks.volumes.buoyancy [--seeds 2]

Networks of three 3×3×3 convolutions predict the next frame of a box of 8³ cells from this one, with as many parameters
each within a fifth. The error is that of the velocity's and smoke's change, relative, squared; of a rollout that of the
state five frames ahead, relative, squared. Runs are logged as they end, and a second call goes on from the log.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from escnn import gspaces
from escnn.nn import FieldType, R3Conv
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.shared.flow import OF_SPACE, flow_in_space
from benchmarks.shared.markdown import cell, table
from benchmarks.shared.run_log import Log
from benchmarks.shared.training import FIRST_ROUND, Split, softness_of, take_steps, update
from escnn_relaxed import RelaxedR3Conv, SoftnessEvidence, harden_network

BUOYANCIES = (0.0, 0.125, 0.25, 0.5)
TRAINING, BATCH, RATE, STEPS, KERNEL_SIZE = 32, 4, 1e-2, 2000, 3
# What is simulated, once.
CACHE = Path("data/flow")


@dataclass(frozen=True)
class Way:
    """A way to build the layers."""

    layer: Callable[..., nn.Module]
    # Of each hidden layer; channels of plain ones.
    fields: int
    options: dict[str, Any] = field(default_factory=dict)
    # The quarter turns about the vertical axis alone are the group, in place of the cube's.
    is_about_axis: bool = False
    # The unit vector along z is an input.
    sees_up: bool = False
    has_evidence: bool = False


WAYS = {
    "Conv3d": Way(nn.Conv3d, 4),
    "strict": Way(R3Conv, 2),
    "strict, up as an input": Way(R3Conv, 2, sees_up=True),
    "strict about the axis": Way(R3Conv, 4, is_about_axis=True),
    "soft": Way(RelaxedR3Conv, 2),
    "soft, exact about the axis": Way(RelaxedR3Conv, 2, {"keep": "SO(2)"}),
    "evidence": Way(RelaxedR3Conv, 2, has_evidence=True),
}


class Forecaster(nn.Module):
    """Velocity and smoke → the same at the next frame, (batch, 4, D, H, W), by their change; films tell the units."""

    def __init__(self, way: Way, films: Tensor) -> None:
        super().__init__()
        gspace = gspaces.rot2dOnR3(4) if way.is_about_axis else gspaces.octaOnR3()
        vector = gspace.basespace_action
        state = FieldType(gspace, [vector, gspace.trivial_repr])
        self.in_type = FieldType(gspace, [vector, gspace.trivial_repr, *([vector] if way.sees_up else [])])
        hidden = FieldType(gspace, [gspace.regular_repr] * way.fields)
        self.sees_up = way.sees_up
        types = pairwise([self.in_type, hidden, hidden, state])
        if way.layer is nn.Conv3d:
            sizes = pairwise([4, way.fields, way.fields, 4])
            self.layers = nn.ModuleList(nn.Conv3d(*size, KERNEL_SIZE) for size in sizes)
        else:
            self.layers = nn.ModuleList(way.layer(*of, KERNEL_SIZE, **way.options) for of in types)
        self.gain = nn.Parameter(torch.tensor(0.1))
        self.scales = _root_mean_squares(films), _root_mean_squares(films.diff(dim=1))

    def forward(self, state: Tensor) -> Tensor:
        """(batch, 4, D, H, W) → the same shape."""
        features = state / self.scales[0]
        if self.sees_up:
            up = features.new_tensor([0.0, 0.0, 1.0]).view(1, 3, 1, 1, 1)
            features = torch.cat([features, up.expand(len(features), -1, *features.shape[2:])], 1)
        for number, layer in enumerate(self.layers):
            features = functional.pad(functional.silu(features) if number else features, (1,) * 6, mode="circular")
            features = layer(features) if isinstance(layer, nn.Conv3d) else layer(layer.in_type(features)).tensor
        return state + self.gain * self.scales[1] * features


def _root_mean_squares(films: Tensor) -> Tensor:
    """Return the root mean square of the velocity and of smoke, (4, 1, 1, 1)."""
    squares = films.square().mean((0, 1, 3, 4, 5))
    return torch.cat([squares[:3].mean().expand(3), squares[3:]]).sqrt().view(4, 1, 1, 1)


def name_of(buoyancy: float, way: str, seed: int) -> str:
    """Return the name of a run in the log."""
    settings = {"rate": RATE, "batch": BATCH, "size": OF_SPACE["size"], "fields": WAYS[way].fields, "steps": STEPS}
    return json.dumps({"buoyancy": buoyancy, "way": way, "seed": seed, **settings}, sort_keys=True)


def train(buoyancy: float, way: Way, seed: int) -> dict[str, Any]:
    """One network and what is measured of it."""
    torch.manual_seed(seed)
    films = flow_in_space(buoyancy, CACHE)
    # In units of the changes that are to be predicted, so that the loss is a mean square.
    films = films / films[:TRAINING].diff(dim=1).square().mean().sqrt()
    known, test = films[:TRAINING], films[TRAINING:]
    network, pairs = Forecaster(way, known), pairs_of(known)
    evidence = SoftnessEvidence(network, len(pairs[0]), likelihood="gaussian") if way.has_evidence else None
    start = time.process_time()
    fit(network, pairs, evidence)
    network.eval()
    result: dict[str, Any] = {"seconds": time.process_time() - start}
    result["parameters"] = sum(parameter.numel() for parameter in network.parameters())
    result |= errors(network, test) | softness_of(network)
    if "softness" in result:
        result["hardened error"] = errors(harden_network(network), test)["error"]
    if evidence is not None:
        update(evidence, pairs)
        result["rows"] = [asdict(row) for row in evidence.table()]
        result["trials, held out"] = [asdict(trial) for trial in evidence.harden(*pairs_of(test))]
    return result


def pairs_of(films: Tensor) -> Split:
    """Return all frames that have a next one, and these."""
    return films[:, :-1].flatten(0, 1), films[:, 1:].flatten(0, 1)


def fit(network: Forecaster, pairs: Split, evidence: SoftnessEvidence | None) -> None:
    """Train on pairs of frames, Adam with a rate that rises and falls; updates of the evidence end each epoch."""
    optimiser = torch.optim.Adam(network.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=STEPS)
    of_an_epoch = max(len(pairs[0]) // BATCH, 1)
    penalties = [] if evidence is None else [evidence.penalty]
    for epoch, first in enumerate(range(0, STEPS, of_an_epoch)):
        drawn = torch.randint(len(pairs[0]), (min(of_an_epoch, STEPS - first), BATCH))
        states = ((pairs[0][batch], pairs[1][batch]) for batch in drawn)
        batches = ((now, torch.stack([then, then - now])) for now, then in states)
        take_steps(network, batches, _error, optimiser, penalties=penalties, after_step=schedule.step)
        if evidence is not None and epoch >= FIRST_ROUND and len(drawn) == of_an_epoch:
            update(evidence, pairs)


@torch.no_grad()
def errors(network: nn.Module, films: Tensor) -> dict[str, float]:
    """The error of the next frame, and of the last one from the first."""
    now, then = pairs_of(films)
    state = films[:, 0]
    for _ in range(films.shape[1] - 1):
        state = network(state)
    wanted, last = torch.stack([then, then - now]), films[:, -1]
    return {"error": float(_error(network(now), wanted)), "rollout": float(_error(state, torch.stack([last, last])))}


def _error(found: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean square error, relative to that of a second tensor that is stacked with what is wanted."""
    return (found - wanted[0]).square().mean() / wanted[1].square().mean()


# What is told of a run: its name in the table, and in the log. Of a list, one number for each layer, it is the largest.
MEASURES = {
    "next frame, %": "error",
    "five frames ahead, %": "rollout",
    "next frame, hardened, %": "hardened error",
    "softness of the softest layer, %": "softness",
}


def report(seeds: int, log: Log) -> str:
    """Return a table for each measure, mean ± standard error of each way at each buoyancy, and one of the evidence."""

    def runs_of(way: str, value: float) -> list[dict[str, Any]]:
        names = (name_of(value, way, seed) for seed in range(seeds))
        return [log.runs[name] for name in names if name in log.runs]

    tables = []
    for title, name in MEASURES.items():
        rows = []
        for way in WAYS:
            runs = [runs_of(way, value) for value in BUOYANCIES]
            values = [[100 * float(np.max(run[name])) for run in some if name in run] for some in runs]
            if any(values):
                parameters = next(run["parameters"] for some in runs for run in some)
                rows.append([way, f"{parameters:,}", *(cell(some, len(some)) for some in values)])
        tables.append(table([title, "parameters", *(f"buoyancy {value:g}" for value in BUOYANCIES)], rows))
    evidence = [[f"{value:g}", *_decisions(runs)] for value in BUOYANCIES if (runs := runs_of("evidence", value))]
    tables.append(table(("buoyancy", "γ/n by layer", "Δ", "Occam factor", "layers that stay soft"), evidence))
    return "\n\n".join(tables)


def _decisions(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return means over seeds of what the evidence says of all layers; of each seed how many stay soft."""
    by_layer = list(zip(*(run["rows"] for run in runs), strict=True))
    ratios = [fmean(row["determined"] / row["weights"] for row in rows) for rows in by_layer]
    trials = [run["trials, held out"] for run in runs]
    rise, error, occam_factor = (fmean(some[0][key] for some in trials) for key in ("rise", "error", "occam_factor"))
    kept = [len(by_layer) - sum(len(trial["layers"]) for trial in some if trial["is_hardened"]) for some in trials]
    return [
        ", ".join(f"{ratio:.2f}" for ratio in ratios),
        f"{rise:,.0f} ± {error:,.0f}".replace("-", "−"),
        f"{occam_factor:.0f}",
        f"{', '.join(map(str, kept))} of {len(by_layer)}",
    ]


def main() -> None:
    """Train what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("runs/volumes/buoyancy.jsonl"), help="the log")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = Log(arguments.output)
    for seed, value, way in product(range(arguments.seeds), BUOYANCIES, WAYS):
        log.once(name_of(value, way, seed), partial(train, value, WAYS[way], seed))
    print(report(arguments.seeds, log))


if __name__ == "__main__":
    main()
