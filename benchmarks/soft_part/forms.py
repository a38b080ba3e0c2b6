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
from benchmarks.soft_part.candidates import FixedHarmonics, Harmonics, TiedPlane, TiedR2Conv
from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
from escnn_relaxed.baselines import PartialR2Conv

__all__ = [
    "CELLS",
    "DIGITS",
    "FORMS",
    "GROWN",
    "SMOKE",
    "Form",
    "Run",
    "build",
    "can",
    "network_of",
    "rate_of",
    "widths_of",
]

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
    """A way to build the layers: a tied one, a partial one, or RelaxedR2Conv with a kernel; else R2Conv.

    Attributes:
        kind: ``"strict"``, ``"partial"``, ``"tied"`` or ``"kernel"``.
        options: of the tied layer, or of ``ContinuousKernel``.
    """

    kind: str
    options: dict[str, Any]

    def layer(self, network: str) -> tuple[Callable[..., nn.Module], dict[str, Any] | None]:
        """The class of the layers and its options, in a network of this name."""
        is_plane = network.startswith("plain")
        if self.kind == "strict":
            return R2Conv, None
        if self.kind == "partial":
            return PartialR2Conv, {"initial_softness": 0.1}
        options = dict(self.options)
        # With reflections, the fewest functions that tell all subgroups apart are three.
        size = "functions" if self.kind == "tied" else "hidden_size"
        if network.startswith("D4") and options.get("net") is not ContinuousKernel.net and options[size] == 2:
            options[size] = 3
        if self.kind == "tied":
            return TiedPlane if is_plane else TiedR2Conv, options
        relax = {"relax": {"translation": 0.25}} if is_plane else {}
        return RelaxedR2Conv, {**relax, "kernel": ContinuousKernel(**options)}


def _tied(functions: int, **options: Any) -> Form:
    return Form("tied", {"functions": functions, **options})


def _kernel(size: int, net: Any = ContinuousKernel.net) -> Form:
    return Form("kernel", {"net": net, "hidden_size": size})


FORMS = {
    "strict": Form("strict", {}),
    "partial": Form("partial", {}),
    # For the scatter of rollouts: the same fields without a soft part.
    "strict, as wide as J = 8": Form("strict", {}),
    "net, J = 8": _kernel(8),
    "net, J = 2": _kernel(2),
    "harmonics, ψ = 1, J = 2": _kernel(2, FixedHarmonics),
    "harmonics, J = 2": _kernel(2, Harmonics),
    "tied, J = 2": _tied(2),
    "tied, J = 4": _tied(4),
    "tied, J = 2, u = 0.05": _tied(2, unit=0.05),
    "tied, J = 2, u = 0.2": _tied(2, unit=0.2),
    "tied, J = 2, from 0": _tied(2, initial_softness=0.0),
    "tied, J = 2, u = 0.03": _tied(2, unit=0.03),
    "tied, J = 4, u = 0.03": _tied(4, unit=0.03),
    "tied pairs, J = 2, u = 0.03": _tied(2, parts="p", unit=0.03),
    # Without the input's part, which the output's of the layer before can undo.
    "tied, J = 2, o, u = 0.05": _tied(2, parts="o", unit=0.05),
    "tied, J = 2, od, u = 0.05": _tied(2, parts="od", unit=0.05),
    "tied, J = 4, od, u = 0.05": _tied(4, parts="od", unit=0.05),
    "tied pairs, J = 2, d, u = 0.05": _tied(2, parts="pd", unit=0.05),
}

# Those whose growth is told apart.
GROWN = (
    "net, J = 8",
    "net, J = 2",
    "harmonics, ψ = 1, J = 2",
    "harmonics, J = 2",
    "tied, J = 2",
    "tied, J = 4",
    "tied, J = 2, od, u = 0.05",
    "tied pairs, J = 2, d, u = 0.05",
)

# Fields of each layer: of strict networks, and of forms that must have fewer for as many parameters.
WIDTHS: dict[str, tuple[int, ...]] = {
    "C8 regular": (6, 6, 6, 12),
    "C4 regular": (7, 7, 7, 12),
    "D4 regular": (4, 4, 4, 8),
    "SO(2) irreps, gated": (6, 6, 6, 6),
    "plain CNN on the torus": (7, 7, 7, 7),
    "smoke": (6, 6, 6),
}
EQUAL: dict[tuple[str, str], tuple[int, ...]] = {
    ("C8 regular", "net, J = 2"): (6, 4, 7, 12),
    ("C4 regular", "net, J = 2"): (7, 7, 6, 12),
    ("C4 regular", "harmonics, ψ = 1, J = 2"): (6, 7, 7, 12),
    ("C4 regular", "harmonics, J = 2"): (6, 7, 7, 12),
    ("C4 regular", "tied pairs, J = 2, u = 0.03"): (6, 7, 7, 12),
    ("C4 regular", "tied pairs, J = 2, d, u = 0.05"): (6, 7, 7, 12),
    ("D4 regular", "net, J = 2"): (4, 3, 4, 8),
    ("D4 regular", "harmonics, ψ = 1, J = 2"): (4, 3, 5, 7),
    ("D4 regular", "harmonics, J = 2"): (4, 3, 5, 7),
    ("SO(2) irreps, gated", "net, J = 2"): (5, 4, 5, 6),
    ("SO(2) irreps, gated", "harmonics, ψ = 1, J = 2"): (6, 6, 5, 5),
    ("SO(2) irreps, gated", "harmonics, J = 2"): (6, 6, 5, 5),
    ("smoke", "strict, as wide as J = 8"): (3, 4, 3),
    ("smoke", "net, J = 8"): (3, 4, 3),
    ("smoke", "net, J = 2"): (6, 4, 7),
    ("smoke", "harmonics, ψ = 1, J = 2"): (5, 6, 6),
    ("smoke", "harmonics, J = 2"): (5, 6, 6),
    ("smoke", "tied, J = 4"): (4, 7, 6),
    ("smoke", "tied, J = 4, u = 0.03"): (4, 7, 6),
    ("smoke", "tied pairs, J = 2, u = 0.03"): (4, 7, 6),
    ("smoke", "tied pairs, J = 2, d, u = 0.05"): (4, 7, 6),
    ("plain CNN on the torus", "net, J = 2"): (6, 6, 6, 7),
}


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


def widths_of(cell: str, form: str, side: str) -> tuple[int, ...]:
    """Fields of the layers."""
    network = network_of(cell)
    return EQUAL.get((network, form), WIDTHS[network]) if side == "equal" else WIDTHS[network]


def rate_of(cell: str) -> float:
    """The learning rate."""
    return RATES.get(network_of(cell), USUAL_RATE)


def can(form: str, network: str) -> bool:
    """Whether a form is there for the network's fields."""
    if form == "strict, as wide as J = 8":
        return network == "smoke"
    if form == "partial" or FORMS[form].options.get("parts", "").startswith("p"):
        return network.endswith("regular") or network == "smoke"
    return True


def build(form: str, network: str, widths: tuple[int, ...]) -> nn.Module:
    """A network of a form."""
    layer, options = FORMS[form].layer(network)
    if network == "smoke":
        if layer is PartialR2Conv:
            options = {}  # its last layer is R2Conv, which takes none
        return Forecaster("rotation", Way(layer, widths, options or {}))
    return build_network(network, widths, KERNEL_SIZE, options, layer)
