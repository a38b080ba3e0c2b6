"""The order of the runs: what tells most comes first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from benchmarks.symmetry.runs import SEEDS, Cell
from benchmarks.symmetry.tasks import TASKS
from benchmarks.symmetry.ways import FURTHER_WAYS, MAIN_WAYS

MAIN, FURTHER = tuple(MAIN_WAYS), tuple(FURTHER_WAYS)
THREE, SIX = SEEDS[:3], (*SEEDS, 5)
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
OF_IRREPS = tuple(way for way in MAIN if way != "R2Conv, soft head")


def _block(
    task: str,
    group: str,
    images: int,
    ways: Sequence[str],
    seeds: Sequence[int] = SEEDS,
    poses: Sequence[str] | None = None,
) -> list[Cell]:
    """Return runs that belong together: seed by seed, in each the poses one after another, and all ways of a pose."""
    some = product(seeds, poses or TASKS[task].poses[group], ways)
    return [Cell(task, group, pose, images, way, seed) for seed, pose, way in some]


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
    # Added later: see the end of the protocol.
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
)
