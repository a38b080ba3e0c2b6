"""The section of docs/results/accuracy.md on smoke, from the lines of JSON that its runs leave.

    python -m benchmarks.smoke.smoke_section [--results benchmarks/results/smoke]

Writes ``section.md`` beside ``rotation.jsonl``. A number of fewer seeds than its table has says of how many.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.shared.markdown import cell, filled, listed_rates, table
from benchmarks.shared.regressions import softness_table
from benchmarks.shared.run_log import Log, rates_of
from benchmarks.smoke.levels import chosen_rate

__all__ = ["section"]

# Name of a way → that of its layers on the page.
LABELS = {
    "plain": "Conv2d",
    "strict": "R2Conv",
    "relaxed": "RelaxedR2Conv",
    "evidence": "RelaxedR2Conv, evidence",
    "partial": "PartialR2Conv",
    "residual": "ResidualR2Conv",
    "weighted": "WeightedR2Conv",
}
# Name of a result → that of its table.
MEASURES = {"error": "next frame, error in %", "rollout": "ten frames ahead, error in %"}
TEXT = """
Mean ± standard error, seeds: {seeds}, or as many as the brackets say. `RelaxedR2Conv` has its default form,
and `ResidualR2Conv` no prior. Of each way the learning rate was chosen by the errors of the next frame on two puffs
for validation, at levels 0 and 9 with the first seed: {rates}. The table of the evidence has means over seeds, the
layers in their order. Δ is of all layers together. It and the hardening are by the puffs for validation. The last
column is of each seed.

    python -m benchmarks.smoke.levels --parts rotation --seeds {seeds}
    python -m benchmarks.smoke.smoke_section --results runs/smoke
"""
RUN = re.compile(r"rotation, level (\d+), (\w+), rate ([\d.]+), seed (\d+)")

# Level → way → what was found by seed.
Found = Mapping[int, Mapping[str, Mapping[int, Mapping[str, Any]]]]


def results_of(log: Log, rates: Mapping[str, float]) -> dict[int, dict[str, dict[int, dict[str, Any]]]]:
    """Return the results of all runs at the rates of their ways, by level, way and seed."""
    found: dict[int, dict[str, dict[int, dict[str, Any]]]] = {}
    for name, result in log.runs.items():
        match = RUN.fullmatch(name)
        if match is None:
            raise ValueError(f"log: {name!r} is no run of smoke")
        level, way, rate, seed = match.groups()
        if rates.get(way) == float(rate):
            found.setdefault(int(level), {}).setdefault(way, {})[int(seed)] = result
    return {level: found[level] for level in sorted(found)}


def errors_table(found: Found, key: str, seeds: int) -> str:
    """Markdown: mean ± standard error of each way at each level."""
    header = [MEASURES[key], "parameters", *(f"level {level}" for level in found)]
    lines = []
    for way, label in LABELS.items():
        by_level = [found[level].get(way, {}) for level in found]
        sizes = [result["parameters"] for results in by_level for result in results.values()]
        if sizes:
            lines.append([f"`{label}`", f"{sizes[0]:,}", *(_cell(results, key, seeds) for results in by_level)])
    return table(header, lines)


def _cell(results: Mapping[int, Mapping[str, Any]], key: str, seeds: int) -> str:
    return cell([100 * result[key] for result in results.values()], seeds)


def section(log: Log) -> str:
    """Markdown: errors of all ways, and what the evidence finds, level by level."""
    rates = rates_of(list(LABELS), partial(chosen_rate, "rotation"), log)
    found = results_of(log, rates)
    seeds = max(len(results) for ways in found.values() for results in ways.values())
    evidence = {str(level): list(ways.get("evidence", {}).values()) for level, ways in found.items()}
    text = filled(TEXT.format(seeds=seeds, rates=listed_rates({LABELS[way]: rate for way, rate in rates.items()})))
    tables = [errors_table(found, key, seeds) for key in MEASURES]
    return "\n\n".join([*tables, softness_table("level", evidence), text]) + "\n"


def main() -> None:
    """Write the section of the lines that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/smoke"), help="folder of the lines")
    folder = parser.parse_args().results
    (folder / "section.md").write_text(section(Log(folder / "rotation.jsonl")), encoding="utf-8")


if __name__ == "__main__":
    main()
