"""Draw the pictures of the docs that need no data: python docs/pictures.py [--output docs/images]."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from matplotlib import pyplot
from matplotlib.figure import Figure

import pictures_of_layers as layers
import pictures_of_pages as pages
import pictures_of_plots as plots
import pictures_of_results as results

PICTURES: dict[str, Callable[[], Figure]] = {
    picture.__name__: picture
    for picture in (
        layers.factors_of_a_filter,
        layers.filters_over_rotations,
        layers.parts_of_a_kernel,
        layers.soft_translation,
        layers.special_cases,
        layers.symmetry_profile_in_space,
        pages.decision_tree,
        pages.upper_edges,
        layers.ways_to_relax,
        plots.robustness,
        plots.softness,
        plots.softness_sweep,
        plots.symmetry_profile,
        results.accuracy_by_epoch,
        results.accuracy_by_frequency,
        results.discovery,
    )
}


def main() -> None:
    """Draw all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "images")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    for name, picture in PICTURES.items():
        figure = picture()
        figure.savefig(output / f"{name}.png", dpi=160)
        pyplot.close(figure)


if __name__ == "__main__":
    main()
