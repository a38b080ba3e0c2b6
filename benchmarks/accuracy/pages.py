"""The tables of README.md and of docs/results/accuracy.md, written between their markers from the log alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.accuracy.report import (
    BASELINES,
    BOTH,
    SOFT,
    Part,
    best_trials,
    complete,
    draw,
    flag_tables,
    gains_of,
    is_error,
    marked_gains,
    relaxed_training_table,
    runs_of_the_test,
    task_title,
)
from benchmarks.accuracy.tasks import PLAN, WITH_FLAG
from benchmarks.accuracy.ways import WAYS
from benchmarks.shared.markdown import mean_and_error, table, with_blocks
from benchmarks.shared.run_log import Log

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "results" / "accuracy.md")
PICTURE = ROOT / "docs" / "images" / "accuracy.png"
# In the markers of its blocks.
NAME = "accuracy"
SHOWN = (*BASELINES, SOFT)
# The task on which all ways are compared, and the families of tasks whose choices are shown.
MAIN = PLAN[0].task, PLAN[0].images
FAMILIES = ("digits within 60°", 300), ("smoke level 9", 5)


def blocks_of(log: Log) -> dict[str, str]:
    """Return the text between each pair of markers by its name, of those that the log has results for."""
    parts = complete(runs_of_the_test(log))
    flagged = flag_tables(parts.pop((WITH_FLAG, 1000), {}))
    header = "task (seeds)", *SHOWN
    as_they_are, turned = (
        _tasks({name: part for name, part in parts.items() if SOFT in part}, score) for score in BOTH
    )
    alternating = [row for both in zip(as_they_are, turned, strict=True) for row in both]
    tasks = {"tasks": as_they_are, "rotated copies": turned, "readme": alternating}
    found = {
        "all ways": _all_ways(parts[MAIN]) if MAIN in parts else "",
        **{name: table(header, rows) if rows else "" for name, rows in tasks.items()},
        "choices": _choices(log),
        "relaxed training": relaxed_training_table(parts),
        "flag": "\n\n".join(flagged),
    }
    return {name: text for name, text in found.items() if text}


def _all_ways(part: Part) -> str:
    """Return accuracies of every way on the main task, and the gains of soft layers over it."""
    ways = [way for way in WAYS if way in part]
    gains = marked_gains(
        {(way, score): gains_of(MAIN[0], part, way, score) for way in ways if way != SOFT for score in BOTH}
    )
    rows = []
    for way in ways:
        runs = list(part[way].values())
        scores = (mean_and_error([run[score] for run in runs]) for score in BOTH)
        cells = (gains.get((way, score), "") for score in BOTH)
        rows.append([f"{way} ({len(runs)})", *scores, *cells, f"{runs[0]['parameters']:,}"])
    header = "way (seeds)", "accuracy, %", "on rotated copies, %", "gain of soft", "on rotated copies", "parameters"
    return table(header, rows)


def _tasks(parts: Mapping[tuple[str, int], Part], score: str) -> list[list[str]]:
    """Return rows of the means of the baselines, each with the mark of the gain of soft layers, and of soft layers.

    The correction is over all gains of all tasks in this score.
    """
    gains = marked_gains(
        {
            (name, way): gains_of(name[0], parts[name], way, score)
            for name in parts
            for way in BASELINES
            if way in parts[name]
        }
    )
    rows = []
    for name, part in parts.items():
        cells = []
        for way in SHOWN:
            values = [run[score] for run in part.get(way, {}).values()]
            mark = gains.get((name, way), "").rpartition(" ")[2]
            cells.append(f"{fmean(values):.1f} {mark}".strip() if values else "–")
        where = ", rotated copies" if score == "turned" else ""
        word = "error" if is_error(name[0]) else "accuracy"
        rows.append([f"{task_title(*name)}{where}: {word}, % ({len(part[SOFT])})", *cells])
    return rows


def _choices(log: Log) -> str:
    """Return the mean score on validation of each way at its best width and rate."""
    best = [best_trials(log, *family) for family in FAMILIES]
    rows = [[way, *(f"{some[way]:.1f}" if way in some else "–" for some in best)] for way in WAYS]
    words = (f"{task_title(*family)}: {'error' if is_error(family[0]) else 'accuracy'}, %" for family in FAMILIES)
    return table(("way, on validation", *words), rows)


def write(log: Log, pages: Sequence[Path] = PAGES, picture: Path = PICTURE) -> None:
    """Write the blocks of pages, and the picture where two seeds of a task are complete."""
    blocks = blocks_of(log)
    for page in pages:
        page.write_text(with_blocks(page.read_text(encoding="utf-8"), NAME, blocks), encoding="utf-8")
    if parts := complete(runs_of_the_test(log)):
        draw(parts, picture)
