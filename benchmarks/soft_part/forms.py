"""What the study of the soft part compares: cells, forms, fields of each network, runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from escnn.nn import R2Conv
from torch import nn

from benchmarks.shared.networks import build_network
from benchmarks.smoke.smoke_networks import Forecaster, Way
from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.baselines import PartialR2Conv

__all__ = ["CELLS", "DIGITS", "FORMS", "SMOKE", "Form", "Run", "build", "can", "network_of", "rate_of", "widths_of"]

KERNEL_SIZE = 5
TASKS = ("upright", "within 60°", "turned")
DIGITS = {
    **{f"C8, {task}": ("C8 regular", task) for task in TASKS},
    **{f"C4, {task}": ("C4 regular", task) for task in TASKS},
    **{f"D4, {task}": ("D4 regular", task) for task in TASKS},
    **{f"SO(2), {task}": ("SO(2) irreps, gated", task) for task in TASKS},
    "plane, quadrant": ("plain CNN on the torus", "quadrant"),
    "plane, in a quadrant": ("plain CNN on the torus", "in a quadrant"),
}
SMOKE = {f"smoke, level {level}": level for level in (0, 3, 9)}
CELLS = (*DIGITS, *SMOKE)
# Learning rates: the best of three on earlier networks, of strict and of soft layers alike (ways.py, levels.py); and
# that of the first trials with C8. They were not chosen again for each form.
RATES = {"C8 regular": 1e-2}
USUAL_RATE = 3e-2


@dataclass(frozen=True)
class Form:
    """A way to build the layers.

    Attributes:
        layer: their class.
        options: its options, None for ``R2Conv``, which takes none.
    """

    layer: Callable[..., nn.Module]
    options: dict[str, Any] | None

    def options_in(self, network: str) -> dict[str, Any] | None:
        """Return the options in a network of this name."""
        is_soft_plane = network.startswith("plain") and self.layer is RelaxedR2Conv
        return {**(self.options or {}), "relax": {"translation": 0.25}} if is_soft_plane else self.options


FORMS = {
    "strict": Form(R2Conv, None),
    "partial": Form(PartialR2Conv, {"initial_softness": 0.1}),
    "tied": Form(RelaxedR2Conv, {}),
}

# Fields of each layer.
WIDTHS: dict[str, tuple[int, ...]] = {
    "C8 regular": (6, 6, 6, 12),
    "C4 regular": (7, 7, 7, 12),
    "D4 regular": (4, 4, 4, 8),
    "SO(2) irreps, gated": (6, 6, 6, 6),
    "plain CNN on the torus": (7, 7, 7, 7),
    "smoke": (6, 6, 6),
}
# One field less, for as many parameters as the strict network has.
EQUAL = {("plain CNN on the torus", "tied"): (7, 6, 7, 7)}


@dataclass(frozen=True)
class Run:
    """One training."""

    cell: str
    form: str
    widths: tuple[int, ...]
    rate: float
    seed: int

    def __str__(self) -> str:
        return json.dumps({**vars(self), "widths": list(self.widths)}, sort_keys=True, ensure_ascii=False)


def network_of(cell: str) -> str:
    """Name of the network of a cell."""
    return "smoke" if cell in SMOKE else DIGITS[cell][0]


def widths_of(cell: str, form: str) -> tuple[int, ...]:
    """Fields of the layers."""
    network = network_of(cell)
    return EQUAL.get((network, form), WIDTHS[network])


def rate_of(cell: str) -> float:
    """The learning rate."""
    return RATES.get(network_of(cell), USUAL_RATE)


def can(form: str, network: str) -> bool:
    """Whether a form is there for the network's fields."""
    return form != "partial" or network.endswith("regular") or network == "smoke"


def build(form: str, network: str, widths: tuple[int, ...]) -> nn.Module:
    """A network of a form."""
    layer, options = FORMS[form].layer, FORMS[form].options_in(network)
    if network == "smoke":
        if layer is PartialR2Conv:
            options = {}  # its last layer is R2Conv, which takes none
        return Forecaster("rotation", Way(layer, widths, options or {}))
    return build_network(network, widths, KERNEL_SIZE, options, layer)
