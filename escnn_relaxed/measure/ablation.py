"""The hardening ablation: the loss of a network where a part of it is replaced by its strict part (equation (6))."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from ..checks import SUBGROUPS, check_callable
from ..network.relaxed_layers import copy_network, relaxed_layers
from .reports import AblationReport, AblationRow

__all__ = ["softness_ablation"]


def softness_ablation(network: nn.Module, evaluate: Callable[[nn.Module], float]) -> AblationReport:
    """Evaluate a network with each of its parts replaced by its strict part PK.

    Whether softness is needed cannot be seen from a penalty, which later layers and batch norm can make up for; it can
    be seen from what is lost without it. The report, whose text is a table, has rows for nothing hardened, each layer
    that is soft, each subgroup that is soft somewhere, and everything.

    Args:
        network: any module that can be copied; it is not changed.
        evaluate: from a network to a number, its test accuracy for instance. It gets a copy of ``network`` in eval
            mode for each row, the row's part hardened, and is called without gradients.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for a network without a relaxed layer.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> network = nn.SequentialModule(*(RelaxedR2Conv(fields, fields, 3) for _ in range(2)))
        >>> print(softness_ablation(network, lambda net: 10000 * net[0].softness().item()))
        hardened          value   change  softness
        nothing           10.00             0.0010
        0                  0.00   -10.00    0.0010
        1                 10.00    +0.00    0.0010
        rotation           0.00   -10.00    0.0010
        everything         0.00   -10.00    0.0010
    """
    layers = relaxed_layers(network)
    check_callable("evaluate", evaluate)
    soft = [name for name, layer in layers.items() if layer.softness() > 0]
    # The name of a part, its kind, the names of its layers, and the subgroups in which they are hardened.
    parts: list[tuple[str, str, list[str], tuple[str, ...]]] = [("nothing", "network", [], ())]
    parts += [(name, "layer", [name], SUBGROUPS) for name in soft]
    subgroups = [subgroup for subgroup in SUBGROUPS if any(layers[name].softness(subgroup) > 0 for name in soft)]
    parts += [(subgroup, "subgroup", list(layers), (subgroup,)) for subgroup in subgroups]
    parts.append(("everything", "network", list(layers), SUBGROUPS))
    rows: list[AblationRow] = []
    for part, kind, members, averaged in parts:
        value, softness = _evaluated_without(network, members, averaged, evaluate)
        rows.append(AblationRow(part, kind, value, value - rows[0].value if rows else 0.0, softness))
    return AblationReport(rows)


@torch.no_grad()
def _evaluated_without(
    network: nn.Module, members: Sequence[str], subgroups: tuple[str, ...], evaluate: Callable[[nn.Module], float]
) -> tuple[float, float]:
    """Return the value of a copy with some layers hardened, and their largest softness before (of all for none)."""
    copied = copy_network(network).eval()
    layers = relaxed_layers(copied)
    softness = max(float(layers[name].softness(*subgroups)) for name in members or layers)
    for name in members:
        layers[name].harden(*subgroups)
    return float(evaluate(copied)), softness
