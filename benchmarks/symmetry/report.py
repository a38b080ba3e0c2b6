"""Bring the page of accuracies, all tables and their figure up to date with what runs have left.

    python -m benchmarks.symmetry.report [--log FILE.jsonl …]

Runs of the logs join those of the results, which hold what tables need in a row for each run. On the pages the text
between ``<!-- symmetry: NAME -->`` and ``<!-- end -->`` is written anew.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from matplotlib import pyplot
from matplotlib.axes import Axes
from scipy.stats import sem, t

from benchmarks.shared.markdown import cell, signed, table
from benchmarks.shared.run_log import Log
from benchmarks.symmetry.results import HEADS, KEY, Part, grouped, read, rows_of, write
from benchmarks.symmetry.tasks import CELLS

Results = Mapping[tuple[str, str, int, str], Part]
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "symmetry" / "runs.csv"
PAGES = (ROOT / "docs" / "results" / "accuracy.md", RESULTS.with_name("tables.md"))
FIGURE = RESULTS.with_name("gains.png")
SOFT = "RelaxedR2Conv"
# The ways of the page of accuracies by their short names, soft layers last.
SHORT = {"strict": "R2Conv", "free head": "R2Conv, free head", "free biases": "R2Conv, free biases", "soft": SOFT}
MAIN_TABLES = (("digits", "C8", 1000), ("digits", "D4", 1000))
# Where the symmetry is broken → the way that breaks it there.
PLACES = {
    "in the biases": "R2Conv, free biases",
    "in the head": "R2Conv, soft head",
    "in the last stage": "RelaxedR2Conv, last stage",
    "everywhere": SOFT,
    "everywhere, and a free head": "RelaxedR2Conv, free head",
}
# One colour for each way.
COLOURS = {
    "R2Conv": "#0072b2",
    "R2Conv, free head": "#56b4e9",
    "RelaxedR2Conv": "#d55e00",
    "RelaxedR2Conv, free head": "#e69f00",
    "RelaxedR2Conv, evidence": "#a03000",
    "RelaxedR2Conv, last stage": "#f0a070",
    "RelaxedR2Conv, decoupled evidence": "#702000",
    "R2Conv, soft head": "#cc79a7",
    "R2Conv, free biases": "#c0a000",
    "RelaxedR2Conv, free biases": "#000000",
    "R2Conv, free head, turned copies": "#009e73",
    "RestrictionModule": "#7060a0",
    "Conv2d": "#404040",
    "Conv2d, turned copies": "#80b060",
}
# The poses that are drawn: task, group, number of images and pose, in a column each.
COLUMNS = (
    ("smoke", "C4", 5, "level 9"),
    *(("digits", "C8", 1000, pose) for pose in ("upright", "within 60°", "turned")),
)
# The largest gains of an axis, of the data as they are and of rotated copies, in points of error or of accuracy.
LARGEST = {"error": (2.5, 6.0), "accuracy": (6.0, 60.0)}
FONT = 10
FEWEST_SEEDS = 3


def blocks_of(results: Results) -> dict[str, str]:
    """Return the text of each block of the pages by its name."""
    parts = list(results.values())
    digits = [part for part in parts if (part.task, part.group) == ("digits", "C8")]
    smoke = [part for part in parts if part.is_forecast]
    return {
        "digits": _beside(digits, "accuracy"),
        "rotated digits": _beside(digits, "turned"),
        "smoke": _beside(smoke, "error", "turned"),
        "verdicts": _verdicts(parts, HEADS, SOFT),
        "biases": _verdicts(parts, ("R2Conv, free biases",), SOFT, "RelaxedR2Conv, free biases"),
        "fields": _fields(parts),
        "classes": _classes(parts),
        "places": _places(parts),
        "all": "\n\n".join(f"### {name}\n\n{text}" for name, text in tables(parts).items()),
        "missing": _missing(results),
    }


def with_blocks(page: str, blocks: Mapping[str, str]) -> str:
    """Return a page whose blocks have these texts; a ``KeyError`` for one without a text."""
    pattern = re.compile(r"(<!-- symmetry: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda match: f"{match[1]}{blocks[match[2]]}\n{match[3]}", page)


def _beside(parts: Sequence[Part], *scores: str) -> str:
    """Return the means of simple ways and of soft layers, and how soft layers compare with each in equal seeds."""
    rows = []
    for part in (some for some in parts if SOFT in some.ways):
        title = f"{part.task}, {part.title}" if part.is_forecast else f"{part.images:,}, {part.title}"
        for score in scores:
            cells = []
            for way in SHORT.values():
                of, gains = part.values(way, score), [] if way == SOFT else part.gains(way, score, (SOFT,))
                mean = f"{fmean(of):.{1 + part.is_forecast}f}" if of else "–"
                cells.append(mean + (f" {_mark([-gain for gain in gains])} ({len(gains)})" if gains else ""))
            rows.append([title + (", rotated films" if score == "turned" and part.is_forecast else ""), *cells])
    return table(["task" if "error" in scores else "images", *SHORT], rows)


def _verdicts(parts: Sequence[Part], baselines: Sequence[str], *ways: str) -> str:
    """Return scores and gains over the best baseline, as they are and turned, of the seeds that all ways have."""
    found, shown = [], (*baselines, *ways)
    for name in ("as they are", "on rotated copies"):
        rows = []
        for part in (whole.among(shown) for whole in parts):
            score = part.score if name == "as they are" else "turned"
            best = part.best(score, baselines) if part.is_forecast or part.task == "digits" else None
            if best and part.values(ways[0], score):
                of = {way: part.values(way, score) for way in shown}
                means = {way: f"{fmean(some):.{1 + part.is_forecast}f}" if some else "–" for way, some in of.items()}
                means[best] = f"**{means[best]}**"
                gains = (part.gains(way, score, baselines) for way in ways)
                rows.append([f"{part.family}, {part.title}", *means.values(), *map(_verdict, gains)])
        found.append(table((name, *(f"`{way}`" for way in shown), *(f"gain of `{way}`" for way in ways)), rows))
    return "\n\n".join(found)


def _verdict(found: Sequence[float]) -> str:
    """Return a gain, its mark and its number of seeds."""
    return f"{signed(cell(found, len(found)))} {_mark(found)} ({len(found)})" if found else "–"


def _mark(found: Sequence[float]) -> str:
    """Return whether the interval of 95 % of gains, by Student's t, is above 0, below it, or holds it."""
    if len(found) < FEWEST_SEEDS:
        return "–"
    if abs(fmean(found)) > t.ppf(0.975, len(found) - 1) * sem(found):
        return "▲" if fmean(found) > 0 else "▼"
    return "○"


def _fields(parts: Sequence[Part]) -> str:
    """Return errors of forecasts, a row for each way and level."""
    rows = []
    for part in parts:
        for way, by_seed in part.ways.items() if part.is_forecast else ():
            parameters = f"{next(iter(by_seed.values()))['parameters']:,.0f}"
            cells = (cell(part.values(way, name), len(by_seed)) for name in ("rollout", "turned", "change"))
            error = cell(part.values(way, "error"), 0)
            rows.append([f"{part.task}, {part.title}", f"`{way}`", parameters, error, *cells])
    header = ("task", "way", "parameters", "next frame, %", "ten frames, %", "rotated films, %", "change, %")
    return table(header, rows)


def _classes(parts: Sequence[Part]) -> str:
    """Return accuracies on images as they are, and turned later, of ways with three seeds: a column for each pose."""
    found = []
    for task, group, images in MAIN_TABLES:
        some = [part for part in parts if (part.task, part.group, part.images) == (task, group, images)]
        ways = dict.fromkeys(way for part in some for way, runs in part.ways.items() if len(runs) >= FEWEST_SEEDS)
        for score, title in {"accuracy": "as they are", "turned": "on rotated copies"}.items() if ways else ():
            rows = [[f"`{way}`", *(cell(part.values(way, score), 0) for part in some)] for way in ways]
            found.append(table([f"{group}, {images:,} images, {title}", *(part.title for part in some)], rows))
    return "\n\n".join(found) or "Nothing has been run."


def _places(parts: Sequence[Part]) -> str:
    """Return gains by where softness sits, of each pose for which two places are known."""
    rows = [
        [f"{part.family}, {part.title}", *(signed(cell(part.gains(way, part.score), 0)) for way in PLACES.values())]
        for part in parts
        if part.best(part.score) and sum(way in part.ways for way in PLACES.values()) > 1
    ]
    return table(["gain over the better strict head", *PLACES], rows)


def tables(parts: Sequence[Part]) -> dict[str, str]:
    """Return all scores of all ways, for each family of poses."""
    found: dict[str, list[str]] = defaultdict(list)
    for part in (some for some in parts if len(some.ways) > 1):  # one way alone compares nothing
        found[part.family].append(f"*{part.title}*\n\n{_full(part)}")
    return {name: "\n\n".join(texts) for name, texts in found.items()}


def _full(part: Part) -> str:
    """Return a row for each way with all its scores."""
    rows, agreement = [], "change" if part.is_forecast else "agreement"
    for way, by_seed in part.ways.items():
        first, seeds = next(iter(by_seed.values())), len(by_seed)
        averaged = [row["averaged"] - row["as is"] for row in by_seed.values() if "averaged" in row]
        gained = [] if way == part.best(part.score) else part.gains(way, part.score)
        more = (cell(part.values(way, name), seeds) for name in ("turned", agreement, "worst"))
        cells = [f"`{way}`", cell(part.values(way, part.score), 0), signed(cell(gained, seeds)), *more]
        cells.append(signed(cell(averaged, seeds)))
        cells += [cell(part.values(way, "at equal time"), seeds), f"{first['parameters']:,.0f}"]
        cells.append(f"{first['rate']:g}" + (f", {first['setting']}" if first.get("setting") else ""))
        rows.append([*cells, *(f"{median(part.values(way, name)):.0f}" for name in ("epochs", "seconds"))])
    names = (part.score, "gain", "rotated", agreement, "worst", "averaged", "equal time")
    return table(["", *names, "parameters", "rate", "epochs", "seconds"], rows)


def _missing(results: Results) -> str:
    """Return how many runs of each part of the protocol are there, and how to go on."""
    wanted: dict[str, list[bool]] = defaultdict(list)
    for one in CELLS:
        part = results.get(key := (one.task, one.group, one.images, one.pose), Part(*key))
        wanted[part.family].append(one.seed in part.ways.get(one.way, {}))
    rows = [[name, f"{sum(done)} of {len(done)}"] for name, done in wanted.items() if not all(done)]
    if not rows:
        return "All runs of the protocol are there."
    command = "python -m benchmarks.symmetry --data DIRECTORY --output FILE.jsonl"
    return f"{table(['part of the protocol', 'runs that are there'], rows)}\n\n    {command}"


def draw(results: Results, path: Path) -> None:
    """Draw a column for each pose: gains on the data as they are above, on rotated copies below, over a head."""
    parts = [results[key] for key in COLUMNS if key in results and results[key].best(results[key].score)]
    names = [way for way in COLOURS if any(way in part.ways for part in parts)]
    columns, size = max(len(parts), 1), (9.0, 2.0 + 0.44 * max(len(names), 1))
    figure, grid = pyplot.subplots(2, columns, figsize=size, sharey=True, layout="constrained", squeeze=False)
    for part, pair in zip(parts, grid.T, strict=False):
        for axes, score, largest in zip(pair, (part.score, "turned"), LARGEST[part.score], strict=True):
            _draw_panel(axes, names, {way: part.gains(way, score) for way in names}, largest)
            axes.set_xlabel(f"0: {part.best(score)}", fontsize=FONT)
        pair[0].set_title(f"{part.task}, {part.group}\n{part.title}", fontsize=FONT + 1)
    for axes, text in zip(grid[:, 0], ("data as they are", "on rotated copies"), strict=True):
        axes.set_ylabel(text, fontsize=FONT + 1)
    figure.supxlabel("gain in points: more accuracy on digits, less error on smoke", fontsize=FONT)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=142)
    pyplot.close(figure)


def _draw_panel(axes: Axes, names: Sequence[str], found: Mapping[str, Sequence[float]], largest: float) -> None:
    """Draw the gains of each way; what is beyond the axis is written at its end."""
    axes.axvline(0, color="0.4", linewidth=1)
    for number, way in enumerate(names):
        if found.get(way):
            _point(axes, number, found[way], COLOURS[way], largest)
    axes.set_yticks(range(len(names)), names, fontsize=FONT)
    axes.set(xlim=(-largest, largest), ylim=(len(names) - 0.5, -0.5))
    axes.tick_params(axis="x", labelsize=FONT)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _point(axes: Axes, height: int, found: Sequence[float], colour: str, largest: float) -> None:
    """Draw a mean with its standard error, as a ring where seeds are too few for a verdict."""
    mean = fmean(found)
    if abs(mean) > 0.98 * largest:  # a dot there would be cut
        edge, side, text = (-largest, "left", "◂ −{:.0f}") if mean < 0 else (largest, "right", "{:.0f} ▸")
        axes.text(edge, height, text.format(abs(mean)), ha=side, va="center", fontsize=FONT - 2, color=colour)
        return
    error = sem(found) if len(found) > 1 else 0.0
    look = {"markerfacecolor": colour if len(found) >= FEWEST_SEEDS else "white"}
    axes.errorbar(mean, height, xerr=error, fmt="o", color=colour, markersize=5, capsize=2.5, **look)


def update(logs: Iterable[Path], results: Path = RESULTS, pages: Iterable[Path] = PAGES, figure: Path = FIGURE) -> None:
    """Join the logs with the results, write the pages, draw the figure."""
    new = rows_of([Log(path) for path in logs])
    write({tuple(row[part] for part in KEY): row for row in (*read(results), *new)}.values(), results)
    # Read again, so that the pages are those of the file.
    found = grouped(read(results))
    for page in pages:
        page.write_text(with_blocks(page.read_text(encoding="utf-8"), blocks_of(found)), encoding="utf-8")
    draw(found, figure)


def main() -> None:
    """Update the pages by the logs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, nargs="*", default=[], help="files of JSON lines that runs have left")
    update(parser.parse_args().log)


if __name__ == "__main__":
    main()
