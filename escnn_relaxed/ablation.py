"""The hardening ablation: what a network loses where a part of it is replaced by its strict part (design §2a)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from .conversion import named_relaxed_layers
from .coordinates import SUBGROUPS
from .relaxed_convolution import RelaxedConvolution
from .strict_part import projected

__all__ = ["AblationRow", "ablation_table", "softness_ablation"]

# What is hardened: its name and kind, the layers, the subgroups.
_Part = tuple[str, str, dict[str, RelaxedConvolution], tuple[str, ...]]


@dataclass(frozen=True)
class AblationRow:
    """One row of the ablation.

    Attributes:
        part: what was hardened: a layer, a group of layers, a subgroup, ``"everything"`` or ``"nothing"``.
        kind: ``"layer"``, ``"group"``, ``"subgroup"`` or ``"network"``.
        value: what ``evaluate`` gave.
        change: value less that of the whole network.
        softness: s of that part; the largest where it has several layers.
    """

    part: str
    kind: str
    value: float
    change: float
    softness: float


def softness_ablation(
    network: nn.Module,
    evaluate: Callable[[nn.Module], float],
    groups: Mapping[str, Sequence[str]] | None = None,
    progress: bool = True,
) -> list[AblationRow]:
    """Evaluate a network with each of its parts replaced by its strict part PK.

    What softness is needed for cannot be seen from a penalty, which later layers and batch norm can make up for; it can
    be seen from what is lost without it.

    Args:
        network: any module; it is evaluated in eval mode, and left as it was, after an error too.
        evaluate: from the network to a number, its test accuracy for instance.
        groups: names of groups of layers → the names of their layers, or of modules that hold them.
        progress: show a progress bar, if ``rich`` is installed.

    Returns:
        Rows for nothing hardened, each layer that is soft, each group, each subgroup that is soft somewhere, and
        everything.

    Raises:
        ValueError: for a network without a relaxed layer, or a group without one.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> network = nn.SequentialModule(RelaxedR2Conv(fields, fields, 3), RelaxedR2Conv(fields, fields, 3))
        >>> rows = softness_ablation(network, lambda net: 1000 * net[0].softness().item(), progress=False)
        >>> print(ablation_table(rows))
        hardened          value   change  softness
        nothing           10.00             0.0100
        0                  0.00   -10.00    0.0100
        1                 10.00    +0.00    0.0100
        rotation           0.00   -10.00    0.0100
        everything         0.00   -10.00    0.0100
    """
    layers = dict(named_relaxed_layers(network))
    if not layers:
        raise ValueError("network has no RelaxedR2Conv")
    parts: list[_Part] = [("nothing", "network", {}, ())]
    soft = {name: layer for name, layer in layers.items() if layer.softness() > 0}
    parts += [(name, "layer", {name: layer}, SUBGROUPS) for name, layer in soft.items()]
    parts += [(name, "group", _members(name, group, layers), SUBGROUPS) for name, group in (groups or {}).items()]
    subgroups = [s for s in SUBGROUPS if any(s in layer.domain_frequency for layer in soft.values())]
    parts += [(subgroup, "subgroup", layers, (subgroup,)) for subgroup in subgroups]
    parts.append(("everything", "network", layers, SUBGROUPS))
    rows: list[AblationRow] = []
    with _as_it_was(network):
        for part, kind, members, averaged in _track(parts, progress):
            network.eval()
            softness = max((float(layer.softness(*averaged)) for layer in (members or layers).values()), default=0.0)
            with projected(members.values(), averaged):
                value = float(evaluate(network))
            change = value - rows[0].value if rows else 0.0
            rows.append(AblationRow(part, kind, value, change, softness))
    return rows


def ablation_table(rows: Sequence[AblationRow]) -> str:
    """The rows as text, one a line."""
    width = max(len("hardened"), *(len(row.part) for row in rows)) + 2
    width = max(width, 14)
    lines = [f"{'hardened':<{width}} {'value':>8} {'change':>8} {'softness':>9}"]
    for row in rows:
        change = "" if row.part == "nothing" else f"{row.change:+.2f}"
        lines.append(f"{row.part:<{width}} {row.value:>8.2f} {change:>8} {row.softness:>9.4f}")
    return "\n".join(lines)


def _members(
    name: str, group: Sequence[str], layers: Mapping[str, RelaxedConvolution]
) -> dict[str, RelaxedConvolution]:
    members = {
        layer_name: layer
        for layer_name, layer in layers.items()
        if any(layer_name == prefix or layer_name.startswith(f"{prefix}.") for prefix in group)
    }
    if not members:
        raise ValueError(f"groups: {name!r} ({list(group)}) has no relaxed layer; those are {list(layers)}")
    return members


@contextlib.contextmanager
def _as_it_was(network: nn.Module) -> Iterator[None]:
    """Restore the mode of every module, and evaluate without gradients."""
    modes = {module: module.training for module in network.modules()}
    try:
        with torch.no_grad():
            yield
    finally:
        # From the outside in, as train(mode) goes on to the modules inside.
        for module, mode in modes.items():
            module.train(mode)


def _track(parts: list[_Part], progress: bool) -> Iterable[_Part]:
    if progress:
        with contextlib.suppress(ImportError):
            from rich.progress import track

            return track(parts, description="hardening ablation", transient=True)
    return parts
