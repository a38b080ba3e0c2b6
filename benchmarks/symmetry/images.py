"""Images that are no digits: photographs of CIFAR-10, faces beside other things, and rendered letters.

Shapes of the letters are each other's turned copies, with the share of classes that are a pose as a dial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional

from benchmarks.shared.turns import ELEMENTS, randomly_moved, rotated
from benchmarks.symmetry.data import SIDE, VALIDATION, Data, draw, first, split_off
from experiments.cifar_files import cifar_split

PIXELS = 4  # by which photographs are shifted
# Of 200 images of scikit-image, 100 of which are faces; the rest is for the test.
FACES_OF_VALIDATION = 40
# A letter, and the turn in degrees, counterclockwise, that makes another one of it: 9, q, p and Z.
SHAPES = (("6", 180), ("b", 180), ("d", 180), ("N", 90))
LEAN = math.pi / 6
SIZES, SHIFT, NOISE = (17, 22), 2.0, 0.1
TRAINING_FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSerif", "DejaVuSerif-Bold"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "STIXGeneral"),
)
TEST_FONTS = ("DejaVuSans-BoldOblique", "DejaVuSerif-Italic", "DejaVuSansMono-Oblique", "STIXGeneralBol")


def load_cifar(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return CIFAR-10 on 33×33 pixels, upright as it is, or turned and cut to the disk."""
    if root is None:
        raise ValueError("the task 'cifar10' needs --data, the folder with its files")
    splits = []
    for split, most in (("train", images + VALIDATION), ("test", None)):
        pixels, labels = (torch.from_numpy(array) for array in cifar_split(root, "cifar10", split))
        order, generator = draw(len(pixels), seed)
        splits.append((pixels[order[:most]].float(), labels[order[:most]].long(), generator))
    deviation, mean = torch.std_mean(splits[0][0][VALIDATION:], dim=(0, 2, 3), keepdim=True)
    known, test = ((_posed((some - mean) / deviation, pose, draws), labels) for some, labels, draws in splits)
    return split_off(known, VALIDATION, test, first(test, 2000))


def _posed(images: Tensor, pose: str, generator: torch.Generator) -> Tensor:
    """Return images (n, 3, 33, 33) of (n, 3, 32, 32): with a row and a column of 0, or turned within the disk."""
    if pose == "upright":
        return functional.pad(images, (0, 1, 0, 1))
    angles = (torch.rand(len(images), generator=generator) * 2 - 1) * math.pi
    row = torch.arange(SIDE) - SIDE // 2
    disk = row[:, None] ** 2 + row**2 <= (images.shape[-1] / 2) ** 2
    return rotated(images, angles, SIDE) * disk


def varied(images: Tensor) -> Tensor:
    """Return each image flipped with probability ½, and shifted by up to 4 pixels; 0 comes in."""
    flips = torch.rand(len(images)) < 0.5
    images = torch.where(flips.view(-1, 1, 1, 1), images.flip(3), images)
    padded = functional.pad(images, (PIXELS,) * 4)
    rows, columns = (torch.randint(2 * PIXELS + 1, (len(images), 1)) + torch.arange(images.shape[-1]) for _ in range(2))
    members = torch.arange(len(images)).view(-1, 1, 1)
    return padded[members, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def load_faces(pose: str, images: int, seed: int, root: Path | None) -> Data:
    """Return faces and other things of 25×25 pixels from scikit-image, as they are or moved by elements of D2."""
    from skimage import data

    pixels = torch.from_numpy(data.lfw_subset()).float().unsqueeze(1)
    classes = (torch.arange(len(pixels)) < len(pixels) // 2).long()
    order, generator = draw(len(pixels), seed)
    pixels, classes = pixels[order] - pixels.mean(), classes[order]
    if pose == "moved by D2":
        pixels = randomly_moved(pixels, ELEMENTS["D2"], generator=generator)
    few = FACES_OF_VALIDATION + images
    test = pixels[few:], classes[few:]
    return split_off(first((pixels, classes), few), FACES_OF_VALIDATION, test, test)


def _draw_glyphs(count: int, posed: int, fonts: Sequence[str], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return n images (n, 1, 33, 33), classes (n,), and whether the class of an image is its pose (n,)."""
    generator = np.random.default_rng(1000 + seed)
    images, labels, angles = [], [], []
    for number in range(count):
        shape = number % len(SHAPES)
        letter, turn = SHAPES[shape]
        is_other = bool(generator.integers(2))
        # The pose of a shape that has a class alone is any angle.
        lean = LEAN if shape < posed else math.pi
        angles.append(math.radians(turn) * is_other + generator.uniform(-lean, lean))
        labels.append(2 * shape + is_other if shape < posed else posed + shape)
        images.append(_rendered(letter, str(generator.choice(fonts)), generator))
    upright = torch.from_numpy(np.stack(images)).float().unsqueeze(1)
    noise = torch.from_numpy(generator.normal(0, NOISE, (count, 1, SIDE, SIDE))).float()
    is_pose = torch.arange(count) % len(SHAPES) < posed
    return rotated(upright, torch.tensor(angles)) + noise, torch.tensor(labels), is_pose


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
    *known, _ = _draw_glyphs(images + VALIDATION, posed, TRAINING_FONTS, 2 * seed)
    tested, classes, is_pose = _draw_glyphs(2000, posed, TEST_FONTS, 2 * seed + 1)
    return split_off((known[0], known[1]), VALIDATION, (tested, classes), (tested[~is_pose], classes[~is_pose]))
