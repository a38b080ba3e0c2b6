"""Tables of the benchmark, and the numbers of its figure, from the lines that runs leave.

    python -m benchmarks.symmetry.report FILE.jsonl [--figure FIGURE.json]

For each task, group and number of images: accuracy as it is with differences from the better of the two strict heads,
scores of turned copies, and what training took. Differences are seed by seed, errors are standard errors. A number in
brackets says of how many seeds a cell is where others have more.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from benchmarks.shared.markdown import cell, signed, table
from benchmarks.shared.run_log import Log
from benchmarks.symmetry.order import BLOCKS

__all__ = ["Results", "better_head", "differences", "figure_data", "found_results", "report"]

HEADS = ("R2Conv", "R2Conv, free head")
# The strict networks among which an oracle that knows the symmetry would choose.
STRICT = (*HEADS, "R2Conv, subgroup", "R2Conv, other group", "RestrictionModule", "Conv2d")
# Seed → the line of a run.
BySeed = Mapping[int, Mapping[str, Any]]
# Pose → way → the lines of its runs.
Results = Mapping[str, Mapping[str, BySeed]]


def found_results(log: Log) -> dict[tuple[str, str, int], Results]:
    """Return the runs of a log by task, group and number of images, in the order of the protocol."""
    found: dict[Any, Any] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for name, result in log.runs.items():
        run = json.loads(name)
        if "accuracy" in result:
            found[run["task"], run["group"], run["images"]][run["pose"]][run["way"]][run["seed"]] = result
    blocks = list(dict.fromkeys((block.task, block.group, block.images) for block in BLOCKS))
    known = [block for block in blocks if block in found]
    return {block: found[block] for block in [*known, *(block for block in found if block not in known)]}


def better_head(ways: Mapping[str, BySeed], score: str = "accuracy") -> str | None:
    """Return the strict head of the higher mean score, None where one of the two is missing."""
    if not all(ways.get(head) for head in HEADS):
        return None
    return max(HEADS, key=lambda head: fmean(result[score] for result in ways[head].values()))


def differences(ways: Mapping[str, BySeed], way: str, other: str, score: str = "accuracy") -> list[float]:
    """Return the scores of a way less those of another, seed by seed, of the seeds that both have."""
    return [ways[way][seed][score] - ways[other][seed][score] for seed in ways[way] if seed in ways[other]]


def regret(ways: Mapping[str, BySeed], way: str) -> list[float]:
    """Return how much accuracy a way has less than the strict network of the highest mean, seed by seed."""
    means = {name: fmean(result["accuracy"] for result in ways[name].values()) for name in STRICT if ways.get(name)}
    return differences(ways, max(means, key=means.__getitem__), way) if means else []


def report(results: Mapping[tuple[str, str, int], Results]) -> str:
    """Return the Markdown of all tables."""
    return "\n\n".join(_section(*key, by_pose) for key, by_pose in results.items()) + "\n"


def _section(task: str, group: str, images: int, by_pose: Results) -> str:
    """Return the tables of one task, group and number of images."""
    seeds = max(len(results) for ways in by_pose.values() for results in ways.values())
    parts = [
        f"### {task}, {group}, {images:,} images",
        f"Test accuracy in %, difference from the better strict head. Seeds: {seeds}.",
        _by_pose(by_pose, seeds, _accuracy, "accuracy", "difference"),
        "Turned copies: mean accuracy over the group and its difference from the better head's, agreement in %.",
        _by_pose(by_pose, seeds, _turned, "turned", "difference", "agreement"),
        "Worst element; accuracy averaged over copies, less that of the same images without; regret against the best "
        "strict network.",
        _by_pose(by_pose, seeds, _copies, "worst", "averaged", "regret"),
        "What it took: parameters, process seconds and epochs (median); rates, and trials to choose them.",
        _costs(by_pose),
        "Equal time: accuracy on validation at the median time at which `R2Conv` has ended.",
        _by_pose(by_pose, seeds, _equal_time, "validation"),
    ]
    return "\n\n".join(parts)


def _by_pose(
    by_pose: Results,
    seeds: int,
    cells: Callable[[Mapping[str, BySeed], str, int], Sequence[str]],
    *heads: str,
) -> str:
    """Return a table with a row for each way, and some cells for each pose."""
    rows = []
    for way in _ways(by_pose):
        row = [f"`{way}`"]
        for ways in by_pose.values():
            row += cells(ways, way, seeds) if ways.get(way) else ["–"] * len(heads)
        rows.append(row)
    return table(["", *(f"{pose}: {head}" for pose in by_pose for head in heads)], rows)


def _ways(by_pose: Results) -> list[str]:
    return list(dict.fromkeys(way for ways in by_pose.values() for way in ways))


def _values(results: BySeed, score: str) -> list[float]:
    return [result[score] for result in results.values() if score in result]


def _apart(ways: Mapping[str, BySeed], way: str, score: str, seeds: int) -> str:
    """Return the difference of a way from the better strict head; that head has none."""
    has_score = all(score in result for name in (way, *HEADS) for result in ways.get(name, {}).values())
    head = better_head(ways) if has_score else None
    return "–" if head in (None, way) else signed(cell(differences(ways, way, head, score), seeds))


def _accuracy(ways: Mapping[str, BySeed], way: str, seeds: int) -> list[str]:
    return [cell(_values(ways[way], "accuracy"), seeds), _apart(ways, way, "accuracy", seeds)]


def _turned(ways: Mapping[str, BySeed], way: str, seeds: int) -> list[str]:
    agreement = cell(_values(ways[way], "agreement"), seeds)
    return [cell(_values(ways[way], "turned"), seeds), _apart(ways, way, "turned", seeds), agreement]


def _copies(ways: Mapping[str, BySeed], way: str, seeds: int) -> list[str]:
    gains = [result["averaged"] - result["as is"] for result in ways[way].values() if "averaged" in result]
    return [
        cell(_values(ways[way], "worst"), seeds),
        signed(cell(gains, seeds)),
        signed(cell(regret(ways, way), seeds)),
    ]


def _costs(by_pose: Results) -> str:
    """Return the table of what runs took."""
    rows = []
    for way in _ways(by_pose):
        lines = [result for ways in by_pose.values() for result in ways.get(way, {}).values()]
        rates = [
            "/".join(sorted({f"{result['rate']:g}" for result in ways.get(way, {}).values()})) or "–"
            for ways in by_pose.values()
        ]
        rows.append(
            [
                f"`{way}`",
                f"{lines[0]['parameters']:,}",
                f"{median(line['seconds'] for line in lines):.0f}",
                f"{median(line['epochs'] for line in lines):.0f} of {median(line['all epochs'] for line in lines):.0f}",
                ", ".join(rates),
                str(lines[0]["trials"]),
            ]
        )
    return table(["", "parameters", "seconds", "epochs", f"rates ({', '.join(by_pose)})", "trials"], rows)


def _equal_time(ways: Mapping[str, BySeed], way: str, seeds: int) -> list[str]:
    if not ways.get("R2Conv"):
        return ["–"]
    end = median(result["seconds"] for result in ways["R2Conv"].values())
    return [cell([_validation_at(result["history"], end) for result in ways[way].values()], seeds)]


def _validation_at(history: Sequence[Sequence[float]], end: float) -> float:
    """Return the accuracy at the lowest loss on validation until a time; of the first round where none has ended."""
    rounds = [some for some in history if some[0] <= end] or history[:1]
    return min(rounds, key=lambda some: some[1])[2]


def figure_data(results: Mapping[tuple[str, str, int], Results]) -> list[dict[str, Any]]:
    """Return mean and standard error of each difference from the better strict head, as is and turned."""
    points = []
    for (task, group, images), by_pose in results.items():
        for pose, ways in by_pose.items():
            head = better_head(ways)
            for way in ways if head is not None else ():
                for score in ("accuracy", "turned"):
                    if all(score in result for name in (way, head) for result in ways[name].values()):
                        values = differences(ways, way, head, score)
                        place = {"task": task, "group": group, "images": images, "pose": pose}
                        points.append({**place, "way": way, "score": score, "from": head, **_summary(values)})
    return points


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return {"mean": fmean(values) if values else None, "error": error, "seeds": len(values)}


def main() -> None:
    """Print the tables, write the numbers of the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="file of JSON lines")
    parser.add_argument("--figure", type=Path, help="where the numbers of the figure go")
    arguments = parser.parse_args()
    results = found_results(Log(arguments.log))
    print(report(results), end="")
    if arguments.figure is not None:
        arguments.figure.write_text(json.dumps(figure_data(results), indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
