"""The hardening ablation: what a network loses where a part of it is replaced by its strict part (equation (6))."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import nn

from ..checks import SUBGROUPS, check_bool, check_callable, check_mapping, check_sequence
from ..layer.convolution import RelaxedConvolution
from ..network.conversion import copy_network
from ..network.relaxed_layers import relaxed_layers

__all__ = ["AblationReport", "AblationRow", "softness_ablation"]

# One part of the network that is hardened: its name, its kind, the names of its layers, the subgroups.
_Part = tuple[str, str, list[str], tuple[str, ...]]


@dataclass(frozen=True)
class AblationRow:
    """One row of the ablation; ``pandas.DataFrame(report.rows)`` makes a table of them.

    Attributes:
        part: the part that was hardened: a layer, a group of layers, a subgroup, ``"everything"`` or ``"nothing"``.
        kind: ``"layer"``, ``"group"``, ``"subgroup"`` or ``"network"``.
        value: what ``evaluate`` gave.
        change: value less that of the whole network.
        softness: s of that part; the largest where it has several layers.

    Example:
        >>> row = AblationRow("features.0", "layer", value=52.5, change=-47.0, softness=0.01)
        >>> f"without the softness of {row.part}: {row.change} points"
        'without the softness of features.0: -47.0 points'
    """

    part: str
    kind: str
    value: float
    change: float
    softness: float


@dataclass(frozen=True)
class AblationReport(Sequence[AblationRow]):
    """A row for each part that was hardened, as a sequence of them; its text is a table.

    Attributes:
        rows: in the order nothing, layers, groups, subgroups, everything.

    Example:
        >>> whole = AblationRow("nothing", "network", 99.5, 0.0, 0.01)
        >>> report = AblationReport((whole, AblationRow("features.0", "layer", 52.5, -47.0, 0.01)))
        >>> print(report)
        hardened          value   change  softness
        nothing           99.50             0.0100
        features.0        52.50   -47.00    0.0100
        >>> len(report), report[-1].part, [row.change for row in report]
        (2, 'features.0', [0.0, -47.0])
    """

    rows: tuple[AblationRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> AblationRow: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[AblationRow, ...]: ...

    def __getitem__(self, index: int | slice) -> AblationRow | tuple[AblationRow, ...]:
        return self.rows[index]

    def __str__(self) -> str:
        width = max(14, *(len(part) + 2 for part in ("hardened", *(row.part for row in self.rows))))
        lines = [f"{'hardened':<{width}} {'value':>8} {'change':>8} {'softness':>9}"]
        for row in self.rows:
            change = "" if row.part == "nothing" else f"{row.change:+.2f}"
            lines.append(f"{row.part:<{width}} {row.value:>8.2f} {change:>8} {row.softness:>9.4f}")
        return "\n".join(lines)


def softness_ablation(
    network: nn.Module,
    evaluate: Callable[[nn.Module], float],
    groups: Mapping[str, Sequence[str]] | None = None,
    progress: bool = True,
) -> AblationReport:
    """Evaluate a network with each of its parts replaced by its strict part PK.

    What softness is needed for cannot be seen from a penalty, which later layers and batch norm can make up for; it can
    be seen from what is lost without it.

    Args:
        network: any module that can be copied; it is not changed.
        evaluate: from a network to a number, its test accuracy for instance. It gets a copy of ``network`` in eval
            mode for each row, the row's part hardened, and is called without gradients.
        groups: names of groups of layers → the names of their layers, or of modules that hold them.
        progress: show a progress bar, if ``rich`` is installed.

    Returns:
        A report, whose text is a table, with rows for nothing hardened, each layer that is soft, each group, each
        subgroup that is soft somewhere, and everything.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for a network without a relaxed layer, or a group without one.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> network = nn.SequentialModule(
        ...     RelaxedR2Conv(fields, fields, 3), RelaxedR2Conv(fields, fields, 3)
        ... )
        >>> print(
        ...     softness_ablation(
        ...         network, lambda net: 10000 * net[0].softness().item(), progress=False
        ...     )
        ... )
        hardened          value   change  softness
        nothing           10.00             0.0010
        0                  0.00   -10.00    0.0010
        1                 10.00    +0.00    0.0010
        rotation           0.00   -10.00    0.0010
        everything         0.00   -10.00    0.0010
    """
    layers = relaxed_layers(network)
    check_callable("evaluate", evaluate)
    check_bool("progress", progress)
    named = {} if groups is None else check_mapping("groups", groups, "names of layers by group")
    soft = [name for name, layer in layers.items() if layer.softness() > 0]
    parts: list[_Part] = [("nothing", "network", [], ())]
    parts += [(name, "layer", [name], SUBGROUPS) for name in soft]
    parts += [(name, "group", _members(name, group, layers), SUBGROUPS) for name, group in named.items()]
    subgroups = [subgroup for subgroup in SUBGROUPS if any(layers[name].softness(subgroup) > 0 for name in soft)]
    parts += [(subgroup, "subgroup", list(layers), (subgroup,)) for subgroup in subgroups]
    parts.append(("everything", "network", list(layers), SUBGROUPS))
    rows: list[AblationRow] = []
    with _tracked(parts, progress) as tracked:
        for part, kind, members, averaged in tracked:
            value, softness = _evaluated_without(network, members, averaged, evaluate)
            change = value - rows[0].value if rows else 0.0
            rows.append(AblationRow(part, kind, value, change, softness))
    return AblationReport(tuple(rows))


def _members(name: str, group: Sequence[str], layers: Mapping[str, RelaxedConvolution]) -> list[str]:
    """Return the names of the relaxed layers that a group names, or that lie in modules that it names."""
    check_sequence(f"groups: {name!r}", group, "names of layers")
    members = [layer for layer in layers if any(layer == prefix or layer.startswith(f"{prefix}.") for prefix in group)]
    if not members:
        raise ValueError(f"groups: {name!r} ({list(group)}) has no relaxed layer; those are {list(layers)}")
    return members


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


@contextlib.contextmanager
def _tracked(parts: list[_Part], progress: bool) -> Iterator[Iterable[_Part]]:
    """Give the parts, which advance a progress bar if one is wanted and ``rich`` is installed."""
    try:
        from rich.progress import Progress
    except ImportError:
        progress = False
    if not progress:
        yield parts
        return
    with Progress(transient=True) as bar:
        task = bar.add_task("hardening ablation", total=len(parts))
        yield _counted(parts, lambda: bar.advance(task))


def _counted(parts: list[_Part], advance: Callable[[], None]) -> Iterator[_Part]:
    for part in parts:
        yield part
        advance()
