"""Draw the pictures of the docs that need no training: python docs/pictures.py [--output docs/images].

Numbers in them are read from the tables of the pages, and from the results of finished runs.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import torch
from escnn import gspaces, nn
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional

from escnn_relaxed import RelaxedR2Conv, harden_network
from escnn_relaxed.experiments.results import load_results
from escnn_relaxed.plots import plot_accuracy
from escnn_relaxed.plots.style import COLOURS, DIVERGING

__all__ = ["PICTURES", "accuracies", "costs", "turned_features"]

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
FONT = 10
STRICT, SOFT = COLOURS[0], COLOURS[1]


def table_rows(page: str, first_cells: str) -> list[list[str]]:
    """Cells of the table of a page whose head begins so, an empty first cell filled in from above."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    start = (
        next(
            number for number, line in enumerate(lines) if line.startswith(first_cells)
        )
        + 2
    )
    rows: list[list[str]] = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        rows.append([cells[0] or rows[-1][0], *cells[1:]])
    return rows


def accuracies() -> dict[str, dict[str, tuple[float, float]]]:
    """Network → digits → accuracy and its standard error, in per cent; of the page of accuracies."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for digits, network, accuracy, *_ in table_rows(
        "results/accuracy.md", "| digits | network | test accuracy"
    ):
        mean, error = re.findall(r"\d+\.\d+", accuracy)
        found.setdefault(network, {})[digits] = float(mean), float(error)
    return found


def costs() -> dict[str, dict[int, float]]:
    """What is soft → channels → time of a step of training over that of the strict layer; 7×7, 32×32, batch 16."""
    found: dict[str, dict[int, float]] = {
        "soft rotation, C8": {},
        "soft translation": {},
    }
    for what, against, ratio, *_ in table_rows("results/cost.md", "| what | against |"):
        parts = re.fullmatch(
            r"soft rotation, C8, (\d+) regular, 7×7, 32×32, batch 16", what
        )
        if parts and against == "R2Conv":
            found["soft rotation, C8"][8 * int(parts[1])] = float(ratio)
    for fields, kernel, images, training, *_ in table_rows(
        "results/cost.md", "| fields, channels | kernel |"
    ):
        parts = re.fullmatch(r"trivial, (\d+)", fields)
        if parts and (kernel, images) == ("7×7", "32×32, 16"):
            found["soft translation"][int(parts[1])] = float(training.split("*")[0])
    return found


def what_it_brings() -> Figure:
    """Accuracy of strict and soft networks, by how far digits are turned."""
    figure, axes = new_figure(6, 2.7)
    styles = {
        "R2Conv": (STRICT, "o", "R2Conv"),
        "soft (default)": (SOFT, "s", "RelaxedR2Conv"),
    }
    measured = accuracies()
    for name, (colour, marker, label) in styles.items():
        values = measured.get(name) or measured[f"`{name}`"]
        for place, (mean, error) in enumerate(values.values()):
            shift = 0.12 if name == "R2Conv" else -0.12
            axes.errorbar(
                mean,
                place + shift,
                xerr=error,
                color=colour,
                marker=marker,
                markersize=8,
                capsize=3,
            )
            axes.annotate(
                f"{mean:.1f}",
                (mean, place + shift),
                (0, 8),
                textcoords="offset points",
                ha="center",
            )
        axes.plot([], [], color=colour, marker=marker, linestyle="", label=label)
    axes.set_yticks(range(len(values)), list(values), fontsize=FONT)
    axes.set_ylim(len(values) - 0.5, -0.55)
    axes.set_xlabel("test accuracy, %", fontsize=FONT)
    figure.legend(frameon=False, fontsize=FONT, loc="outside upper center", ncols=2)
    axes.grid(axis="x", alpha=0.3)
    return figure


def parts_of_a_kernel() -> Figure:
    """K, its strict part and its soft part, over the rotations of C8."""
    torch.manual_seed(3)
    gspace = gspaces.rot2dOnR2(8)
    image, regular = (
        nn.FieldType(gspace, [gspace.trivial_repr]),
        nn.FieldType(gspace, [gspace.regular_repr]),
    )
    layer = RelaxedR2Conv(
        image, regular, 7, relax={"rotation": 0.5}, initial_softness=0.4
    )
    strict = harden_network(nn.SequentialModule(layer))[0]
    with torch.no_grad():
        whole, kept = layer.filter_bank(), strict.filter_bank()
    rows = {"K": whole, "strict part PK": kept, "soft part K − PK": whole - kept}
    figure, panels = pyplot.subplots(3, 8, figsize=(8, 3.3), layout="constrained")
    largest = float(whole.abs().max())
    for (label, bank), line in zip(rows.items(), panels, strict=True):
        for kernel, axes in zip(bank[:, 0], line, strict=True):
            show(axes, kernel, largest)
        line[0].set_ylabel(label.replace(" part ", " part\n"), fontsize=FONT)
    for number, axes in enumerate(panels[0]):
        axes.set_title(f"{45 * number}°", fontsize=FONT)
    figure.suptitle(
        f"softness s = ‖K − PK‖² / ‖K‖² = {layer.softness().item():.2f}", fontsize=FONT
    )
    return figure


def digit(size: int) -> Tensor:
    """A six of scikit-learn's, (1, 1, size, size)."""
    digits = load_digits()
    six = torch.from_numpy(digits.images[digits.target == 6][0] / 16).float()[
        None, None
    ]
    inner = functional.interpolate(
        six, size=size - 8, mode="bilinear", align_corners=True
    )
    return functional.pad(inner, [4] * 4)


def turned_features() -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Of a soft layer and of the same one hardened, (H, W) each, the channels of the group pooled.

    Features of an image, features of it turned by 90° and turned back, and their difference.
    """
    torch.manual_seed(1)
    gspace = gspaces.rot2dOnR2(8)
    image, regular = (
        nn.FieldType(gspace, [gspace.trivial_repr]),
        nn.FieldType(gspace, [gspace.regular_repr]),
    )
    layer = RelaxedR2Conv(
        image,
        regular,
        7,
        padding=3,
        bias=False,
        relax={"rotation": 0.5},
        initial_softness=0.3,
    )
    soft = nn.SequentialModule(layer, nn.ReLU(regular), nn.GroupPooling(regular)).eval()
    images, found = digit(33), {}
    for label, network in {"strict": harden_network(soft), "soft": soft}.items():
        with torch.no_grad():
            features = network(image(images)).tensor[0, 0]
            of_turned = (
                network(image(images.rot90(1, (2, 3)))).tensor[0, 0].rot90(-1, (0, 1))
            )
        found[label] = features, of_turned, of_turned - features
    return found


def a_turned_image() -> Figure:
    """Features of an image and of its turned copy, of a soft layer and of its strict part."""
    titles = (
        "features\nof the image",
        "of the image turned\nby 90°, turned back",
        "difference",
    )
    figure, panels = pyplot.subplots(2, 4, figsize=(8, 4.3), layout="constrained")
    for line, (label, features) in zip(panels, turned_features().items(), strict=True):
        line[0].imshow(digit(33)[0, 0], cmap="Greys")
        line[0].set_ylabel(label, fontsize=FONT + 1)
        for axes, part in zip(line[1:], features, strict=True):
            show(axes, part, float(features[0].abs().max()))
        size = float(features[2].norm() / features[0].norm())
        line[3].set_xlabel(
            "0 to rounding" if size < 1e-5 else f"{100 * size:.0f} % of the features",
            fontsize=FONT,
        )
        line[0].set(xticks=[], yticks=[])
    for axes, title in zip(panels[0], ("image", *titles), strict=True):
        axes.set_title(title, fontsize=FONT)
    return figure


def accuracy_by_frequency() -> Figure:
    """CIFAR-10, 2,000 images: accuracy against ω′ of all layers."""
    curve: dict[float, list[float]] = {}
    for result in load_results(RESULTS):
        settings = result.configuration
        rows = "se2-4-soft", "se2-4-strict-corrected"
        if result.row.name in rows and (settings.task, result.images["train"]) == (
            "cifar10",
            2000,
        ):
            curve.setdefault(settings.relax["rotation"], []).append(result.test)
    figure, axes = new_figure(5, 2.8)
    plot_accuracy(curve, axes=axes)
    large_labels(axes)
    return figure


def cost_by_channels() -> Figure:
    """Time of a step of training, in proportion to the strict layer, against channels."""
    figure, axes = new_figure(6, 2.9)
    for (label, ratios), marker, colour in zip(
        costs().items(), "os", (STRICT, SOFT), strict=True
    ):
        against = "R2Conv" if "rotation" in label else "Conv2d"
        axes.plot(
            *zip(*sorted(ratios.items()), strict=True),
            marker=marker,
            color=colour,
            label=f"{label} / {against}",
        )
    axes.axhline(1, color="0.5", linewidth=1, linestyle="--")
    axes.set_xscale("log", base=2)
    channels = sorted({channel for ratios in costs().values() for channel in ratios})
    axes.set_xticks(channels, [str(channel) for channel in channels], fontsize=FONT)
    axes.set(ylim=(0, 2.4))
    axes.set_xlabel("channels", fontsize=FONT)
    axes.set_ylabel("time of a step, ratio", fontsize=FONT)
    axes.legend(frameon=False, fontsize=FONT, loc="lower right")
    return figure


def regions_of_an_image() -> Figure:
    """The 4 × 4 regions of a layer that is soft in translation over an image, and the filter of each."""
    torch.manual_seed(0)
    gspace = gspaces.trivialOnR2()
    fields = nn.FieldType(gspace, [gspace.trivial_repr])
    layer = RelaxedR2Conv(
        fields, fields, 7, padding=3, relax={"translation": 0.4}, initial_softness=0.6
    )
    size = 32
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(7.4, 3.7), layout="constrained"
    )
    left.imshow(digit(size)[0, 0], cmap="Greys", extent=(0, size, size, 0))
    for border in range(0, size + 1, size // 4):
        left.axvline(border, color=SOFT, linewidth=1.4)
        left.axhline(border, color=SOFT, linewidth=1.4)
    left.set(xticks=[], yticks=[], xlim=(0, size), ylim=(size, 0))
    left.set_title("a filter bank in each of 4 × 4 regions", fontsize=FONT)
    right.set_title("the filter in each of them", fontsize=FONT)
    with torch.no_grad():
        banks = layer.region_banks((size, size))[:, :, 0, 0]
    grid = torch.cat(
        [
            torch.cat([functional.pad(bank, [1] * 4) for bank in row], dim=1)
            for row in banks
        ]
    )
    show(right, grid, float(banks.abs().max()))
    right.axis("off")
    return figure


def which_subgroup() -> Figure:
    """A decision tree: what do the data break?"""
    figure, axes = new_figure(7.4, 4.6)
    questions = (
        (
            "Do turned images mean something else?\n(a 6 and a 9; a sky that is above)",
            "rotation",
        ),
        (
            "Do mirrored images mean something else?\n(a b and a d; the side of a face)",
            "reflection",
        ),
        (
            "Does it matter where something is?\n(centred objects; the ground below)",
            "translation",
        ),
    )
    for number, (question, subgroup) in enumerate(questions):
        y = 3 - number
        box(axes, (1.5, y), question, "0.95")
        box(
            axes,
            (5.0, y),
            f'relax={{"{subgroup}": 0.25}}',
            "#fbe6d6",
            family="monospace",
        )
        arrow(axes, (3.1, y), (3.7, y), "yes")
        arrow(axes, (1.5, y - 0.27), (1.5, y - 0.73), "no")
    box(axes, (1.5, 0), "R2Conv, or relax=None", "#d6e6f4", family="monospace")
    words = "More than one yes: name them all.\nIn doubt: the default, soft in rotation\nand reflection."
    axes.text(5.0, 0, words, ha="center", va="center", fontsize=FONT)
    axes.set(xlim=(-0.2, 6.5), ylim=(-0.4, 3.4))
    axes.axis("off")
    return figure


def box(
    axes: Axes,
    place: tuple[float, float],
    text: str,
    colour: str,
    family: str = "sans-serif",
) -> None:
    """Words in a box."""
    frame = {"boxstyle": "round,pad=0.5", "facecolor": colour, "edgecolor": "0.4"}
    axes.text(
        *place, text, ha="center", va="center", fontsize=FONT, family=family, bbox=frame
    )


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], word: str
) -> None:
    """An arrow with a word beside it."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "0.3"})
    middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    axes.annotate(word, middle, (5, 5), textcoords="offset points", fontsize=FONT)


def show(axes: Axes, pixels: Tensor, largest: float) -> None:
    """Numbers of both signs, 0 white, without ticks."""
    axes.imshow(pixels, cmap=DIVERGING, vmin=-largest, vmax=largest)
    axes.set(xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_color("0.8")


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """In inches, without a frame at the top and the right."""
    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=FONT)
    return figure, axes


def large_labels(axes: Axes) -> None:
    """Of a plot that was made for a narrow column."""
    for text in (
        axes.xaxis.label,
        axes.yaxis.label,
        *axes.get_xticklabels(),
        *axes.get_yticklabels(),
    ):
        text.set_fontsize(FONT)


PICTURES: dict[str, Callable[[], Figure]] = {
    picture.__name__: picture
    for picture in (
        what_it_brings,
        parts_of_a_kernel,
        a_turned_image,
        accuracy_by_frequency,
        cost_by_channels,
        regions_of_an_image,
        which_subgroup,
    )
}


def main() -> None:
    """Draw all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=DOCS / "images")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    for name, picture in PICTURES.items():
        figure = picture()
        figure.savefig(output / f"{name}.png", dpi=160)
        pyplot.close(figure)


if __name__ == "__main__":
    main()
