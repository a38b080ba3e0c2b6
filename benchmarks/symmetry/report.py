"""Bring the page of accuracies and its figure up to date with what runs have left.

    python -m benchmarks.symmetry.report [--log FILE.jsonl …] [--results FILE.csv] [--page FILE.md] [--figure FILE.png]

Runs of the logs join those of the results, which hold what tables need in a row for each run. On the page the text
between ``<!-- symmetry: NAME -->`` and ``<!-- end -->`` is written anew: what the results say, the main table, where
softness sits, all tables, and what is missing. Gains are seed by seed over the better of the two strict heads, and
errors are standard errors. A number in brackets says of how many seeds a cell is where others have more.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev

from benchmarks.shared.markdown import cell, signed, table
from benchmarks.shared.run_log import Log
from benchmarks.symmetry.figure import draw
from benchmarks.symmetry.order import BLOCKS
from benchmarks.symmetry.results import (
    CLASSES,
    FIELDS,
    KEY,
    BySeed,
    Measure,
    Results,
    better_head,
    gains,
    grouped,
    measure_of,
    read,
    regret,
    rows_of,
    values,
    write,
)
from benchmarks.symmetry.runs import Cell

__all__ = ["blocks_of", "main", "with_blocks"]

Key = tuple[str, str, int]
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "symmetry" / "runs.csv"
PAGE = ROOT / "docs" / "results" / "accuracy.md"
FIGURE = ROOT / "docs" / "images" / "gains.png"
SOFT = "RelaxedR2Conv"
# Seeds without which nothing is ahead or behind.
FEWEST_SEEDS = 3
WORDS = ("ahead", "level", "behind", "not settled")
MAIN_TABLES: tuple[Key, ...] = (("digits", "C8", 1000), ("digits", "D4", 1000))
# Where softness sits → the way that has it there.
PLACES = {
    "in the head": "R2Conv, soft head",
    "in the last stage": "RelaxedR2Conv, last stage",
    "everywhere": SOFT,
    "everywhere, and a free head": "RelaxedR2Conv, free head",
}
COMMAND = "python -m benchmarks.symmetry --data DIRECTORY --output FILE.jsonl"


def blocks_of(results: Mapping[Key, Results]) -> dict[str, str]:
    """Return the text of each block of the page by its name."""
    return {
        "says": _says(results),
        "verdicts": _verdict_table(results),
        "fields": _fields_table(results),
        "classes": _classes_tables(results),
        "places": _places_table(results),
        "all": "\n\n".join(_folded(key, by_pose) for key, by_pose in results.items()),
        "missing": _missing(results),
    }


def with_blocks(page: str, blocks: Mapping[str, str]) -> str:
    """Return a page whose blocks have these texts.

    Raises:
        ValueError: if the page has no block of a name.
    """
    for name, text in blocks.items():
        pattern = re.compile(rf"(<!-- symmetry: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"page: it has no block '<!-- symmetry: {name} -->'")
        page = pattern.sub(lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page)
    return page


@dataclass(frozen=True)
class Verdict:
    """The soft network beside the better strict head in one pose.

    Attributes:
        name: of the task, group, number of images and pose.
        head: the better strict head.
        found: gains seed by seed.
        turned: the same on turned copies.
        means: of the soft network and of the head, on the data as they are and on turned copies.
        best: the way of the best mean of all, on the data as they are and on turned copies.
        measure: the scores of the task.
    """

    name: str
    head: str
    found: list[float]
    turned: list[float]
    means: list[tuple[float, float]]
    best: tuple[str, str]
    measure: Measure


def verdicts(results: Mapping[Key, Results]) -> list[Verdict]:
    """Return a verdict for each pose in which the soft network and both strict heads have run."""
    found = []
    for (task, group, images), by_pose in results.items():
        measure = measure_of(by_pose)
        for pose, ways in by_pose.items():
            head = better_head(ways, measure)
            if head is None or not ways.get(SOFT):
                continue
            both = (measure.score, "turned")
            gained = (gains(ways, SOFT, head, score, measure.sign) for score in both)
            name = _named(task, group, images, pose)
            best = _best(ways, measure.score, measure.sign), _best(ways, "turned", measure.sign)
            means = [(_mean(ways[SOFT], score), _mean(ways[head], score)) for score in both]
            found.append(Verdict(name, head, *gained, means, best, measure))
    return found


def _named(task: str, group: str, images: int, pose: str = "") -> str:
    """Return words for a part of the results."""
    data = f"{task} with {group}" + ("" if task.startswith("smoke") else f", {images:,} images")
    return f"{data}, {pose}" if pose else data


def _mean(by_seed: BySeed, score: str) -> float:
    """Return the mean of a score, nothing to be read where no seed has it."""
    return fmean(values(by_seed, score) or [math.nan])


def _best(ways: Mapping[str, BySeed], score: str, sign: int) -> str:
    """Return the way of the best mean, nothing where no way has the score."""
    means = {way: sign * fmean(found) for way, by_seed in ways.items() if (found := values(by_seed, score))}
    return f"`{max(means, key=means.__getitem__)}`" if means else "–"


def _word(found: Sequence[float]) -> str:
    """Return whether gains are ahead of 0 by more than two standard errors, behind it, or neither."""
    if len(found) < FEWEST_SEEDS:
        return "not settled"
    error = stdev(found) / len(found) ** 0.5
    return "level" if abs(fmean(found)) <= 2 * error else ("ahead" if fmean(found) > 0 else "behind")


def _listed(found: Sequence[Verdict], word: str, turned: bool = False) -> str:
    """Return the names and gains of the verdicts of a word."""
    chosen = [(one, gained) for one in found if _word(gained := one.turned if turned else one.found) == word]
    names = []
    for one, gained in chosen:
        ours, theirs = one.means[turned]
        what = "error " * (one.measure is FIELDS)
        names.append(f"{one.name} ({what}{ours:.1f} beside {theirs:.1f} % of `{one.head}`; {_with_seeds(gained)})")
    return f"{word} in {'; '.join(names)}" if names else ""


def _with_seeds(found: Sequence[float]) -> str:
    error = f" ± {stdev(found) / len(found) ** 0.5:.1f}" if len(found) > 1 else ""
    return f"{signed(f'{fmean(found):.1f}')}{error}, {len(found)} seed{'s' * (len(found) > 1)}"


def _says(results: Mapping[Key, Results]) -> str:
    """Return three sentences: on fields, on the main tables, and on turned copies; with numbers of seeds."""
    fields_and_main = {k: found for k, found in results.items() if k in MAIN_TABLES or measure_of(found) is FIELDS}
    found = verdicts(fields_and_main)
    fields, classes = ([one for one in found if one.measure is measure] for measure in (FIELDS, CLASSES))
    parts = []
    for some, what in ((fields, "Where the output is a field"), (classes, "In classifiers")):
        if some:
            words = "; ".join(filter(None, (_listed(some, word) for word in WORDS)))
            parts.append(f"**{what}**, beside the better of two strict networks, `{SOFT}` is {words}.")
    with_copies = [one for one in classes if one.turned]
    if with_copies:
        words = "; ".join(filter(None, (_listed(with_copies, word, turned=True) for word in WORDS)))
        parts.append(f"**On copies turned after training**, beside the same head, it is {words}.")
    return "\n\n".join(parts) or "Nothing has been run."


def _verdict_table(results: Mapping[Key, Results]) -> str:
    """Return a row for each pose: the better strict head, the gains of the soft network, and the best way of all."""
    rows = [
        [
            one.name,
            f"`{one.head}`",
            f"{_word(one.found)}, {_with_seeds(one.found)}",
            f"{_word(one.turned)}, {_with_seeds(one.turned)}" if one.turned else "–",
            *one.best,
        ]
        for one in verdicts(results)
    ]
    header = ["task", "better strict head", f"`{SOFT}`", "on turned copies", "best of all", "best on turned copies"]
    return table(header, rows) if rows else "Nothing has been run."


def _fields_table(results: Mapping[Key, Results]) -> str:
    """Return errors of forecasts, a row for each way and level."""
    rows = []
    for (task, _, _), by_pose in results.items():
        if measure_of(by_pose) is not FIELDS:
            continue
        seeds = _most_seeds(by_pose)
        for pose, ways in by_pose.items():
            for way, by_seed in ways.items():
                scores = [cell(values(by_seed, name), seeds) for name in ("error", "rollout", "turned", "change")]
                parameters = f"{next(iter(by_seed.values()))['parameters']:,.0f}"
                rows.append([f"{task}, {pose}", f"`{way}`", parameters, *scores])
    header = ("task", "way", "parameters", "next frame, %", "ten frames, %", "turned films, %", "change, %")
    return table(header, rows) if rows else "Nothing has been run."


def _classes_tables(results: Mapping[Key, Results]) -> str:
    """Return the main tables, a column for each pose."""
    parts = []
    for key in MAIN_TABLES:
        if key not in results:
            continue
        by_pose = results[key]
        rows = [
            [f"`{way}`", *(_three(ways.get(way, {}), CLASSES) for ways in by_pose.values())] for way in _ways(by_pose)
        ]
        parts.append(table([f"{key[1]}, {key[2]:,} images", *by_pose], rows))
    return "\n\n".join(parts) or "Nothing has been run."


def _three(by_seed: BySeed, measure: Measure) -> str:
    """Return the score with its error and the seeds, that of turned copies, and the agreement."""
    found = values(by_seed, measure.score)
    if not found:
        return "–"
    turned, agreement = (values(by_seed, name) for name in ("turned", measure.agreement))
    more = [f"{fmean(some):.1f}" if some else "–" for some in (turned, agreement)]
    return f"{cell(found, 0)} · {more[0]} · {more[1]}"


def _places_table(results: Mapping[Key, Results]) -> str:
    """Return gains by where softness sits, of each pose for which two places are known."""
    rows = []
    for (task, group, images), by_pose in results.items():
        measure = measure_of(by_pose)
        for pose, ways in by_pose.items():
            head = better_head(ways, measure)
            if head is None or sum(way in ways for way in PLACES.values()) < 2:
                continue
            cells = [
                signed(cell(found, 0)) if way in ways and (found := _gain(ways, way, head, measure)) else "–"
                for way in PLACES.values()
            ]
            rows.append([_named(task, group, images, pose), *cells])
    return table(["gain over the better strict head", *PLACES], rows) if rows else "Nothing has been run."


def _gain(ways: Mapping[str, BySeed], way: str, head: str, measure: Measure) -> list[float]:
    return gains(ways, way, head, measure.score, measure.sign)


def _folded(key: Key, by_pose: Results) -> str:
    """Return all tables of one task, group and number of images, to be unfolded."""
    measure, seeds = measure_of(by_pose), _most_seeds(by_pose)
    parts = [f"::::{{dropdown}} {_named(*key)}"]
    for pose, ways in by_pose.items():
        parts += [f"*{pose}*, seeds: {seeds} or as the brackets say", _full(ways, measure, seeds)]
    return "\n\n".join([*parts, "::::"])


def _full(ways: Mapping[str, BySeed], measure: Measure, seeds: int) -> str:
    """Return a row for each way with all its scores."""
    head = better_head(ways, measure)
    rows = []
    for way, by_seed in ways.items():
        first = next(iter(by_seed.values()))
        averaged = [row["averaged"] - row["as is"] for row in by_seed.values() if "averaged" in row]
        gained = [] if head in (None, way) else _gain(ways, way, head, measure)
        rows.append(
            [
                f"`{way}`",
                f"{first['parameters']:,.0f}",
                cell(values(by_seed, measure.score), seeds),
                signed(cell(gained, seeds)),
                cell(values(by_seed, "turned"), seeds),
                cell(values(by_seed, measure.agreement), seeds),
                cell(values(by_seed, "worst"), seeds),
                signed(cell(averaged, seeds)),
                signed(cell(regret(ways, way, measure), seeds)),
                cell(values(by_seed, "at equal time"), seeds),
                f"{first['rate']:g}" + (f", {first['setting']}" if first.get("setting") else ""),
                f"{first['trials']:.0f}",
                f"{median(values(by_seed, 'epochs')):.0f}",
                f"{median(values(by_seed, 'seconds')):.0f}",
            ]
        )
    names = (measure.score, "gain", "turned", measure.agreement, "worst", "averaged", "regret", "equal time")
    return table(["", "parameters", *names, "rate", "trials", "epochs", "seconds"], rows)


def _missing(results: Mapping[Key, Results]) -> str:
    """Return how many runs of each part of the protocol are there, and how to go on."""
    wanted: dict[Key, list[Cell]] = defaultdict(list)
    for block in BLOCKS:
        wanted[block.task, block.group, block.images] += block.cells()
    rows = []
    for (task, group, images), cells in wanted.items():
        by_pose = results.get((task, group, images), {})
        done = sum(one.seed in by_pose.get(one.pose, {}).get(one.way, {}) for one in cells)
        if done < len(cells):
            rows.append([_named(task, group, images), f"{done} of {len(cells)}"])
    if not rows:
        return "All runs of the protocol are there."
    return f"{table(['part of the protocol', 'runs that are there'], rows)}\n\n    {COMMAND}"


def _ways(by_pose: Results) -> list[str]:
    return list(dict.fromkeys(way for ways in by_pose.values() for way in ways))


def _most_seeds(by_pose: Results) -> int:
    return max(len(by_seed) for ways in by_pose.values() for by_seed in ways.values())


def main() -> None:
    """Join the logs with the results, write the page, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, nargs="*", default=[], help="files of JSON lines that runs have left")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the results, a row for each run")
    parser.add_argument("--page", type=Path, default=PAGE, help="page whose blocks are written anew")
    parser.add_argument("--figure", type=Path, default=FIGURE, help="where the figure goes")
    arguments = parser.parse_args()
    before, new = read(arguments.results), rows_of([Log(path) for path in arguments.log])
    rows = {tuple(row[part] for part in KEY): row for row in (*before, *new)}
    write(rows.values(), arguments.results)
    # Read again, so that the page is that of the file.
    results = grouped(read(arguments.results))
    page = arguments.page.read_text(encoding="utf-8")
    arguments.page.write_text(with_blocks(page, blocks_of(results)), encoding="utf-8")
    draw(results, arguments.figure)


if __name__ == "__main__":
    main()
