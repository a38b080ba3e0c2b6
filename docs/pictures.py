"""Draw the pictures of the docs that need no training: python docs/pictures.py [--output docs/images]."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from matplotlib import pyplot
from matplotlib.figure import Figure

import pictures_of_choices as choices
import pictures_of_figures as figures
import pictures_of_layers as layers
import pictures_of_special_cases as cases

__all__ = ["PICTURES"]

PICTURES: dict[str, Callable[[], Figure]] = {
    picture.__name__: picture
    for picture in (
        choices.factors_of_a_filter,
        choices.which_setting,
        figures.accuracy_by_frequency,
        figures.accuracy_by_epoch,
        layers.filters_in_space,
        layers.filters_over_rotations,
        layers.parts_of_a_kernel,
        layers.soft_translation,
        layers.softness_by_axis,
        cases.special_cases,
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
