"""The growth of a step's cost with the image, the batch, the group and the fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.shared.timing import alternate
from benchmarks.speed.sides import SOFT_IN_BOTH, SOFT_ROTATION, Setting, layer, regular, step
from escnn_relaxed import RelaxedR2Conv

__all__ = ["draw", "scaling", "slope"]


def scaling(setting: Setting, repetitions: int) -> dict[str, dict[int, float]]:
    """Seconds of a step of soft layers against image size, batch, N and fields, one varied at a time."""

    def seconds(size: int = 32, batch: int = 8, rotations: int = 4, fields: int = 4, soft: Any = SOFT_IN_BOTH) -> float:
        types = regular(rotations, fields)
        call = step(layer(RelaxedR2Conv, types, setting, 5, **soft), setting, batch, types.size, size)
        return alternate(call, call, repetitions).seconds

    curves: dict[str, dict[int, float]] = {}
    for label, soft in (("soft rotation", SOFT_ROTATION), ("soft in both", SOFT_IN_BOTH)):
        curves[f"{label}: side of the image"] = {n: seconds(size=n, soft=soft) for n in (16, 32, 64, 128)}
        curves[f"{label}: batch"] = {n: seconds(batch=n, soft=soft) for n in (4, 8, 16, 32)}
        curves[f"{label}: N"] = {n: seconds(rotations=n, soft=soft) for n in (2, 4, 8, 16)}
        curves[f"{label}: fields"] = {n: seconds(fields=n, soft=soft) for n in (2, 4, 8, 16)}
    return curves


def slope(curve: dict[int, float]) -> float:
    """Exponent of the power law through the last two points."""
    (first, low), (second, high) = list(curve.items())[-2:]
    return float(torch.log(torch.tensor(high / low)) / torch.log(torch.tensor(second / first)))


def draw(path: Path, curves: dict[str, dict[int, float]]) -> None:
    """Cost against size, log-log, a panel for each thing that grows."""
    from matplotlib import pyplot

    kinds = list(dict.fromkeys(name.split(": ")[1] for name in curves))
    figure, panels = pyplot.subplots(1, len(kinds), figsize=(3.2 * len(kinds), 3), layout="constrained", sharey=True)
    for panel, kind in zip(panels, kinds, strict=True):
        for name, color, marker in zip(("soft rotation", "soft in both"), ("#0072b2", "#d55e00"), "os", strict=True):
            curve = curves[f"{name}: {kind}"]
            label = f"{name}, slope {slope(curve):.1f}"
            panel.loglog(
                list(curve), [1000 * value for value in curve.values()], color=color, marker=marker, label=label
            )
        panel.set_xticks(list(curve), [str(n) for n in curve], minor=False)
        panel.minorticks_off()
        panel.set_xlabel(kind)
        panel.legend(fontsize="x-small")
    panels[0].set_ylabel("milliseconds a step")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
