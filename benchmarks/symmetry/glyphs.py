"""Rendered letters whose shapes are each other's turned copies, with the share of classes that are a pose as a dial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from benchmarks.symmetry.data import VALIDATION, Data, split_off
from benchmarks.symmetry.turns import rotated

# A letter, and the turn in degrees, counterclockwise, that makes another one of it: 9, q, p and Z.
SHAPES = (("6", 180), ("b", 180), ("d", 180), ("N", 90))
SIDE, LEAN = 33, math.pi / 6
SIZES, SHIFT, NOISE = (17, 22), 2.0, 0.1
TRAINING_FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSerif", "DejaVuSerif-Bold"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "STIXGeneral"),
)
TEST_FONTS = ("DejaVuSans-BoldOblique", "DejaVuSerif-Italic", "DejaVuSansMono-Oblique", "STIXGeneralBol")


def glyph_classes(posed: int) -> list[tuple[int, ...]]:
    """Return the classes of each shape, two of the first ``posed``, one of each of the others."""
    return [(2 * shape, 2 * shape + 1) if shape < posed else (posed + shape,) for shape in range(len(SHAPES))]


def draw_glyphs(count: int, posed: int, fonts: Sequence[str], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return n images (n, 1, 33, 33), classes (n,), and whether the class of an image is its pose (n,)."""
    generator = np.random.default_rng(1000 + seed)
    classes = glyph_classes(posed)
    images, labels, angles = [], [], []
    for number in range(count):
        shape = number % len(SHAPES)
        letter, turn = SHAPES[shape]
        is_other = bool(generator.integers(2))
        # The pose of a shape that has a class alone is any angle.
        lean = LEAN if shape < posed else math.pi
        angles.append(math.radians(turn) * is_other + generator.uniform(-lean, lean))
        labels.append(classes[shape][is_other % len(classes[shape])])
        images.append(_rendered(letter, str(generator.choice(fonts)), generator))
    upright = torch.from_numpy(np.stack(images)).float().unsqueeze(1)
    noise = torch.from_numpy(generator.normal(0, NOISE, (count, 1, SIDE, SIDE))).float()
    shapes = torch.arange(count) % len(SHAPES)
    return rotated(upright, torch.tensor(angles)) + noise, torch.tensor(labels), shapes < posed


def _rendered(letter: str, font: str, generator: np.random.Generator) -> np.ndarray:
    """Return a letter about the centre of an image (33, 33) of values up to 1, its size and place drawn."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    face = ImageFont.truetype(str(path), int(generator.integers(*SIZES)))
    left, top, right, bottom = face.getbbox(letter)
    shift = generator.uniform(-SHIFT, SHIFT, 2)
    corner = (SIDE - left - right) / 2 + shift[0], (SIDE - top - bottom) / 2 + shift[1]
    image = Image.new("L", (SIDE, SIDE))
    ImageDraw.Draw(image).text(corner, letter, fill=255, font=face)
    return np.asarray(image) / 255


def load_glyphs(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return rendered letters; the pose is the number of shapes whose class is their pose, as in ``"2 of 4"``."""
    posed = int(pose[0])
    *known, _ = draw_glyphs(images + VALIDATION, posed, TRAINING_FONTS, 2 * seed)
    tested, classes, is_pose = draw_glyphs(2000, posed, TEST_FONTS, 2 * seed + 1)
    return split_off((known[0], known[1]), VALIDATION, (tested, classes), (tested[~is_pose], classes[~is_pose]))
