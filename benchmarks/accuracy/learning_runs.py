"""The runs of the benchmark of learning: ways to train, on tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["EPOCHS", "NARROW", "RUNS", "Run"]

WIDTHS = (4, 4, 4, 8)
# A strict network of as many parameters as the soft ones, or 2 % more.
WIDE = (5, 5, 5, 9)
NARROW = (2, 2, 2, 4)
EPOCHS = {"MNIST6-180": 8, "turned": 12, "within 60°": 12}


@dataclass(frozen=True)
class Run:
    """A way to train on a task.

    Attributes:
        part: of the benchmark.
        task: of :mod:`tasks`.
        name: of the way.
        options: of ``RelaxedR2Conv``.
        kind: of penalty.
        penalty: λ.
        widths: fields of each layer.
        images: as a part of those asked for.
        seeds: as many are trained, at least those asked for.
    """

    part: str
    task: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    kind: str = "frequency"
    penalty: float = 0.0
    widths: tuple[int, ...] = WIDTHS
    images: float = 1.0
    seeds: int = 1


def learned(start: float, **options: Any) -> dict[str, Any]:
    """Options of layers that learn ω′ from a start."""
    return {"relax": {"rotation": start}, "learn_relaxation": True, **options}


PENALTIES = {"frequency": "Σ‖ω′‖²", "softness": "Σ√s"}
RUNS = [
    *(
        Run("starts", task, f"from {start:g}", learned(start), penalty=0.1, widths=NARROW, images=0.6, seeds=5)
        for task in ("MNIST6-180", "turned")
        for start in (0.0, 0.05, 0.25, 1.0)
    ),
    *(Run("strict", task, "strict", {"relax": None}, widths=WIDE) for task in ("turned", "within 60°")),
    Run("strict", "turned", "strict, as many fields", {"relax": None}),
    Run("strict", "within 60°", "fully soft", {"relax": {"rotation": 1.0}, "initial_softness": 0.5}),
    *(
        Run("penalties", task, f"{penalty:g} {PENALTIES[kind]}", learned(0.25), kind=kind, penalty=penalty)
        for task, kind, penalty in (
            ("turned", "frequency", 1.0),
            ("turned", "softness", 0.1),
            ("within 60°", "frequency", 0.0),
            ("within 60°", "softness", 0.1),
            ("MNIST6-180", "softness", 0.1),
            ("MNIST6-180", "softness", 1.0),
        )
    ),
    *(
        Run("sixes", "MNIST6-180", f"from {start:g}, {penalty:g} Σ‖ω′‖²", learned(start), penalty=penalty)
        for start in (0.05, 1.0)
        for penalty in (0.01, 0.1, 1.0)
    ),
]
