"""The tasks of the benchmark by name, and its runs in their order: what tells most comes first."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from benchmarks.shared.turns import Element
from benchmarks.symmetry import forecasts
from benchmarks.symmetry.data import Data
from benchmarks.symmetry.digits import PAIRS, POSES, load_digits, load_pairs, load_quadrants, load_sixes_and_sevens
from benchmarks.symmetry.images import load_cifar, load_faces, load_glyphs, varied
from benchmarks.symmetry.networks import Frame
from benchmarks.symmetry.training import Objective, scores
from benchmarks.symmetry.ways import FURTHER_WAYS, MAIN_WAYS


@dataclass(frozen=True)
class Task:
    """One task: its data, what its networks look like, and how they are trained and measured."""

    # Pose, number of training images, seed and folder of the data → the data.
    load: Callable[[str, int, int, Path | None], Data]
    frame: Any
    # Group → the poses that are tried with it.
    poses: dict[str, tuple[str, ...]]
    # The most rounds in the two stages of a trial of a rate, and its training images.
    trial: tuple[int, int] = (8, 2)
    trial_images: int = 1000
    # Images as they are varied in training, whatever the way.
    varied: Callable[[Tensor], Tensor] | None = None
    objective: Objective = field(default_factory=Objective)
    scores: Callable[[nn.Module, Data, Sequence[Element]], dict[str, Any]] = scores


_OF_ROTATIONS = tuple(pose for pose in POSES if pose != "turned, mirrored")
_OF_DIGITS = {**dict.fromkeys(("C4", "C8", "SO(2)"), _OF_ROTATIONS), "D4": tuple(POSES)}
_OF_PARTS = ("parts C4", "parts D1", "parts D4")
_OF_FACES = ("as they are", "moved by D2")
_OF_PAIRS = Frame(PAIRS, widths=(6, 6, 6, 24), last_kernel=8)
_ON_A_TORUS = Frame(10, widths=(12, 12, 12, 24), relax=("translation",), is_periodic=True)


def _smoke(symmetry: str, group: str, **frame: Any) -> Task:
    """Return the task of forecasts whose data have a symmetry in part."""
    return Task(
        functools.partial(forecasts.load_smoke, symmetry),
        forecasts.ForecastFrame(is_periodic=symmetry == "translation", **frame),
        {group: forecasts.POSES},
        trial_images=forecasts.TRAINING,
        objective=forecasts.OBJECTIVE,
        scores=forecasts.scores,
    )


TASKS: dict[str, Task] = {
    "digits": Task(load_digits, Frame(10), _OF_DIGITS),
    "cifar10": Task(
        load_cifar,
        Frame(10, channels=3, widths=(7, 15, 30), is_residual=True),
        {"C4": ("upright", "turned")},
        trial=(5, 1),
        trial_images=3000,
        varied=varied,
    ),
    "ddmnist": Task(load_pairs, _OF_PAIRS, dict.fromkeys(("C4", "D4"), _OF_PARTS), trial=(3, 1), trial_images=10_000),
    "glyphs": Task(load_glyphs, Frame(8), {"C4": tuple(f"{posed} of 4" for posed in range(5))}, trial_images=500),
    "smoke": _smoke("rotation", "C4"),
    "smoke, translation": _smoke("translation", "T1", widths=(13, 13, 13), relax={"translation": (0.25, 0.0)}),
    "quadrant": Task(load_quadrants, _ON_A_TORUS, {"T": ("quadrant", "in a quadrant")}, trial_images=3000),
    "mnist67-180": Task(load_sixes_and_sevens, Frame(4), {"C4": ("2 of 2", "1 of 2", "0 of 2")}, trial_images=500),
    "faces": Task(load_faces, Frame(2), {"D1": _OF_FACES, "D2": _OF_FACES}, trial_images=100),
}


@dataclass(frozen=True)
class Cell:
    """One run of a table."""

    task: str
    group: str
    pose: str
    images: int
    way: str
    seed: int

    def __str__(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)


def _block(
    task: str, group: str, images: int, ways: Iterable[str], seeds: Iterable[int] = range(5), poses: Iterable[str] = ()
) -> list[Cell]:
    """Return runs that belong together: seed by seed, in each the poses one after another, and all ways of a pose."""
    some = product(seeds, poses or TASKS[task].poses[group], ways)
    return [Cell(task, group, pose, images, way, seed) for seed, pose, way in some]


MAIN, FURTHER = tuple(MAIN_WAYS), tuple(FURTHER_WAYS)
THREE, SIX = range(3), range(6)
OF_PHOTOGRAPHS = (
    *("R2Conv", "R2Conv, free head", "RelaxedR2Conv", "R2Conv, soft head", "Conv2d, turned copies"),
    *("R2Conv, free head, turned copies", "RelaxedR2Conv, free head", "Conv2d", "RelaxedR2Conv, evidence"),
    "RestrictionModule",
)
OF_PARTS = ("R2Conv", "R2Conv, free head", "RelaxedR2Conv", "RelaxedR2Conv, free head", "Conv2d")
OF_GLYPHS = ("R2Conv", "R2Conv, free head", "RelaxedR2Conv", "RelaxedR2Conv, evidence", "R2Conv, soft head", "Conv2d")
OF_FIELDS = (
    *("R2Conv", "R2Conv, free head", "RelaxedR2Conv", "Conv2d", "RelaxedR2Conv, evidence"),
    *("RelaxedR2Conv, last stage", "R2Conv, free head, turned copies", "RelaxedR2Conv, free head"),
)
OF_TRANSLATION = ("R2Conv", "RelaxedR2Conv", "RelaxedR2Conv, evidence")
OF_PLACES = ("R2Conv", "R2Conv, free head", "RelaxedR2Conv", "RelaxedR2Conv, directions", "RelaxedR2Conv, evidence")
OF_FEW_IMAGES = ("R2Conv", "R2Conv, free head", "RelaxedR2Conv", "RelaxedR2Conv, evidence")
LAST_STAGE, DECOUPLED = ("RelaxedR2Conv, last stage",), ("RelaxedR2Conv, decoupled evidence",)
FREE_BIASES = "R2Conv, free biases", "RelaxedR2Conv, free biases"
OF_IRREPS = tuple(way for way in MAIN if way != "R2Conv, soft head")
CELLS: tuple[Cell, ...] = (
    *_block("digits", "C8", 1000, MAIN),
    *_block("digits", "D4", 1000, MAIN),
    *_block("digits", "C8", 300, MAIN),
    *_block("digits", "D4", 300, MAIN),
    *_block("cifar10", "C4", 3000, OF_PHOTOGRAPHS, THREE),
    *_block("ddmnist", "C4", 10_000, OF_PARTS, THREE, ("parts C4",)),
    *_block("glyphs", "C4", 500, OF_GLYPHS),
    *_block("digits", "C8", 1000, FURTHER),
    *_block("digits", "C4", 1000, MAIN, THREE),
    *_block("digits", "C8", 100, OF_FEW_IMAGES),
    *_block("digits", "C8", 100, tuple(way for way in MAIN if way not in OF_FEW_IMAGES), THREE),
    *_block("digits", "C8", 3000, MAIN, THREE),
    *_block("digits", "D4", 1000, FURTHER),
    *_block("ddmnist", "D4", 10_000, OF_PARTS, THREE, ("parts D4", "parts D1")),
    *_block("cifar10", "C4", 10_000, OF_PHOTOGRAPHS, THREE),
    # Marked in the protocol as added later.
    *_block("smoke", "C4", 5, OF_FIELDS, SIX, ("level 9",)),
    *_block("quadrant", "T", 3000, OF_PLACES, THREE),
    *_block("smoke", "C4", 5, OF_FIELDS, SIX, ("level 3", "level 0")),
    *_block("smoke, translation", "T1", 5, OF_TRANSLATION, THREE),
    *_block("digits", "SO(2)", 1000, OF_IRREPS, THREE),
    *_block("mnist67-180", "C4", 500, MAIN, THREE),
    *_block("faces", "D1", 100, MAIN),
    *_block("faces", "D2", 100, MAIN),
    *_block("digits", "C8", 1000, LAST_STAGE),
    *_block("digits", "D4", 1000, LAST_STAGE),
    *_block("digits", "C8", 100, DECOUPLED),
    *_block("digits", "C8", 300, DECOUPLED),
    *_block("digits", "C8", 1000, DECOUPLED),
    *(cell for images in (1000, 300, 100) for cell in _block("digits", "C8", images, FREE_BIASES)),
    *_block("digits", "D4", 1000, FREE_BIASES),
    *_block("glyphs", "C4", 500, FREE_BIASES),
    *_block("smoke", "C4", 5, FREE_BIASES, SIX),
    *_block("smoke, translation", "T1", 5, FREE_BIASES, THREE),
    *_block("quadrant", "T", 3000, FREE_BIASES, THREE),
)
