"""The order of the runs: what tells most comes first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.symmetry.runs import SEEDS, Cell
from benchmarks.symmetry.tasks import TASKS
from benchmarks.symmetry.ways import FURTHER_WAYS, MAIN_WAYS


@dataclass(frozen=True)
class Block:
    """Runs that belong together: seed by seed, in each the poses one after another, and all ways of a pose."""

    task: str
    group: str
    images: int
    ways: tuple[str, ...]
    seeds: tuple[int, ...] = SEEDS
    poses: tuple[str, ...] | None = None

    def cells(self) -> Iterator[Cell]:
        """Yield its runs in order."""
        for seed in self.seeds:
            for pose in self.poses or TASKS[self.task].poses[self.group]:
                for way in self.ways:
                    yield Cell(self.task, self.group, pose, self.images, way, seed)


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
DECOUPLED = ("RelaxedR2Conv, decoupled evidence",)
OF_IRREPS = tuple(way for way in MAIN if way != "R2Conv, soft head")
BLOCKS = (
    Block("digits", "C8", 1000, MAIN),
    Block("digits", "D4", 1000, MAIN),
    Block("digits", "C8", 300, MAIN),
    Block("digits", "D4", 300, MAIN),
    Block("cifar10", "C4", 3000, OF_PHOTOGRAPHS, THREE),
    Block("ddmnist", "C4", 10_000, OF_PARTS, THREE, ("parts C4",)),
    Block("glyphs", "C4", 500, OF_GLYPHS),
    Block("digits", "C8", 1000, FURTHER),
    Block("digits", "C4", 1000, MAIN, THREE),
    Block("digits", "C8", 100, OF_FEW_IMAGES),
    Block("digits", "C8", 100, tuple(way for way in MAIN if way not in OF_FEW_IMAGES), THREE),
    Block("digits", "C8", 3000, MAIN, THREE),
    Block("digits", "D4", 1000, FURTHER),
    Block("ddmnist", "D4", 10_000, OF_PARTS, THREE, ("parts D4", "parts D1")),
    Block("cifar10", "C4", 10_000, OF_PHOTOGRAPHS, THREE),
    # Added later: see the end of the protocol.
    Block("smoke", "C4", 5, OF_FIELDS, SIX, ("level 9",)),
    Block("quadrant", "T", 3000, OF_PLACES, THREE),
    Block("smoke", "C4", 5, OF_FIELDS, SIX, ("level 3", "level 0")),
    Block("smoke, translation", "T1", 5, OF_TRANSLATION, THREE),
    Block("digits", "SO(2)", 1000, OF_IRREPS, THREE),
    Block("mnist67-180", "C4", 500, MAIN, THREE),
    Block("faces", "D1", 100, MAIN),
    Block("faces", "D2", 100, MAIN),
    *(Block("digits", group, 1000, ("RelaxedR2Conv, last stage",)) for group in ("C8", "D4")),
    *(Block("digits", "C8", images, DECOUPLED) for images in (100, 300, 1000)),
)


def ordered_cells() -> Iterator[Cell]:
    """Yield all runs in order."""
    for block in BLOCKS:
        yield from block.cells()
