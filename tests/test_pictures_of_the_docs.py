"""The pictures of the docs: numbers are those of the tables, a strict layer turns, every one is on a page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pyplot = pytest.importorskip("matplotlib.pyplot")
pytest.importorskip("sklearn")

pictures = pytest.importorskip("pictures", reason="no docs beside the tests")
figures = pytest.importorskip("pictures_of_figures")
layers = pytest.importorskip("pictures_of_layers")

DOCS = Path(__file__).parents[1] / "docs"
FIGURE = re.compile(r"^[:`]{3}\{figure\} (\S+)\n:alt: (.*)\n", re.MULTILINE)


def test_accuracies_are_those_of_the_page() -> None:
    page = (DOCS / "results" / "accuracy.md").read_text(encoding="utf-8").replace("*", "")
    found = figures.accuracies()
    assert set(found["soft (default)"]) == set(found["`R2Conv`"]) == {"upright", "within ±60°", "turned by any angle"}
    for of_network in found.values():
        assert all(f"{mean:.2f} ± {error:.2f}" in page for mean, error in of_network.values())


def test_costs_are_those_of_the_page() -> None:
    page = (DOCS / "results" / "cost.md").read_text(encoding="utf-8").replace("*", "")
    rotation, translation = figures.costs().values()
    assert set(rotation) == {64, 128, 256}
    for channels, ratio in rotation.items():
        assert f"C8, {channels // 8} regular, 7×7, 32×32, batch 16 | R2Conv | {ratio:.2f} " in page
    assert set(translation) == {32, 64, 128}
    for channels, ratio in translation.items():
        assert f"| trivial, {channels} | 7×7 | 32×32, 16 | {ratio:.2f} " in page


def test_features_of_the_strict_layer_turn_with_the_image_and_those_of_the_soft_do_not() -> None:
    found = layers.turned_features()
    changes = {label: float(change.norm() / features.norm()) for label, (features, _, change) in found.items()}
    assert changes["strict"] < 1e-5  # float32
    assert changes["soft"] > 0.05


@pytest.mark.slow
def test_every_picture_is_drawn_and_stands_on_a_page(tmp_path: Path) -> None:
    shown = {Path(file).name for page in DOCS.rglob("*.md") for file, _ in FIGURE.findall(page.read_text("utf-8"))}
    for name, draw in pictures.PICTURES.items():
        figure = draw()
        figure.savefig(tmp_path / "picture.png", dpi=50)
        pyplot.close(figure)
        assert np.ptp(pyplot.imread(tmp_path / "picture.png")) > 0.5
        assert (DOCS / "images" / f"{name}.png").exists()
        assert f"{name}.png" in shown


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_pictures_of_a_page_have_an_alternative_text_and_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    figures = FIGURE.findall(text)
    assert len(figures) == len(re.findall(r"\{figure\} ", text))
    assert not re.findall(r"!\[[^\]]*\]\(", text), "a figure has a caption"
    for file, alternative in figures:
        assert (page.parent / file).exists()
        assert len(alternative.split()) >= 8
