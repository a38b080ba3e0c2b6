"""The place of softness in a network, and the need for it: hardening ablations, annealing and bounds on real digits.

    python -m benchmarks.accuracy.strict_part --data DIRECTORY [--runs PARTS] [--seeds 3] [--images 3000]

Networks of four layers (C8, 6, 6, 6, 12 regular fields, 7×7 then 5×5), Adam at 1e-2, 12 epochs. Runs are logged as they
end, and a second call goes on from the log.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.shared.networks import build_network
from benchmarks.shared.run_log import Log, run_missing
from benchmarks.shared.tasks import image_task
from benchmarks.shared.training import accuracy, change_under_quarter_turn, fit
from escnn_relaxed import SoftnessBound, equivariance_penalty, relax_network, softness_ablation
from escnn_relaxed.measure import AblationRow
from experiments.mean_and_error import mean_and_error

RATE = 1e-2
EPOCHS = 12
WIDTHS = (6, 6, 6, 12)


@dataclass(frozen=True)
class Run:
    """A way to train on a task.

    Attributes:
        name: of the run.
        task: of :mod:`tasks`.
        options: of ``RelaxedR2Conv``.
        penalty: λ of Σ √s.
        bound: ε of s ≤ ε, None for none.
        relax_at: epochs after which a network of ``R2Conv`` is relaxed, 0 for one that is relaxed from the start.
    """

    name: str
    task: str
    options: dict[str, Any] = field(default_factory=dict)
    penalty: float = 0.0
    bound: float | None = None
    relax_at: int = 0


STRICT: dict[str, Any] = {"relax": None}
LEARNED: dict[str, Any] = {"relax": {"rotation": 0.1}, "learn_relaxation": True}
RUNS = [
    *(Run(f"strict, {task}", task, STRICT) for task in ("MNIST6-180", "turned", "within 60°", "upright")),
    Run("ablation, MNIST6-180", "MNIST6-180", penalty=1.0),
    *(Run(f"ablation, turned, λ = {penalty:g}", "turned", LEARNED, penalty=penalty) for penalty in (0.1, 1.0)),
    Run("ablation, within 60°", "within 60°"),
    *(Run(f"bound, {task}", task, bound=0.01) for task in ("MNIST6-180", "turned", "within 60°")),
    *(Run(f"relaxed from the start, {task}", task) for task in ("MNIST6-180", "within 60°", "upright")),
    *(Run(f"relaxed after 8 epochs, {task}", task, relax_at=8) for task in ("MNIST6-180", "within 60°", "upright")),
]


def train(run: Run, seed: int, images: int, root: Path | None) -> dict[str, Any]:
    """One network: accuracy, error, softness by layer, the ablation, multipliers."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    train_split, test_split = image_task(run.task, images, seed, root)
    network = build_network("C8 regular", WIDTHS, 5, None if run.relax_at else run.options)
    if run.relax_at:
        fit(network, train_split, torch.optim.Adam(network.parameters(), lr=RATE), run.relax_at)
        network = relax_network(network, **run.options)
    bound = None if run.bound is None else SoftnessBound(network, run.bound)

    def penalty() -> Tensor:
        if bound is not None:
            return bound.penalty()
        return run.penalty * equivariance_penalty(network, "softness") if run.penalty else torch.zeros(())

    def after_step() -> None:
        if bound is not None:
            bound.step()

    optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
    fit(network, train_split, optimiser, EPOCHS - run.relax_at, penalty=penalty, after_step=after_step)
    rows = softness_ablation(network, lambda net: accuracy(net, test_split))
    return {
        "accuracy": accuracy(network, test_split),
        "change": change_under_quarter_turn(network, test_split[0][:500]),
        "ablation": {row.part: row.value for row in rows},
        "softness": {row.part: row.softness for row in rows if row.kind == "layer"},
        "frequency": _frequencies(network),
        "multipliers": {} if bound is None else bound.multipliers,
    }


def _frequencies(network: nn.Module) -> list[float]:
    return [float(value) for name, value in network.state_dict().items() if name.endswith("kernel.frequency.rotation")]


def _short(values: list[float]) -> str:
    return ", ".join(f"{value:.2g}" for value in values)


def report(run: Run, results: list[dict[str, Any]]) -> str:
    """A run as lines of text."""
    changes = _short([result["change"] for result in results])
    lines = [
        f"{run.name}: accuracy {mean_and_error([result['accuracy'] for result in results])} %, change at 90° {changes}"
    ]
    for part in results[0]["ablation"]:
        if all(part in result["ablation"] for result in results):
            line = f"    {part} hardened: {mean_and_error([result['ablation'][part] for result in results])} %"
            for key in ("softness", "multipliers"):
                if all(part in result[key] for result in results):
                    line += f", {key} {_short([result[key][part] for result in results])}"
            lines.append(line)
    lines.append(f"    ω′ {[[round(value, 3) for value in result['frequency']] for result in results]}")
    return "\n".join(lines)


def draw(path: Path, results: dict[str, list[dict[str, Any]]]) -> None:
    """Ablation and softness by depth of each run, means over the seeds."""
    from matplotlib import pyplot

    from escnn_relaxed.plots import plot_ablation

    figure, panels = pyplot.subplots(
        2, len(results), figsize=(4 * len(results), 6), layout="constrained", squeeze=False
    )
    for column, (name, runs) in enumerate(results.items()):
        layers = list(runs[0]["softness"])
        rows = [
            AblationRow(_label(part, layers), "layer" if part in layers else "network", value, 0.0, 0.0)
            for part in ("nothing", *layers, "everything")
            for value in [sum(run["ablation"][part] for run in runs) / len(runs)]
        ]
        # The legend stands between the title and the bars.
        plot_ablation(rows, axes=panels[0, column]).set_title(name, pad=20)
        softness = [sum(run["softness"][layer] for run in runs) / len(runs) for layer in layers]
        panels[1, column].bar(range(1, len(layers) + 1), softness, color="#0072b2")
        panels[1, column].set(yscale="log", ylim=(1e-16, 1), xlabel="layer", ylabel="softness s")
        # From 0 a loss of some points would not be seen.
        panels[0, column].set_ylim(max(0, min(row.value for row in rows) - 10), 100)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _label(part: str, layers: list[str]) -> str:
    return f"layer {layers.index(part) + 1}" if part in layers else part


def main() -> None:
    """Parse the command line, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files; without, scikit-learn's digits")
    parser.add_argument("--runs", default="", help="only runs whose name contains one of these, separated by ;")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--log", type=Path, default=Path("runs/strict_part.jsonl"))
    parser.add_argument("--picture", type=Path, help="where to draw the ablations of the chosen runs")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes of one thread each")
    arguments = parser.parse_args()
    runs = [run for run in RUNS if any(part in run.name for part in arguments.runs.split(";"))]
    log = Log(arguments.log)
    wanted = {
        json.dumps([asdict(run), seed, arguments.images]): (run, seed)
        for run in runs
        for seed in range(arguments.seeds)
    }
    described = {name: (*choice, arguments.images, arguments.data) for name, choice in wanted.items()}
    for _, name in run_missing(described, train, log, arguments.workers):
        print(report(wanted[name][0], [log.runs[name]]), flush=True)
    print()
    results = {run.name: [log.runs[name] for name, (other, _) in wanted.items() if other == run] for run in runs}
    for run in runs:
        print(report(run, results[run.name]))
    if arguments.picture:
        draw(arguments.picture, results)


if __name__ == "__main__":
    main()
