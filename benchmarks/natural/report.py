"""Tables and picture of digits and CIFAR-10 from the lines of JSON that their runs leave.

    python -m benchmarks.natural.report [--results benchmarks/results/natural] [--picture docs/images/few_digits.png]

Writes ``digits.md`` and ``cifar.md`` beside the lines, sections that docs/results includes. A number of fewer seeds
than its table has says of how many, and of one seed has no error.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib import pyplot

from benchmarks.natural import cifar, digits
from benchmarks.natural.networks import CIFAR, DIGITS
from benchmarks.shared import markdown
from benchmarks.shared.markdown import filled, listed_rates, table
from benchmarks.shared.run_log import Log, rates_of
from escnn_relaxed.plots.charts import COLOURS, FONT, WIDTH, labelled, new_axes

__all__ = ["SECTIONS", "cifar_section", "digits_section", "draw"]

# Results of a way by seed.
Results = Mapping[int, Mapping[str, Any]]

# R2Conv is what the others are compared with.
STRICT = "R2Conv"
STYLES = {"Conv2d": {"color": "0.6", "linestyle": "--"}, STRICT: {"color": "black"}}
COLOUR_OF = dict(zip((way for way in DIGITS if way not in STYLES), COLOURS, strict=False))

NOTHING = "No run has ended yet.\n"
DIGITS_TEXT = """
Test accuracy in % by the number of training images, mean ± standard error, seeds: {seeds}, or as many as the
brackets say. Lines with − are of differences seed by seed. MNIST on 33 × 33 pixels, upright, turned by up to 60° or
turned by any angle, each image by one angle; 4,000 images to test. Four layers of C8 fields, or of `Conv2d`, with
{least:,} to {most:,} parameters; Adam, {epochs} epochs. `RelaxedR2Conv` has its defaults. Of each way the learning rate
was chosen on 1,000 images for validation: {rates}.

    python -m benchmarks.natural.digits --data DIRECTORY
"""
CIFAR_TEXT = """
Test accuracy in %, in the first table with {images} training images, mean ± standard error, seeds: {seeds}, or as many
as the brackets say. Differences are seed by seed. Softness is the mean over layers, upright / turned. Residual
networks of 12 convolutions in three stages, regular fields of C4, or of D4 where a row says so, with equal numbers of
parameters within 3 %; 10,000 test images; one cycle of Adam, {epochs}, with flips and shifts by up to 4 pixels, in
mixed precision (bfloat16); evaluation is in float32. Upright images are as they are. Turned ones, each by one angle,
are cut to the disk, so that no corners say how they are turned. `RelaxedR2Conv` has its defaults. `PartialR2Conv`
starts at `initial_softness=0.1`, and the prior of `ResidualR2Conv` has σ = 0.1. Of each way the learning rate was
chosen on 2,000 images for validation, after 5 epochs on 3,000: {rates}. 105 of the 60,000 images are decoded from JPEG
and not exact.

    python -m benchmarks.natural.cifar --data DIRECTORY
"""


def results_of(log: Log, **wanted: Any) -> dict[int, Mapping[str, Any]]:
    """Results by seed of the runs whose settings are these."""
    described = ((json.loads(name), result) for name, result in log.runs.items())
    return {
        run["seed"]: result
        for run, result in described
        if "test" in result and all(run[key] == value for key, value in wanted.items())
    }


def cell(results: Results, seeds: int) -> str:
    """Mean ± standard error; the number of seeds where it is another than the table's."""
    return markdown.cell([result["test"] for result in results.values()], seeds)


def difference(results: Results, seeds: int) -> str:
    """A cell of differences, which has a sign."""
    return markdown.signed(cell(results, seeds))


def differences(results: Results, others: Results) -> dict[int, dict[str, float]]:
    """Test accuracies of the first less those of the second, of the seeds that both have."""
    return {seed: {"test": results[seed]["test"] - others[seed]["test"]} for seed in results if seed in others}


def by_number_of_images(found: Mapping[tuple[str, str, int], Results], seeds: int) -> str:
    """Markdown: a table for each task, accuracies by way and number of images, then differences from ``R2Conv``."""
    tasks, ways, sizes = (list(dict.fromkeys(values)) for values in zip(*found, strict=True))
    tables = []
    for task in tasks:
        rows = [[f"`{way}`", *(cell(found[task, way, size], seeds) for size in sizes)] for way in ways]
        for way in ways:
            if way != STRICT and STRICT in ways:
                apart = (differences(found[task, way, size], found[task, STRICT, size]) for size in sizes)
                rows.append([f"`{way}` − `{STRICT}`", *(difference(each, seeds) for each in apart)])
        tables.append(table([task, *(f"{size:,}" for size in sizes)], rows))
    return "\n\n".join(tables)


def found_digits(log: Log) -> dict[tuple[str, str, int], Results]:
    """Results by task, way and number of images."""
    rates = rates_of(list(DIGITS), digits.best_rate, log)
    return {
        (task, way, images): results_of(log, task=task, way=way, images=images, rate=rate)
        for task in digits.TASKS
        for way, rate in rates.items()
        for images in digits.EPOCHS
    }


def digits_section(log: Log) -> str:
    """Markdown: how few digits suffice."""
    found = found_digits(log)
    if not any(found.values()):
        return NOTHING
    seeds = max(map(len, found.values()), default=0)
    epochs = ", ".join(map(str, digits.EPOCHS.values()))
    rates = listed_rates(rates_of(list(DIGITS), digits.best_rate, log))
    counts = [result["parameters"] for results in found.values() for result in results.values()]
    text = filled(DIGITS_TEXT.format(seeds=seeds, epochs=epochs, rates=rates, least=min(counts), most=max(counts)))
    return f"{by_number_of_images(found, seeds)}\n\n{text}\n"


def cifar_section(log: Log) -> str:
    """Markdown: all ways with the number of images that has most runs, then the ways by number of images."""
    rates = rates_of([*cifar.MAIN, *cifar.REST], cifar.best_rate, log)

    def find(group: str, task: str, way: str, images: int) -> Results:
        return results_of(log, group=group, task=task, way=way, images=images, rate=rates[way])

    known = [json.loads(name) for name, result in log.runs.items() if "test" in result]
    if not known:
        return NOTHING
    numbers = Counter(run["images"] for run in known)
    images = max(numbers, key=lambda images: (numbers[images], images))
    # Conv2d knows no group: its runs are those beside C4.
    choices = [(group, way) for group in CIFAR for way in rates if (group, way) != ("D4", "Conv2d")]
    found = {(group, way): [find(group, task, way, images) for task in cifar.TASKS] for group, way in choices}
    seeds = max(len(results) for by_task in found.values() for results in by_task)
    by_way = ways_of_cifar({choice: by_task for choice, by_task in found.items() if any(by_task)}, seeds)
    sizes = sorted(numbers)
    of_ways = {way: {run["images"] for run in known if run["way"] == way} for way in rates}
    several = [way for way, its_sizes in of_ways.items() if len(its_sizes) > 1]
    few = {(task, way, size): find("C4", task, way, size) for task in cifar.TASKS for way in several for size in sizes}
    epochs = ", ".join(f"{cifar.EPOCHS[size]} epochs for {size:,} images" for size in sizes)
    text = filled(CIFAR_TEXT.format(seeds=seeds, images=f"{images:,}", epochs=epochs, rates=listed_rates(rates)))
    by_size = ["By the number of training images, C4:", by_number_of_images(few, seeds)] if few else []
    return "\n\n".join([by_way, *by_size, text]) + "\n"


def ways_of_cifar(found: Mapping[tuple[str, str], Sequence[Results]], seeds: int) -> str:
    """Markdown: by group and way the accuracy in each task and its difference from ``R2Conv``, then softness."""
    header = ["layers", "parameters", *(head for task in cifar.TASKS for head in (task, f"− `{STRICT}`"))]
    rows = []
    for (group, way), by_task in found.items():
        parameters = next(result["parameters"] for results in by_task for result in results.values())
        row = [f"`{way}`{', D4' * (group == 'D4')}", f"{parameters:,}"]
        for results, strict in zip(by_task, found.get((group, STRICT), [{}] * len(by_task)), strict=True):
            row += [cell(results, seeds), difference(differences(results, strict), seeds) if way != STRICT else "–"]
        rows.append([*row, " / ".join(mean_softness(results) for results in by_task)])
    return table([*header, "softness"], rows)


def mean_softness(results: Results) -> str:
    """Mean over layers and seeds."""
    softness = [value for result in results.values() for value in result.get("softness", [])]
    return f"{fmean(softness):.2g}" if softness else "–"


def draw(found: Mapping[tuple[str, str, int], Results]) -> pyplot.Figure:
    """A panel for each task: accuracy by the number of training images, bands of one standard error."""
    tasks, ways, sizes = (list(dict.fromkeys(values)) for values in zip(*found, strict=True))
    figure, panels = pyplot.subplots(
        1, len(tasks), figsize=(0.8 * WIDTH * len(tasks), 2.8), layout="constrained", sharey=True, squeeze=False
    )
    for axes, task in zip(panels[0], tasks, strict=True):
        new_axes(axes, 0)
        axes.set_xscale("log")
        axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
        for way in ways:
            values = {size: [run["test"] for run in found[task, way, size].values()] for size in sizes}
            _draw_curve(axes, way, {size: some for size, some in values.items() if some})
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=FONT - 1)
        axes.minorticks_off()
        axes.grid(axis="y", color="0.9", linewidth=0.6)
        axes.set_title(task, fontsize=FONT + 1)
        labelled(axes, "training images", "test accuracy, %" if axes is panels[0, 0] else "")
        if axes.get_legend() is not None:
            axes.get_legend().remove()
    panels[0, -1].legend(loc="lower right", fontsize=FONT - 1, frameon=False)
    return figure


def _draw_curve(axes: pyplot.Axes, way: str, values: Mapping[int, Sequence[float]]) -> None:
    """The mean and the band of a way."""
    if not values:
        return
    style = STYLES.get(way) or {"color": COLOUR_OF[way]}
    means = [fmean(some) for some in values.values()]
    errors = [stdev(some) / math.sqrt(len(some)) if len(some) > 1 else 0.0 for some in values.values()]
    axes.plot(list(values), means, label=way, linewidth=1.4, marker="o", markersize=3, **style)
    low, high = ([mean + sign * error for mean, error in zip(means, errors, strict=True)] for sign in (-1, 1))
    axes.fill_between(list(values), low, high, color=style["color"], alpha=0.2, linewidth=0)


# File of lines → the section that is made of it.
SECTIONS = {digits.LOG: digits_section, cifar.LOG: cifar_section}


def main() -> None:
    """Write the sections and the picture of what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/natural"), help="folder of the lines")
    parser.add_argument("--picture", type=Path, default=Path("docs/images/few_digits.png"))
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    for name, section in SECTIONS.items():
        text = section(Log(arguments.results / name))
        (arguments.results / name).with_suffix(".md").write_text(text, encoding="utf-8")
        print(text)
    found = found_digits(Log(arguments.results / digits.LOG))
    if any(found.values()):
        figure = draw(found)
        arguments.picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(arguments.picture, dpi=160)
        pyplot.close(figure)


if __name__ == "__main__":
    main()
