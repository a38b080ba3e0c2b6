"""Tables and a picture of what the evidence does, from the lines of JSON that its runs leave.

    python -m benchmarks.accuracy.evidence_report [--results benchmarks/results/evidence] [--pictures docs/images]

Writes ``accuracy.md``, ``ways.md`` and ``discovery.md`` beside the lines, tables that docs/results/learning.md
includes. Numbers are of five seeds, or of as many as they or their row say.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from matplotlib import colormaps, pyplot

from benchmarks.accuracy.discovery import CASES, Case, largest_share, stays_soft
from benchmarks.accuracy.evidence import COMPARED, LOG, PLACES, WAYS, Run, all_runs, best, key
from benchmarks.shared import markdown
from benchmarks.shared.run_log import Log
from benchmarks.shared.training import FIRST_EPOCH
from escnn_relaxed.plots.charts import FONT, WIDTH, labelled, new_axes

__all__ = ["SECTIONS", "draw"]

SEEDS, IMAGES, SIZES = 5, 1000, (300, 1000, 3000)
# Of the one task where five had the evidence behind R2Conv by more than two errors.
MOST_SEEDS = 15
NETWORK = {"plain CNN on the torus": "torus", "SO(2) irreps, gated": "SO(2)", "octahedral, volumes": "octahedral"}
DRAWN = ("upright", "within 60°", "turned")
Result = dict[str, Any]


def short(network: str) -> str:
    """The name of a network in a table."""
    return NETWORK.get(network, network.removesuffix(" regular"))


def by_seed(log: Log, run: Run, images: int = IMAGES, seeds: int = SEEDS) -> dict[int, Result]:
    """Results of a run, as far as they are there."""
    names = {seed: key(run, seed, images) for seed in range(seeds)}
    return {seed: log.runs[name] for seed, name in names.items() if name in log.runs}


def cell(values: Sequence[float], seeds: int = SEEDS) -> str:
    """Mean ± error, and of how many seeds if not of the table's."""
    return markdown.cell(values, seeds)


def difference(results: dict[int, Result], others: dict[int, Result], seeds: int) -> str:
    """The mean difference seed by seed, with its sign."""
    values = [results[seed]["accuracy"] - others[seed]["accuracy"] for seed in results.keys() & others.keys()]
    return markdown.signed(cell(values, seeds))


def accuracy_section(log: Log) -> str:
    """Strict, soft and by the evidence, on every task."""
    rows = []
    for network, task in PLACES:
        runs = {run.way: run for run in all_runs() if (run.network, run.task) == (network, task)}
        strict, soft, evidence = (by_seed(log, runs[way], seeds=MOST_SEEDS) for way in ("R2Conv", "soft", "evidence"))
        if not (strict and soft and evidence):
            continue
        seeds = max(SEEDS, len(evidence))
        accuracies = [cell([result["accuracy"] for result in of.values()], seeds) for of in (strict, soft, evidence)]
        softness = [f"{median(max(result['softness']) for result in of.values()):.0e}" for of in (soft, evidence)]
        differences = difference(evidence, strict, seeds), difference(evidence, soft, seeds)
        label = f"{short(network)}, {task}" + (f" ({seeds} seeds)" if seeds > SEEDS else "")
        rows.append([label, *accuracies, *differences, ", ".join(softness)])
    heads = ["network, task", "`R2Conv`", "soft", "evidence", "− `R2Conv`", "− soft", "largest s: soft, evidence"]
    return markdown.table(heads, rows) + "\n"


def ways_section(log: Log) -> str:
    """The evidence, and how far other ways, each with its best λ, are from it."""
    names = [way for way, (weights, _) in WAYS.items() if weights[0]]
    chosen = best([run for run in all_runs() if 0 in by_seed(log, run)], IMAGES, log)
    by_place = {(run.network, run.task, run.way): run for run in chosen}
    rows = []
    for network, task in (place for place in PLACES if place[0] in COMPARED):
        evidence = by_seed(log, by_place[network, task, "evidence"], seeds=MOST_SEEDS)
        cells = [cell([result["accuracy"] for result in evidence.values()])]
        for way in names:
            run = by_place.get((network, task, way))
            found = None if run is None else difference(by_seed(log, run), evidence, SEEDS)
            cells.append("–" if found is None else f"{found}; {run.weight:g}")
        rows.append([f"{short(network)}, {task}", *cells])
    return markdown.table(["network, task", "evidence", *(f"{name} − evidence; λ" for name in names)], rows) + "\n"


def discovery_section(log: Log) -> str:
    """How often the evidence is right on what the data break."""
    rows, right = [], {size: [0, 0] for size in SIZES}
    for case in CASES:
        for subgroup in (*case.broken, *case.kept):
            is_broken = subgroup in case.broken
            cells = [f"{short(case.network)}, {case.task}", subgroup, "broken" if is_broken else "kept"]
            for size in SIZES:
                results = list(by_seed(log, case.run, size).values())
                correct = sum(stays_soft(subgroup, result) == is_broken for result in results)
                right[size] = [right[size][0] + correct, right[size][1] + len(results)]
                cells.append(_discovered(case, subgroup, correct, results))
            rows.append(cells)
    total = [f"**{correct} of {of}**" for correct, of in right.values()]
    heads = ["network, data", "subgroup", "truth", *(f"{size:,}: right; Δ, price; γ/n" for size in SIZES)]
    return markdown.table(heads, [*rows, ["all", "", "", *total]]) + "\n"


def _discovered(case: Case, subgroup: str, correct: int, results: Sequence[Result]) -> str:
    """A cell of the table of discovery."""
    if not results:
        return "–"
    trials = [next(of for of in result["trials"] if of["subgroup"] == subgroup) for result in results]
    rise, price = (fmean(trial[of] for trial in trials) for of in ("rise", "price"))
    share = fmean(largest_share(subgroup, result) for result in results)
    return f"{correct} of {len(results)}; {rise:.0f}, {price:.0f}; {share:.2f}".replace("-", "−")


SECTIONS: dict[str, Callable[[Log], str]] = {
    "accuracy.md": accuracy_section,
    "ways.md": ways_section,
    "discovery.md": discovery_section,
}


def draw(log: Log, path: Path) -> None:
    """γ/n and s of each layer over the epochs, a column for each task, of C8 and the first seed."""
    results = {task: by_seed(log, Run("C8 regular", task, "evidence"))[0] for task in DRAWN}
    size = (2.2 * WIDTH, 3.6)
    figure, panels = pyplot.subplots(2, len(results), figsize=size, layout="constrained", sharex=True, sharey="row")
    for column, (task, result) in enumerate(results.items()):
        epochs = [FIRST_EPOCH + 1 + number for number in range(len(result["history"]))]
        layers = range(len(result["history"][0]))
        for layer in layers:
            colour = colormaps["viridis"](0.88 * layer / max(1, len(layers) - 1))
            for row in range(2):
                values = [epoch[layer][row] for epoch in result["history"]]
                panels[row, column].plot(epochs, values, color=colour, label=f"layer {layer + 1}")
        share, softness = (new_axes(panels[row, column], 0) for row in range(2))
        share.set_title(task, fontsize=FONT)
        share.set_ylim(0, 1)
        softness.set_yscale("log")
        labelled(softness, "epoch", "softness s" if column == 0 else "").get_legend().remove()
        share.set_ylabel("determined, γ/n" if column == 0 else "", fontsize=FONT)
    panels[0, -1].legend(fontsize=FONT - 1, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main() -> None:
    """Write the tables and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=LOG.parent)
    parser.add_argument("--pictures", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    log = Log(arguments.results / LOG.name)
    for name, section in SECTIONS.items():
        (arguments.results / name).write_text(section(log), encoding="utf-8")
    draw(log, arguments.pictures / "evidence.png")


if __name__ == "__main__":
    main()
