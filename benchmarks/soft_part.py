"""Which form the soft part of a layer has: candidates beside ``R2Conv``, on digits and smoke.

    python benchmarks/soft_part.py --data DIRECTORY [--cells …] [--forms …] [--seeds 10,11] [--rates …] [--report]

A *cell* is a task for a network, a *form* a way to build its layers (``FORMS``), and a *side* says with what fields:
``same`` as the strict network, or ``equal``, as many of them as give its number of parameters within 3.5 %. Digits are
1,000 of MNIST for training and 1,000 for validation, 12 epochs of Adam; smoke is that of ``smoke.py``, rotation. The
rate of a form is 3e-2 or 1e-2, the better on validation with the first seed, over the cells of C4 and C8, and another
for smoke. Runs are logged as they end, and a second call goes on from the log; ``--report`` trains nothing.

The rule, fixed before the runs: the form is taken that wins most of the cells and is nowhere more than one standard
error (of the difference of two means) below strict, over both sides.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import smoke
import torch
from escnn import gspaces
from escnn.nn import FieldType, R2Conv
from networks import build_network
from run_log import Log, run_missing
from smoke_data import Puffs, simulated
from smoke_networks import Forecaster, Way
from soft_part_candidates import FixedHarmonics, Harmonics, TiedPlane, TiedR2Conv
from tasks import image_task
from torch import Tensor, nn
from training import accuracy, build_optimiser, fit

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, harden_network
from escnn_relaxed.baselines import PartialR2Conv
from escnn_relaxed.experiments.mean_and_error import mean_and_error
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

RATES = (3e-2, 1e-2)
IMAGES, VALIDATION, EPOCHS, KERNEL_SIZE = 1000, 1000, 12, 5
FIRST_SEED = 10
# Of numbers of parameters that count as equal.
TOLERANCE = 0.035

TASKS = ("upright", "within 60°", "turned")
DIGITS = {
    **{f"C8, {task}": ("C8 regular", task) for task in TASKS},
    **{f"C4, {task}": ("C4 regular", task) for task in TASKS},
    **{f"D4, {task}": ("D4 regular", task) for task in TASKS},
    **{f"SO(2), {task}": ("SO(2) irreps, gated", task) for task in TASKS},
    "plane, quadrant": ("plain CNN on the torus", "quadrant"),
    "plane, in a quadrant": ("plain CNN on the torus", "in a quadrant"),
}
SMOKE = {f"smoke, level {level}": level for level in (0, 3, 9)}
CELLS = (*DIGITS, *SMOKE)
# By which cells the rate is chosen.
TRIALS = {
    "digits": [cell for cell in DIGITS if cell[:2] in ("C4", "C8")],
    "smoke": ["smoke, level 9", "smoke, level 0"],
}


@dataclass(frozen=True)
class Form:
    """A way to build the layers: a tied one, a partial one, or RelaxedR2Conv with a kernel; else R2Conv.

    Attributes:
        kind: ``"strict"``, ``"partial"``, ``"tied"`` or ``"kernel"``.
        options: of the tied layer, or of ``ContinuousKernel``.
    """

    kind: str
    options: dict[str, Any]

    def layer(self, network: str) -> tuple[Callable[..., nn.Module], dict[str, Any] | None]:
        """The class of the layers and its options, in a network of this name."""
        is_plane = network.startswith("plain")
        if self.kind == "strict":
            return R2Conv, None
        if self.kind == "partial":
            return PartialR2Conv, {"initial_softness": 0.1}
        options = dict(self.options)
        # With reflections, the fewest functions that tell all subgroups apart are three.
        size = "functions" if self.kind == "tied" else "hidden_size"
        if network.startswith("D4") and options.get("net") is not ContinuousKernel.net and options[size] == 2:
            options[size] = 3
        if self.kind == "tied":
            return TiedPlane if is_plane else TiedR2Conv, options
        relax = {"relax": {"translation": 0.25}} if is_plane else {}
        return RelaxedR2Conv, {**relax, "kernel": ContinuousKernel(**options)}


def _tied(functions: int, **options: Any) -> Form:
    return Form("tied", {"functions": functions, **options})


def _kernel(size: int, net: Any = ContinuousKernel.net) -> Form:
    return Form("kernel", {"net": net, "hidden_size": size})


FORMS = {
    "strict": Form("strict", {}),
    "partial": Form("partial", {}),
    # For the scatter of rollouts: the same fields without a soft part.
    "strict, as wide as J = 8": Form("strict", {}),
    "net, J = 8": _kernel(8),
    "net, J = 2": _kernel(2),
    "harmonics, ψ = 1, J = 2": _kernel(2, FixedHarmonics),
    "harmonics, J = 2": _kernel(2, Harmonics),
    "tied, J = 2": _tied(2),
    "tied, J = 4": _tied(4),
    "tied, J = 2, u = 0.05": _tied(2, unit=0.05),
    "tied, J = 2, u = 0.2": _tied(2, unit=0.2),
    "tied, J = 2, from 0": _tied(2, initial_softness=0.0),
    "tied, J = 2, u = 0.03": _tied(2, unit=0.03),
    "tied, J = 4, u = 0.03": _tied(4, unit=0.03),
    "tied pairs, J = 2, u = 0.03": _tied(2, parts="p", unit=0.03),
    # Without the input's part, which the output's of the layer before can undo.
    "tied, J = 2, o, u = 0.05": _tied(2, parts="o", unit=0.05),
    "tied, J = 2, od, u = 0.05": _tied(2, parts="od", unit=0.05),
    "tied, J = 4, od, u = 0.05": _tied(4, parts="od", unit=0.05),
    "tied pairs, J = 2, d, u = 0.05": _tied(2, parts="pd", unit=0.05),
}

# Fields of each layer: of strict networks, and of forms that must have fewer for as many parameters.
WIDTHS: dict[str, tuple[int, ...]] = {
    "C8 regular": (6, 6, 6, 12),
    "C4 regular": (7, 7, 7, 12),
    "D4 regular": (4, 4, 4, 8),
    "SO(2) irreps, gated": (6, 6, 6, 6),
    "plain CNN on the torus": (7, 7, 7, 7),
    "smoke": (6, 6, 6),
}
EQUAL: dict[tuple[str, str], tuple[int, ...]] = {
    ("C8 regular", "net, J = 2"): (6, 4, 7, 12),
    ("C4 regular", "net, J = 2"): (7, 7, 6, 12),
    ("C4 regular", "harmonics, ψ = 1, J = 2"): (6, 7, 7, 12),
    ("C4 regular", "harmonics, J = 2"): (6, 7, 7, 12),
    ("C4 regular", "tied pairs, J = 2, u = 0.03"): (6, 7, 7, 12),
    ("C4 regular", "tied pairs, J = 2, d, u = 0.05"): (6, 7, 7, 12),
    ("D4 regular", "net, J = 2"): (4, 3, 4, 8),
    ("D4 regular", "harmonics, ψ = 1, J = 2"): (4, 3, 5, 7),
    ("D4 regular", "harmonics, J = 2"): (4, 3, 5, 7),
    ("SO(2) irreps, gated", "net, J = 2"): (5, 4, 5, 6),
    ("SO(2) irreps, gated", "harmonics, ψ = 1, J = 2"): (6, 6, 5, 5),
    ("SO(2) irreps, gated", "harmonics, J = 2"): (6, 6, 5, 5),
    ("smoke", "strict, as wide as J = 8"): (3, 4, 3),
    ("smoke", "net, J = 8"): (3, 4, 3),
    ("smoke", "net, J = 2"): (6, 4, 7),
    ("smoke", "harmonics, ψ = 1, J = 2"): (5, 6, 6),
    ("smoke", "harmonics, J = 2"): (5, 6, 6),
    ("smoke", "tied, J = 4"): (4, 7, 6),
    ("smoke", "tied, J = 4, u = 0.03"): (4, 7, 6),
    ("smoke", "tied pairs, J = 2, u = 0.03"): (4, 7, 6),
    ("smoke", "tied pairs, J = 2, d, u = 0.05"): (4, 7, 6),
    ("plain CNN on the torus", "net, J = 2"): (6, 6, 6, 7),
}


@dataclass(frozen=True)
class Run:
    """One training."""

    cell: str
    form: str
    widths: tuple[int, ...]
    rate: float
    seed: int

    def __str__(self) -> str:
        return json.dumps({**vars(self), "widths": list(self.widths)}, sort_keys=True, ensure_ascii=False)


def network_of(cell: str) -> str:
    """Name of the network of a cell."""
    return "smoke" if cell in SMOKE else DIGITS[cell][0]


def widths_of(cell: str, form: str, side: str) -> tuple[int, ...]:
    """Fields of the layers."""
    network = network_of(cell)
    return EQUAL.get((network, form), WIDTHS[network]) if side == "equal" else WIDTHS[network]


def can(form: str, network: str) -> bool:
    """Whether a form is there for the network's fields."""
    if form == "strict, as wide as J = 8":
        return network == "smoke"
    if form == "partial" or FORMS[form].options.get("parts", "").startswith("p"):
        return network.endswith("regular") or network == "smoke"
    return True


def build(form: str, network: str, widths: tuple[int, ...]) -> nn.Module:
    """A network of a form."""
    layer, options = FORMS[form].layer(network)
    if network == "smoke":
        if layer is PartialR2Conv:
            options = {}  # its last layer is R2Conv, which takes none
        return Forecaster("rotation", Way(layer, widths, options or {}))
    return build_network(network, widths, KERNEL_SIZE, options, layer)


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
    (images, labels), test = image_task(DIGITS[run.cell][1], IMAGES + VALIDATION, run.seed, root)
    fit(network, (images[:IMAGES], labels[:IMAGES]), build_optimiser("Adam", network, run.rate), EPOCHS)
    held_out = images[IMAGES:], labels[IMAGES:]
    return {"validation": accuracy(network, held_out), "test": accuracy(network, test)}


def _smoke(run: Run, network: nn.Module, cache: Path) -> dict[str, Any]:
    films = simulated(Puffs("rotation", SMOKE[run.cell]), cache)
    known, held_out, test = films.tensor_split((smoke.TRAINING, smoke.TRAINING + smoke.VALIDATION))
    losses = smoke.fit(network, smoke.windows(known, 2), run.rate, 0.0)
    network.eval()
    result = {
        "loss": losses[-1],
        "validation": smoke.error(network, held_out, 1),
        "test": smoke.error(network, test, 1),
        "rollout": smoke.error(network, test, smoke.FRAMES_AHEAD),
        "gain": network.gain.item(),
    }
    result["worst window"] = worst_window(network, test)
    if any(named_relaxed_layers(network)):
        strict = harden_network(network)
        result["hardened rollout"] = smoke.error(strict, test, smoke.FRAMES_AHEAD)
        result["hardened worst window"] = worst_window(strict, test)
    return result


@torch.no_grad()
def worst_window(network: nn.Module, films: Tensor) -> float:
    """The largest error ten frames ahead of a single start: how far a rollout runs away."""
    parts = smoke.windows(films, smoke.FRAMES_AHEAD + 1)
    state = parts[:, 0]
    for _ in range(smoke.FRAMES_AHEAD):
        state = network(state)
    errors = (state - parts[:, -1])[:, :2].flatten(1).norm(dim=1)
    return float((errors / parts[:, -1, :2].flatten(1).norm(dim=1)).max())


def wanted_runs(
    cells: Sequence[str], forms: Sequence[str], seeds: Sequence[int], rates: Sequence[float], sides: Sequence[str]
) -> list[Run]:
    """All runs of these, each once; seed by seed."""
    choices = (
        Run(cell, form, widths_of(cell, form, side), rate, seed)
        for seed in seeds
        for rate in rates
        for cell in cells
        for side in sides
        for form in forms
        if can(form, network_of(cell))
    )
    return list(dict.fromkeys(choices))


def train_missing(runs: Sequence[Run], root: Path | None, cache: Path, log: Log, workers: int) -> None:
    """Simulate and train what is not there."""
    for level in dict.fromkeys(SMOKE[run.cell] for run in runs if run.cell in SMOKE):
        simulated(Puffs("rotation", level), cache)
    wanted = {str(run): (run, root, cache) for run in runs}
    for count, name in run_missing(wanted, train, log, workers):
        run, result = wanted[name][0], log.runs[name]
        print(f"{count} {run.cell}: {run.form}, rate {run.rate:g}, seed {run.seed}: {result['test']:.4f}", flush=True)


@dataclass(frozen=True)
class Measure:
    """What is compared of a cell: the key of a result, its factor, and whether more of it is better."""

    key: str
    factor: float
    sign: int


def measures(cell: str) -> tuple[Measure, ...]:
    """Accuracy of digits; errors of smoke at the next frame and ten frames ahead, in per cent."""
    if cell in SMOKE:
        return Measure("test", 100.0, -1), Measure("rollout", 100.0, -1)
    return (Measure("test", 1.0, 1),)


def chosen_rate(form: str, cell: str, log: Log) -> float:
    """The rate of the best mean validation of the first seed over the cells where all rates were tried; else 3e-2."""
    trials = TRIALS["smoke" if cell in SMOKE else "digits"]
    values: dict[float, list[float]] = {rate: [] for rate in RATES}
    for trial in trials:
        runs = [Run(trial, form, widths_of(trial, form, "equal"), rate, FIRST_SEED) for rate in RATES]
        if all(str(run) in log.runs for run in runs):
            for run in runs:
                validation = log.runs[str(run)]["validation"]
                values[run.rate].append(-math.log(validation) if cell in SMOKE else validation)
    return max(RATES, key=lambda rate: sum(values[rate]))


def results(cell: str, form: str, side: str, log: Log) -> dict[int, dict[str, Any]]:
    """What the log holds at the form's rate, by seed."""
    rate, widths = chosen_rate(form, cell, log), widths_of(cell, form, side)
    runs = {seed: str(Run(cell, form, widths, rate, seed)) for seed in range(FIRST_SEED + 20)}
    found = {seed: log.runs[run] for seed, run in runs.items() if run in log.runs}
    if side == "same" or form.startswith("strict"):
        return found
    strict = results(cell, "strict", "same", log)
    sizes = {result["parameters"] for result in strict.values()}
    return {
        seed: result
        for seed, result in found.items()
        if any(abs(result["parameters"] / size - 1) < TOLERANCE for size in sizes)
    }


def values_of(cell: str, form: str, side: str, measure: Measure, log: Log) -> list[float]:
    """A measure of every seed."""
    return [measure.factor * result[measure.key] for result in results(cell, form, side, log).values()]


def table(side: str, log: Log) -> str:
    """Markdown: mean ± standard error and the number of seeds, a row a form, a column a cell and measure."""
    columns = [
        (cell, measure)
        for cell in CELLS
        for measure in measures(cell)
        if values_of(cell, "strict", "same", measure, log)
    ]
    labels = [cell + (", ten frames" if measure.key == "rollout" else "") for cell, measure in columns]
    lines = [f"| form | {' | '.join(labels)} |", "|---" * (len(columns) + 1) + "|"]
    for form in FORMS:
        cells = [_cell(values_of(cell, form, side, measure, log)) for cell, measure in columns]
        if any(cell != "–" for cell in cells):
            lines.append(f"| {form} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    return f"{mean_and_error(values)} ({len(values)})" if values else "–"


def verdict(side: str, log: Log, least: int) -> str:
    """Markdown: of each form, in how many columns it is the best, and how far it is from strict at worst.

    Args:
        side: ``same`` or ``equal``.
        log: the runs.
        least: a column counts for a form with as many seeds.
    """
    best: dict[str, int] = {}
    gaps: dict[str, list[tuple[float, str]]] = {}
    for cell in CELLS:
        for measure in measures(cell):
            found = {form: values_of(cell, form, side, measure, log) for form in FORMS}
            found = {form: values for form, values in found.items() if len(values) >= least}
            if "strict" not in found:
                continue
            means = {form: measure.sign * statistics.fmean(values) for form, values in found.items()}
            winner = max(means, key=lambda form: means[form])
            best[winner] = best.get(winner, 0) + 1
            for form, values in found.items():
                error = math.sqrt(_square_error(values) + _square_error(found["strict"]))
                name = cell + (", ten frames" if measure.key == "rollout" else "")
                gaps.setdefault(form, []).append(((means[form] - means["strict"]) / max(error, 1e-9), name))
    lines = ["| form | columns | best in | ahead of strict in | least distance from strict, in standard errors |"]
    lines.append("|---|---|---|---|---|")
    for form, distances in gaps.items():
        if form != "strict":
            worst, where = min(distances)
            ahead = sum(distance > 0 for distance, _ in distances)
            lines.append(f"| {form} | {len(distances)} | {best.get(form, 0)} | {ahead} | {worst:+.1f} ({where}) |")
    return "\n".join(lines)


def _square_error(values: Sequence[float]) -> float:
    """The square of the standard error of the mean."""
    return statistics.variance(values) / len(values)


# Layers whose growth is looked at: gspace, fields in and out, kernel size, and the most that is wanted.
GROWTHS: tuple[tuple[str, str, int, int, int, float], ...] = (
    ("C8, lifting 1 → 4, 1×1", "C8", 0, 4, 1, 2.0),
    ("C8, lifting 1 → 8, 7×7", "C8", 0, 8, 7, 1.3),
    ("C8, 4 → 4, 3×3", "C8", 4, 4, 3, 1.12),
    ("C8, 8 → 8, 5×5", "C8", 8, 8, 5, 1.05),
    ("C8, 8 → 8, 1×1", "C8", 8, 8, 1, 1.35),
    ("C8, 32 → 32, 5×5", "C8", 32, 32, 5, 1.05),
    ("C4, 8 → 8, 5×5", "C4", 8, 8, 5, 1.1),
    ("D4, 8 → 8, 3×3", "D4", 8, 8, 3, 1.1),
    ("SO(2), 4 (16) × irreps 0–2, 5×5", "SO(2)", 4, 4, 5, 1.35),
    ("plane, 32 → 32, 3×3", "plane", 32, 32, 3, 1.5),
)


def growth_table(forms: Sequence[str]) -> str:
    """Markdown: parameters of layers in proportion to ``R2Conv``'s."""
    lines = [f"| layer | R2Conv | at most | {' | '.join(forms)} |", "|---" * (len(forms) + 3) + "|"]
    for name, group, ins, outs, size, most in GROWTHS:
        in_type, out_type = _fields(group, ins), _fields(group, outs)
        strict = _count(R2Conv(in_type, out_type, size))
        cells = []
        for form in forms:
            if group in ("SO(2)", "plane") and not can(form, group):
                cells.append("–")
                continue
            layer, options = FORMS[form].layer({"D4": "D4 regular", "plane": "plain CNN"}.get(group, group))
            cells.append(f"{_count(layer(in_type, out_type, size, **(options or {}))) / strict:.2f}")
        lines.append(f"| {name} | {strict:,} | {most:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _fields(group: str, count: int) -> FieldType:
    """Regular fields, of no group trivial ones, of SO(2) irreps 0 to 2; without a number one trivial field."""
    gspace = {
        "C8": lambda: gspaces.rot2dOnR2(8),
        "C4": lambda: gspaces.rot2dOnR2(4),
        "D4": lambda: gspaces.flipRot2dOnR2(4),
        "SO(2)": lambda: gspaces.rot2dOnR2(-1, maximum_frequency=3),
        "plane": gspaces.trivialOnR2,
    }[group]()
    if group == "SO(2)":
        return FieldType(gspace, [gspace.irrep(frequency) for frequency in (0, 1, 2)] * count)
    field = gspace.trivial_repr if count == 0 or group == "plane" else gspace.regular_repr
    return FieldType(gspace, [field] * max(count, 1))


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def report(log: Log) -> str:
    """All tables."""
    forms = [form for form in FORMS if any(results(cell, form, "equal", log) for cell in CELLS)]
    return "\n\n".join(
        [
            "At equal parameters (within 3.5 %), mean ± standard error (seeds):",
            table("equal", log),
            verdict("equal", log, 2),
            "With the same fields:",
            table("same", log),
            verdict("same", log, 2),
            "Parameters of a layer in proportion to `R2Conv`:",
            growth_table([form for form in forms if form != "strict"]),
        ]
    )


def main() -> None:
    """Train what is missing, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files; without, scikit-learn's digits")
    parser.add_argument("--cells", default=";".join(CELLS), help="separated by ;")
    parser.add_argument("--forms", default=";".join(FORMS), help="separated by ;")
    parser.add_argument("--seeds", default="10", help="separated by commas")
    parser.add_argument("--rates", default="0.03", help="separated by commas")
    parser.add_argument("--sides", default="same;equal", help="separated by ;")
    parser.add_argument("--output", type=Path, default=Path("runs/soft-part"), help="folder of the log and the table")
    parser.add_argument("--cache", type=Path, default=Path("data/smoke"), help="folder of what is simulated")
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--report", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    log = Log(arguments.output / "runs.jsonl")
    if not arguments.report:
        seeds, rates = map(int, arguments.seeds.split(",")), map(float, arguments.rates.split(","))
        runs = wanted_runs(
            arguments.cells.split(";"),
            arguments.forms.split(";"),
            list(seeds),
            list(rates),
            arguments.sides.split(";"),
        )
        train_missing(runs, arguments.data, arguments.cache, log, arguments.workers)
    text = report(log)
    print(f"\n{text}")
    (arguments.output / "table.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
