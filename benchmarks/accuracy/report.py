"""Tables and the picture, all from the log."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes
from scipy.stats import sem

from benchmarks.accuracy.tasks import PLAN, RELAXED_TRAINING, TASKS, WITH_FLAG
from benchmarks.accuracy.ways import ALL_WAYS, EQUAL_WAYS, WAYS
from benchmarks.shared.gains import marked_gains
from benchmarks.shared.markdown import cell, table
from benchmarks.shared.run_log import Log

# The way whose gains are told, and over which: named before the runs.
SOFT, BASELINES = "soft", ("strict", "free head", "free biases", "reference vector")
OWN = "own layer"
# With a flag, the way whose gains are told over every other one, and the scores: name in the log → header.
GATED = "soft, gate is the flag"
FLAG_SCORES = {"score": "accuracy, %", "flag 0": "flag 0", "flag 1": "flag 1", "turned": "flag 0, turned"}
FLAGS = ("flag 0", "flag 1")
BOTH = "score", "turned"
# Scores of one task and number of images: way → seed → result.
Part = Mapping[str, Mapping[int, Mapping[str, Any]]]


def tables(log: Log) -> list[str]:
    """Return the tables of all stages that the log has runs of."""
    parts = runs_of_the_test(log)
    flagged = parts.pop(next((name for name in parts if name[0] == WITH_FLAG), ("", 0)), {})
    gains = [gain_table(parts, score) for score in BOTH] if parts else []
    ways = [way_table(name, part, some) for name, part in parts.items() for some in ((*WAYS, OWN), (SOFT, *EQUAL_WAYS))]
    others = relaxed_training_table(parts), *flag_tables(flagged)
    return [text for text in (study_table(log), choice_table(log), *gains, *ways, *others) if text]


def _runs(log: Log, stage: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    runs = [(json.loads(name), result) for name, result in log.runs.items()]
    return [(run, result) for run, result in runs if run["stage"] == stage]


def runs_of_the_test(log: Log) -> dict[tuple[str, int], Part]:
    """Return the runs of the test, tasks in the order of the plan."""
    found: dict[tuple[str, int], Any] = {(row.task, row.images): defaultdict(dict) for row in PLAN}
    for run, result in _runs(log, "test"):
        found[run["task"], run["images"]][run["way"]][run["seed"]] = result
    return {name: part for name, part in found.items() if part}


def complete(parts: Mapping[tuple[str, int], Part]) -> dict[tuple[str, int], Part]:
    """Return the runs of the seeds that every planned way of a task has, of tasks with two such seeds."""
    found = {}
    for (task, images), part in parts.items():
        rows = [row for row in PLAN if (row.task, row.images) == (task, images)]
        seeds = {
            seed
            for seed in TASKS[task].seeds
            if all(
                seed in part.get(way, {})
                for row in rows
                if seed in (row.seeds or TASKS[task].seeds)
                for way in row.ways
                if way in WAYS or task == WITH_FLAG
            )
        }
        if len(seeds) > 1:
            found[task, images] = {
                way: {seed: run for seed, run in runs.items() if seed in seeds} for way, runs in part.items()
            }
    return found


def task_title(task: str, images: int) -> str:
    return task if task.startswith("smoke") else f"{task}, {images:,} images"


def study_table(log: Log) -> str:
    """Return mean and standard deviation between seeds of each rule of training, on validation.

    The rows of differences are of equal seeds, which share their data; the number of seeds is in brackets.
    """
    found: dict[tuple[str, int, str, str], dict[int, float]] = defaultdict(dict)
    steps: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for run, result in _runs(log, "study"):
        name = run["task"], run["images"], run["way"]
        found[(*name, run["rule"])][run["seed"]] = result["score"]
        if run["rule"] == "early stopping":
            steps[name].append(result["steps"])
        elif run["rule"] == "fixed length":
            found[(*name, "fixed length, averaged")][run["seed"]] = result["score, averaged"]
    rules = ("early stopping", "fixed length", "fixed length, averaged", "twice as long")
    rows = []
    for task, images in dict.fromkeys(name[:2] for name in found):
        both = [[found[task, images, way, rule] for rule in rules] for way in ("strict", SOFT)]
        # While the study runs, only seeds that all rules have.
        shared = set.intersection(*(set(some) for scores in both for some in scores if some))
        both = [[{seed: some[seed] for seed in some if seed in shared} for some in scores] for scores in both]
        for way, scores in zip(("strict", SOFT), both, strict=True):
            lengths = sorted(steps[task, images, way]) or [0]
            cells = [_mean_and_deviation(list(some.values())) for some in scores]
            rows.append([f"{task_title(task, images)} ({len(shared)})", way, *cells, f"{lengths[0]} to {lengths[-1]}"])
        less = [
            [ours[seed] - theirs[seed] for seed in ours if seed in theirs] for theirs, ours in zip(*both, strict=True)
        ]
        rows.append(
            [f"{task_title(task, images)} ({len(shared)})", f"{SOFT} − strict", *map(_mean_and_deviation, less), ""]
        )
    return table(("on validation: mean, SD of seeds", "way", *rules, "steps of early stopping"), rows) if rows else ""


def _mean_and_deviation(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f}, {stdev(values):.2f}".replace("-", "−") if len(values) > 1 else "–"


def _trials(log: Log) -> dict[tuple[str, int, str], dict[tuple[float, ...], float]]:
    """Return the mean score on validation of each choice of a way: task, images and way → choice → score."""
    found: dict[tuple[str, int, str], dict[tuple[float, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    for run, result in _runs(log, "choose"):
        found[run["task"], run["images"], run["way"]][run["width"], run["rate"], run["penalty"]].append(result["score"])
    return {name: {choice: fmean(some) for choice, some in trials.items()} for name, trials in found.items()}


def best_trials(log: Log, task: str, images: int) -> dict[str, float]:
    """Return the best mean score on validation of each way."""
    best = min if is_error(task) else max
    return {name[2]: best(means.values()) for name, means in _trials(log).items() if name[:2] == (task, images)}


def choice_table(log: Log) -> str:
    """Return the mean score on validation of each trial, the best of a way in bold."""
    rows = []
    for (task, images, way), means in _trials(log).items():
        best = (min if is_error(task) else max)(means.values())
        for choice, mean in means.items():
            text = f"**{mean:.2f}**" if mean == best else f"{mean:.2f}"
            rows.append([task_title(task, images), way, *(f"{value:g}" for value in choice), text])
    return table(("task", "way", "fields", "rate", "λ", "score on validation"), rows) if rows else ""


def is_error(task: str) -> bool:
    """Return whether the score of a task is better where it is small."""
    return TASKS[task].objective.likelihood != "categorical"


def gains_of(task: str, part: Part, baseline: str, score: str, way: str = SOFT) -> list[float]:
    """Return by how much a way is better than a baseline, of each seed of both."""
    ours, theirs = part.get(way, {}), part.get(baseline, {})
    sign = -1 if is_error(task) else 1
    return [sign * (ours[seed][score] - theirs[seed][score]) for seed in ours if seed in theirs]


def _scores(task: str, part: Part, way: str, score: str) -> str:
    """Return mean ± standard error of the scores of a way."""
    return cell([run[score] for run in part.get(way, {}).values()], len(TASKS[task].seeds))


def relaxed_training_table(parts: Mapping[tuple[str, int], Part]) -> str:
    """Return the gains of strict networks that were soft in training over those that never were, of equal seeds."""
    known = {name: parts[name] for name in RELAXED_TRAINING if "annealed" in parts.get(name, {})}
    gains = marked_gains(
        {
            (name, score): gains_of(name[0], part, "strict", score, "annealed")
            for name, part in known.items()
            for score in BOTH
        }
    )
    rows = []
    for name, part in known.items():
        means = (_scores(name[0], part, way, "score") for way in ("strict", "annealed"))
        rows.append([task_title(*name), *means, *(gains[name, score] for score in BOTH)])
    header = "ends strict", "`strict`", "`annealed`", "gain of `annealed`", "gain on turned inputs"
    return table(header, rows) if rows else ""


def flag_tables(part: Part) -> list[str]:
    """Return the scores of all ways on digits with a flag, and the gains of the gate that is the flag."""
    ways, rows = [way for way in ALL_WAYS if way in part], []
    for way in ways:
        runs = list(part[way].values())
        gates = [f"{fmean(run[f'gate, {flag}'] for run in runs):.2f}" for flag in FLAGS if f"gate, {flag}" in runs[0]]
        counts = f"{runs[0]['parameters']:,}", str(runs[0]["width"]), f"{runs[0]['rate']:g}"
        scores = (_scores(WITH_FLAG, part, way, score) for score in FLAG_SCORES)
        rows.append([f"`{way}`", *scores, " and ".join(gates), *counts, f"{fmean(run['seconds'] for run in runs):.0f}"])
    if len(ways) < 2:
        return []
    gains = marked_gains(
        {(way, s): gains_of(WITH_FLAG, part, way, s, GATED) for way in ways if way != GATED for s in FLAG_SCORES}
    )
    less = [[f"`{way}`", *(gains[way, s] for s in FLAG_SCORES)] for way in ways if way != GATED]
    header = *FLAG_SCORES.values(), "gate at 0 and 1", "parameters", "fields", "rate", "seconds"
    return [table((WITH_FLAG, *header), rows), table((f"gain of `{GATED}` over", *FLAG_SCORES.values()), less)]


def gain_table(parts: Mapping[tuple[str, int], Part], score: str) -> str:
    """Return the gains of soft layers over each baseline."""
    known = {name: part for name, part in parts.items() if SOFT in part}
    gains = marked_gains(
        {(name, way): gains_of(name[0], part, way, score) for name, part in known.items() for way in BASELINES}
    )
    rows = [
        [task_title(*name), _scores(name[0], part, SOFT, score), *(gains[name, way] for way in BASELINES)]
        for name, part in known.items()
    ]
    title = "as they are" if score == "score" else "on turned inputs"
    return table((title, f"`{SOFT}`", *(f"gain over `{baseline}`" for baseline in BASELINES)), rows)


def way_table(name: tuple[str, int], part: Part, ways: Sequence[str]) -> str:
    """Return the scores of some ways on a task, means ± standard errors, and what their networks have."""
    rows = []
    for way in [way for way in ways if way in part]:
        runs = list(part[way].values())
        scores = (cell([run[score] for run in runs], len(TASKS[name[0]].seeds)) for score in ("score", "turned"))
        # Of hidden layers that differ, the fields of each.
        fields = str(runs[0]["width"]).strip("[]()")
        counts = f"{runs[0]['parameters']:,}", fields, f"{runs[0]['rate']:g}"
        rows.append([f"`{way}`", *scores, *counts, f"{fmean(run['seconds'] for run in runs):.0f}"])
    word = "error, %" if is_error(name[0]) else "accuracy, %"
    header = (task_title(*name), word, "on turned inputs", "parameters", "fields", "rate", "seconds")
    return table(header, rows) if len(rows) > 1 else ""


def draw(parts: Mapping[tuple[str, int], Part], path: Path) -> None:
    """Draw for each task the score on data as they are against that on rotated copies, a dot for each way."""
    # A flag has no such pair of scores: turned are images of the flag 0 alone.
    parts = {name: part for name, part in parts.items() if len(part) > 1 and name[0] != WITH_FLAG}
    if not parts:
        raise ValueError("the log has no task with runs of two ways of the test, so there is nothing to draw")
    columns = min(3, len(parts))
    lines = -(-len(parts) // columns)
    size = max(4 * columns, 6), 3.6 * lines + 1
    figure, axes = pyplot.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(parts) :]:
        axis.set_axis_off()
    for axis, (name, part) in zip(axes.flat, parts.items(), strict=False):
        _draw_task(axis, name, part)
    handles = {way: dot for axis in axes.flat for dot, way in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _draw_task(axis: Axes, name: tuple[str, int], part: Part) -> None:
    colours = pyplot.get_cmap("tab10").colors
    points = {}
    for number, way in enumerate((*WAYS, OWN)):
        scores = [[run[score] for run in part.get(way, {}).values()] for score in BOTH]
        if not scores[0]:
            continue
        x, y = points[way] = tuple(map(fmean, scores))
        errors = [sem(some) if len(some) > 1 else 0.0 for some in scores]
        look = {OWN: "*", SOFT: "D"}.get(way, "os"[number // len(colours) % 2])
        colour = "black" if way == SOFT else colours[number % len(colours)]
        axis.errorbar(x, y, errors[1], errors[0], look, color=colour, label=way, elinewidth=1)
    edge = frontier(list(points.values()), is_error(name[0]))
    axis.plot(*zip(*edge, strict=True), color="0.7", zorder=0)
    axis.set_title(task_title(*name), fontsize=10)
    word = "error, %" if is_error(name[0]) else "accuracy, %"
    axis.set_xlabel(word)
    axis.set_ylabel(f"{word}, rotated copies")


def frontier(points: Sequence[tuple[float, ...]], is_error: bool) -> list[tuple[float, ...]]:
    """Return the points that no other is better than in one score and as good in the other, in order."""
    sign = -1 if is_error else 1

    def is_beaten(point: tuple[float, ...]) -> bool:
        return any(
            other != point and all(sign * mine <= sign * theirs for mine, theirs in zip(point, other, strict=True))
            for other in points
        )

    return sorted(point for point in points if not is_beaten(point))
