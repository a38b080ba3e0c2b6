"""A table of a network's layers: how soft each is, and what is measured of it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from escnn.nn import FieldType
from torch import nn

from ..checks import check_sequence
from ..layer.state_dict import describe_fields
from ..network.relaxed_layers import frequency_energy, relaxed_layers, strict_layers
from .ablation import AblationRow
from .equivariance import largest_exact_errors
from .forward_probe import evaluated
from .measured_network import Data, MeasuredNetwork, Shifts
from .tables import plain_table, rich_table

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["LayerSummary", "RelaxationSummary", "relaxation_summary"]


@dataclass(frozen=True)
class LayerSummary:
    """One relaxed layer: its fields, softness and measured errors.

    Attributes:
        name: of the module.
        fields: its input and output fields, in words; the table cuts long lists short.
        domain_frequency: ω′ of each subgroup that may be soft.
        frequency_energy: ‖ω′‖².
        frequency_share: its part of the sum over layers, 0 where that is 0.
        softness: s of each of these subgroups, and of all as ``"all"``.
        own_error: largest exact error of the layer alone, on what reaches it, over the group; None where not measured.
        error: the same of the network up to this layer, over shifts too.
        hardened_value: what the ablation gave with this layer hardened, None without one.
        relaxed_by: what relaxes the layer where that is not ω′, else empty.
        parameters: number of its parameters.
        soft_parameters: number of those that a strict layer does without.
        cannot_be_soft: subgroups that were to be soft where no weights would make the layer so.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> network = nn.SequentialModule(RelaxedR2Conv(fields, fields, 3), nn.ReLU(fields))
        >>> (row,) = relaxation_summary(network).rows
        >>> row.name, row.domain_frequency, row.frequency_energy
        ('0', {'rotation': (0.25,)}, 0.0625)
    """

    name: str
    fields: str
    domain_frequency: Mapping[str, tuple[float, ...]]
    frequency_energy: float
    frequency_share: float
    softness: Mapping[str, float]
    own_error: float | None
    error: float | None
    hardened_value: float | None
    relaxed_by: str = ""
    parameters: int = 0
    soft_parameters: int = 0
    cannot_be_soft: tuple[str, ...] = ()


@dataclass(frozen=True)
class RelaxationSummary:
    """A row for each relaxed layer; its text is a table, ``rich.print`` shows it as one of rich.

    Attributes:
        rows: in the order of the network's modules.
        strict: names of escnn's linear maps, which nothing relaxes, by their kind, ``"R2Conv"``, ``"R2ConvTransposed"``
            or ``"Linear"`` for instance; below the table.

    Example:
        >>> layer = LayerSummary(
        ...     "conv",
        ...     "1 regular -> 1 regular",
        ...     {"rotation": (0.25,)},
        ...     0.0625,
        ...     1.0,
        ...     {"rotation": 0.01, "all": 0.01},
        ...     None,
        ...     None,
        ...     None,
        ... )
        >>> print(RelaxationSummary((layer,)))
        layer  fields                  ω′             softness s
        conv   1 regular -> 1 regular  rotation 0.25  0.01
    """

    rows: tuple[LayerSummary, ...]
    strict: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        header, lines = self._cells()
        table = plain_table(header, lines)
        if max(map(len, table.splitlines())) > _WIDTH:
            table = plain_table(header, [[_in_several_lines(cell) for cell in line] for line in lines])
        return "\n".join([table, *self._lines_below()])

    def __rich__(self) -> Table:
        table = rich_table(*self._cells())
        table.caption = "\n".join(self._lines_below()) or None
        return table

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        columns = [column for column in _COLUMNS if any(column.text(row) for row in self.rows)]
        return [column.header for column in columns], [[column.text(row) for column in columns] for row in self.rows]

    def _lines_below(self) -> list[str]:
        """Return the sum of the parameters, and the names of the layers that nothing relaxes, by kind."""
        total, soft = sum(row.parameters for row in self.rows), sum(row.soft_parameters for row in self.rows)
        share = f" ({soft / (total - soft):.1%} more)".replace("%", " %") if total > soft else ""
        parameters = [f"parameters: {total - soft:,} strict, {soft:,} soft{share}"] if len(self.rows) > 1 else []
        return parameters + [
            textwrap.fill(f"strict {kind}: {', '.join(names)}", _WIDTH, subsequent_indent="  ")
            for kind, names in self.strict.items()
        ]


@torch.no_grad()
def relaxation_summary(
    network: nn.Module,
    ablation: Sequence[AblationRow] = (),
    *,
    data: Data = None,
    in_type: FieldType | None = None,
    shifts: Shifts = (),
) -> RelaxationSummary:
    """Return a row for each relaxed layer of a network: its fields, ω′, parameters, softness, use and measured errors.

    Below the rows stand escnn's own linear maps that the network has left, which are strict.

    Args:
        network: any module.
        ablation: the report of :func:`~escnn_relaxed.softness_ablation`, to show what each layer's softness is for.
        data: a batch (batch, C, …), or a tuple of all inputs, to measure equivariance errors on, of group elements
            that map pixels to pixels; without one nothing is measured.
        in_type: fields of the input, where the network does not say.
        shifts: (rows, columns) or (planes, rows, columns) in pixels, to measure beside the group elements.

    Raises:
        ValueError: for a network without a relaxed layer, and as :func:`~escnn_relaxed.equivariance_error`.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr] * 2)
        >>> network = nn.SequentialModule(RelaxedR2Conv(fields, fields, 3), nn.ReLU(fields))
        >>> print(relaxation_summary(network))
        layer  fields                  ω′             parameters    softness s
        0      2 regular -> 2 regular  rotation 0.25  106 (8 soft)  0.001
    """
    layers = relaxed_layers(network)
    if not all(isinstance(row, AblationRow) for row in check_sequence("ablation", ablation, "AblationRow")):
        raise TypeError(f"ablation must be the report of softness_ablation, got {ablation!r}")
    values = {row.part: row.value for row in ablation if row.kind == "layer"}
    energies = {name: frequency_energy([layer]).item() for name, layer in layers.items()}
    total = sum(energies.values())
    own_errors, errors = ({}, {}) if data is None else _measured(network, list(layers), data, in_type, shifts)
    rows = []
    for name, layer in layers.items():
        frequency = {subgroup: tuple(value.tolist()) for subgroup, value in layer.domain_frequency.items()}
        parts = {subgroup: layer.softness(subgroup).item() for subgroup in layer.relaxed_subgroups}
        rows.append(
            LayerSummary(
                name=name,
                fields=f"{describe_fields(layer.in_type)} -> {describe_fields(layer.out_type)}",
                domain_frequency=frequency,
                frequency_energy=energies[name],
                frequency_share=energies[name] / total if total > 0 else 0.0,
                softness={**parts, "all": layer.softness().item()},
                own_error=own_errors.get(name),
                error=errors.get(name),
                hardened_value=values.get(name),
                relaxed_by=layer.relaxed_by,
                parameters=_count(layer.parameters()),
                soft_parameters=_count(layer.soft_parameters()),
                cannot_be_soft=layer.cannot_be_soft,
            )
        )
    return RelaxationSummary(tuple(rows), strict_layers(network))


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _measured(
    network: nn.Module, names: Sequence[str], data: Data, in_type: FieldType | None, shifts: Shifts
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the errors of layers alone and of the network up to them, by name."""
    with evaluated(network):
        reached = MeasuredNetwork(network, None, data, in_type, None, names).inputs()
    layers = dict(network.named_modules())
    # A shift of the image is a smaller one of the features behind a stride: it is for the network alone.
    alone = {name: largest_exact_errors(layers[name], features, ("",)) for name, features in reached.items()}
    own = {name: error[""] for name, error in alone.items() if error}
    return own, largest_exact_errors(network, data, names, in_type, shifts)


# The longest line of the table, so that it fits on a screen.
_WIDTH = 120
# The longest description of fields in it.
_MOST_CHARACTERS = 21


def _short_fields(row: LayerSummary) -> str:
    return " -> ".join(_short(fields) for fields in row.fields.split(" -> "))


def _short(fields: str) -> str:
    """Return the first run of a long list and how many fields are left; of a long name both ends."""
    if len(fields) > _MOST_CHARACTERS and " + " in fields:
        first, *others = fields.split(" + ")
        fields = f"{first} + {sum(int(run.split()[0]) for run in others)} more"
    half = _MOST_CHARACTERS // 2
    return fields if len(fields) <= _MOST_CHARACTERS else f"{fields[:half]}…{fields[-half:]}"


@dataclass(frozen=True)
class _Column:
    header: str
    text: Callable[[LayerSummary], str]


def _frequency_text(row: LayerSummary) -> str:
    if row.relaxed_by:
        return ""
    parts = (f"{name} {' '.join(f'{v:.3g}' for v in values)}" for name, values in row.domain_frequency.items())
    return ", ".join(parts) or ("cannot be soft" if row.cannot_be_soft else "strict")


def _softness_text(row: LayerSummary) -> str:
    parts = [f"{name} {value:.2g}" for name, value in row.softness.items() if name != "all"]
    return f"{row.softness['all']:.2g}" + (f" ({', '.join(parts)})" if len(parts) > 1 else "")


def _in_several_lines(cell: str) -> str:
    """Return a cell with each of two types, and of several subgroups, on a line of its own."""
    for separator, broken in ((" -> ", " ->\n"), (" (", "\n"), (", ", "\n"), (" of ", "\nof ")):
        cell = cell.replace(separator, broken)
    return cell.removesuffix(")")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


# Columns that are empty in every row are left out.
_COLUMNS = (
    _Column("layer", lambda row: row.name),
    _Column("fields", _short_fields),
    _Column("ω′", _frequency_text),
    _Column("relaxed by", lambda row: row.relaxed_by),
    _Column("parameters", lambda row: f"{row.parameters:,} ({row.soft_parameters:,} soft)" if row.parameters else ""),
    _Column("softness s", _softness_text),
    _Column("own error", lambda row: _number(row.own_error, ".2g")),
    _Column("error so far", lambda row: _number(row.error, ".2g")),
    _Column("hardened", lambda row: _number(row.hardened_value, ".2f")),
)
