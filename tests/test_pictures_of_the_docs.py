"""The pictures of the docs: features of a strict layer turn, every picture is on a page and has words."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pyplot = pytest.importorskip("matplotlib.pyplot")
pytest.importorskip("sklearn")

pictures = pytest.importorskip("pictures", reason="no docs beside the tests")
turning = pytest.importorskip("turning_digit")
training = pytest.importorskip("pictures_of_training")

DOCS = Path(__file__).parents[1] / "docs"
FIGURE = re.compile(r"^[:`]{3}\{figure\} (\S+)\n:alt: (.*)\n", re.MULTILINE)


def test_features_of_the_strict_layer_stand_still_at_quarter_turns_and_those_of_the_soft_do_not() -> None:
    frames = turning.frames()
    quarter = len(frames) // 4
    changes = {}
    for label in ("strict", "soft"):
        first, turned = frames[0][label], frames[quarter][label]
        changes[label] = float((turned - first).norm() / first.norm())
    assert changes["strict"] < 1e-4  # float32, resampled at the pixels
    assert changes["soft"] > 0.05


def test_moving_picture_is_small() -> None:
    assert (DOCS / "images" / "turning_digit.gif").stat().st_size < 1e6


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


@pytest.mark.slow
def test_pictures_of_trained_networks_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ["--images", "64", "--epochs", "1", "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["pictures_of_training", *few])
    training.main()
    names = {"error_by_angle.png", "frequency_over_training.png", "filter_over_positions.png"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_pictures_of_a_page_have_an_alternative_text_and_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    figures = FIGURE.findall(text)
    assert len(figures) == len(re.findall(r"\{figure\} ", text))
    assert not re.findall(r"!\[[^\]]*\]\(", text), "a figure has a caption"
    for file, alternative in figures:
        assert (page.parent / file).exists()
        assert len(alternative.split()) >= 8
