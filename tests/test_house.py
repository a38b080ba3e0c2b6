"""Folders import one way: from themselves and from those that data meet before them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "escnn_relaxed"
ORDER = (
    "_version",
    "_requirements",
    "group",
    "checks",
    "torch_modes",
    "kernel",
    "integral",
    "layer",
    "baselines",
    "network",
    "measure",
    "learning",
    "plots",
    "models",
    "experiments",
    "__init__",
)


def imported(file: Path) -> Iterator[str]:
    """What a file imports of the package, as the first part of its path."""
    own = file.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = own[: len(own) - node.level + 1]
            parts = (*above, *(node.module or "").split("."))
            yield from [next(part for part in parts if part)] if any(parts) else [name.name for name in node.names]


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_file_imports_from_its_own_folder_and_those_above(file: Path) -> None:
    above = ORDER[: ORDER.index(room(file)) + 1]
    assert not [name for name in imported(file) if name not in above]


def test_order_names_every_folder_and_file() -> None:
    assert {room(file) for file in PACKAGE.rglob("*.py")} == set(ORDER)
