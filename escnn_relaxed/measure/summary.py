"""The softness of a network: a table of its layers (equation (7)), and numbers to log during training."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import methodcaller

import torch
from escnn.nn import FieldType
from torch import nn

from ..checks import SUBGROUPS
from ..layer.gate import check_for_all
from ..layer.reference_field import ReferenceField
from ..layer.referenced_layer import ReferencedLayer
from ..layer.state_dict import describe_fields
from ..network.reference import kept_by_references
from ..network.relaxed_layers import Softened, own_modules, relaxed_layers, strict_layers
from .equivariance import largest_exact_errors
from .measured_network import Data, Shifts
from .reports import Report, plain_table


@dataclass(frozen=True)
class LayerSummary:
    """One relaxed layer: its fields, its softness and a measured error.

    Attributes:
        name: of the module.
        fields: its input and output fields; the table cuts long lists short.
        domain_frequency: ω′ of each subgroup that may be soft; none of those in which the layer was hardened.
        softness: s of each of these subgroups, and of all as ``"all"``.
        error: largest exact error of the network up to this layer, over the group; None where not measured.
        relaxed_by: what relaxes the layer where that is not ω′, else empty.
        parameters: number of its parameters.
        soft_parameters: number of those that a strict layer does without.
        cannot_be_soft: subgroups that were to be soft where no weights would make the layer so.
        keep: the group to which the layer stays equivariant, as it was given to it; else empty.
        hardened: the subgroups in which the layer was made strict.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> (row,) = relaxation_summary(RelaxedR2Conv(fields, fields, 3)).rows
        >>> row.domain_frequency
        {'rotation': (0.25,)}
    """

    name: str
    fields: str
    domain_frequency: Mapping[str, tuple[float, ...]]
    softness: Mapping[str, float]
    error: float | None = None
    relaxed_by: str = ""
    parameters: int = 0
    soft_parameters: int = 0
    cannot_be_soft: tuple[str, ...] = ()
    keep: str = ""
    hardened: tuple[str, ...] = ()


@dataclass(frozen=True)
class RelaxationSummary(Report):
    """A row for each relaxed layer; its text is a table.

    Attributes:
        rows: in the order of the network's modules.
        strict: names of escnn's layers with weights, which nothing relaxes, by their class, ``"R2Conv"`` for instance.
        totals: numbers of parameters and of soft ones, those that layers share once; sums of the rows by default.
        error: largest exact error of the network's output; None where not measured.
        own: names of your own modules with weights, of which nothing is known, by their class.
        kept_by_references: the subgroup that several reference fields keep together, in words; else empty.

    Example:
        >>> frequency, softness = {"rotation": (0.25,)}, {"rotation": 0.01, "all": 0.01}
        >>> print(
        ...     RelaxationSummary(
        ...         (LayerSummary("conv", "1 regular -> 1 regular", frequency, softness),)
        ...     )
        ... )
        layer  fields                  ω′             softness s
        conv   1 regular -> 1 regular  rotation 0.25  0.01
    """

    rows: tuple[LayerSummary, ...]
    strict: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    totals: tuple[int, int] | None = None
    error: float | None = None
    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kept_by_references: str = ""

    def scalars(self) -> dict[str, float]:
        """Return the numbers by tag, as :func:`~escnn_relaxed.relaxation_scalars` lists them."""
        energies = {row.name: sum(w * w for of in row.domain_frequency.values() for w in of) for row in self.rows}
        scalars = {"frequency_energy/total": sum(energies.values())}
        for row in self.rows:
            tag = row.name or "network"
            for subgroup, values in row.domain_frequency.items():
                axes = ("",) if len(values) == 1 else ("_x", "_y", "_z")[: len(values)]
                scalars |= {f"domain_frequency/{tag}/{subgroup}{axis}": w for axis, w in zip(axes, values, strict=True)}
            scalars[f"softness/{tag}"] = row.softness["all"]
            scalars[f"frequency_energy/{tag}"] = energies[row.name]
        errors = [*((row.name or "network", row.error) for row in self.rows), ("network", self.error)]
        return scalars | {f"equivariance_error/{tag}": error for tag, error in errors if error is not None}

    def __str__(self) -> str:
        columns = {header: text for header, text in _COLUMNS.items() if any(map(text, self.rows))}
        lines = [[text(row) for text in columns.values()] for row in self.rows]
        table = plain_table(list(columns), lines)
        if max(map(len, table.splitlines())) > _WIDTH:
            table = plain_table(list(columns), [list(map(_in_several_lines, line)) for line in lines])
        below = [table]
        if len(self.rows) > 1:
            sums = sum(row.parameters for row in self.rows), sum(row.soft_parameters for row in self.rows)
            every, soft = self.totals or sums
            strict = every - soft
            ratio = f" ({100 * soft / strict:.1f} % more)" if strict else ""
            below.append(f"parameters: {strict:,} strict, {soft:,} soft{ratio}")
        if self.kept_by_references:
            below.append(f"all references together keep {self.kept_by_references}")
        for what, by_class in (("strict", self.strict), ("your own", self.own)):
            for kind, names in by_class.items():
                line = f"{what} {kind}: {', '.join(names)}"
                below.append(textwrap.fill(line, _WIDTH, subsequent_indent="  "))
        return "\n".join(below)


@torch.no_grad()
def relaxation_summary(network: nn.Module, *, data: Data = None, in_type: FieldType | None = None) -> RelaxationSummary:
    """Return a row for each relaxed layer of a network: fields, ω′, parameters, softness, measured errors.

    The row says, too, which group the layer keeps and in what it was hardened. Of several reference fields the table
    also names the subgroup that all keep.

    Below the rows stand escnn's own layers with weights, which are strict, and your own modules with weights, of which
    nothing is known.

    Args:
        network: any module.
        data: a batch (batch, C, …), or a tuple of all inputs, to measure equivariance errors on, of group elements
            that map pixels to pixels; without one nothing is measured.
        in_type: fields of the input, where the network does not say.

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
    # The output of the whole is not looked at: it need not be a tensor.
    names = _measured(network)
    return _summary(network, {} if data is None else largest_exact_errors(network, data, names, in_type))


def _summary(network: nn.Module, errors: Mapping[str, float]) -> RelaxationSummary:
    """Return the summary of a network, with errors by module name, ``""`` for the network itself."""
    layers, rows = relaxed_layers(network), []
    for name, layer in layers.items():
        check_for_all("relaxation_summary", layer.gates)
        soft_in = layer.relaxed_subgroups
        softness = {subgroup: layer.softness(subgroup).item() for subgroup in soft_in}
        frequencies = {name: tuple(w.tolist()) for name, w in layer.domain_frequency.items() if name in soft_in}
        rows.append(
            LayerSummary(
                name=name,
                fields=_fields(layer),
                domain_frequency=frequencies,
                softness={**softness, "all": layer.softness().item()},
                error=errors.get(_called(network, name)),
                relaxed_by="" if layer.hardened and not soft_in else layer.relaxed_by,
                parameters=sum(parameter.numel() for parameter in layer.parameters()),
                soft_parameters=sum(parameter.numel() for parameter in layer.soft_parameters()),
                cannot_be_soft=layer.cannot_be_soft,
                keep=layer.domain.kept.name,
                hardened=layer.hardened,
            )
        )
    every, soft = (
        sum({id(value): value.numel() for layer in layers.values() for value in parameters(layer)}.values())
        for parameters in (methodcaller("parameters"), methodcaller("soft_parameters"))
    )
    others = strict_layers(network), (every, soft), errors.get(""), own_modules(network), kept_by_references(network)
    return RelaxationSummary(tuple(rows), *others)


def _measured(network: nn.Module) -> list[str]:
    """Return the names of the modules whose outputs are those of the rows."""
    return list(dict.fromkeys(_called(network, name) for name in relaxed_layers(network)))


def _called(network: nn.Module, name: str) -> str:
    """Return the name of the module whose output is that of a row: of a reference that of the layer that adds it."""
    above, _, own = name.rpartition(".")
    is_added = isinstance(network.get_submodule(above), ReferencedLayer) and own != "layer"
    return above if is_added else name


def _fields(layer: Softened) -> str:
    """Return the fields of a layer in words, of a reference those that it adds."""
    if isinstance(layer, ReferenceField):
        return f"+ {describe_fields(layer.reference_type)}"
    return f"{describe_fields(layer.in_type)} -> {describe_fields(layer.out_type)}"


@torch.no_grad()
def relaxation_scalars(
    network: nn.Module, data: Data = None, in_type: FieldType | None = None, shifts: Shifts = ()
) -> dict[str, float]:
    """Return the softness of a network as numbers by tag.

    ``domain_frequency/<layer>/<subgroup>`` is ω′ (of translation ``translation_x``, ``_y`` and, in space, ``_z``),
    ``softness/<layer>`` is s, ``frequency_energy/<layer>`` is ‖ω′‖² and ``frequency_energy/total`` their sum. With
    data, ``equivariance_error/<layer>`` is the largest exact error of the network up to that layer, over group elements
    and shifts, and ``equivariance_error/network`` that of its output; missing where none is exact.

    Args:
        network: any module with relaxed layers, left as it was.
        data: a batch to measure the error on, 32 images for instance, or a tuple of all inputs; not measured without.
        in_type: fields of the input, where the network does not say.
        shifts: (rows, columns) or (planes, rows, columns) in pixels, to measure beside the group elements.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> network = nn.SequentialModule(RelaxedR2Conv(fields, fields, 3))
        >>> list(relaxation_scalars(network, torch.randn(2, 4, 9, 9)))[-3:]
        ['frequency_energy/0', 'equivariance_error/0', 'equivariance_error/network']
    """
    names = list(dict.fromkeys([*_measured(network), ""]))
    errors = {} if data is None else largest_exact_errors(network, data, names, in_type, shifts)
    return _summary(network, errors).scalars()


# The longest line of the table, so that it fits on a screen, and the longest description of fields in it.
_WIDTH, _MOST_CHARACTERS = 100, 21


def _short(fields: str) -> str:
    """Return a shortened list of fields or a shortened name."""
    if len(fields) > _MOST_CHARACTERS and " + " in fields:
        first, *others = fields.split(" + ")
        fields = f"{first} + {sum(int(run.split()[0]) for run in others)} more"
    half = _MOST_CHARACTERS // 2
    return fields if len(fields) <= _MOST_CHARACTERS else f"{fields[:half]}…{fields[-half:]}"


def _frequency_text(row: LayerSummary) -> str:
    if row.relaxed_by:
        return ""
    texts = (f"{name} {' '.join(f'{v:.3g}' for v in values)}" for name, values in row.domain_frequency.items())
    return ", ".join(texts) or ("cannot be soft" if row.cannot_be_soft else "strict")


def _softness_text(row: LayerSummary) -> str:
    texts = [f"{name} {value:.2g}" for name, value in row.softness.items() if name != "all"]
    return f"{row.softness['all']:.2g}" + (f" ({', '.join(texts)})" if len(texts) > 1 else "")


def _in_several_lines(cell: str) -> str:
    """Return a cell with a line for each of two types and of several subgroups."""
    for separator, broken in ((" -> ", " ->\n"), (" (", "\n"), (", ", "\n"), (" of ", "\nof ")):
        cell = cell.replace(separator, broken)
    return cell.removesuffix(")")


# The text of a row in each column; columns that are empty in every row are left out.
_COLUMNS: dict[str, Callable[[LayerSummary], str]] = {
    "layer": lambda row: row.name,
    "fields": lambda row: " -> ".join(map(_short, row.fields.split(" -> "))),
    "ω′": _frequency_text,
    "relaxed by": lambda row: row.relaxed_by,
    "keep": lambda row: row.keep,
    "hardened": lambda row: "all" if {*SUBGROUPS} <= {*row.hardened} else ", ".join(row.hardened),
    "parameters": lambda row: f"{row.parameters:,} ({row.soft_parameters:,} soft)" if row.parameters else "",
    "softness s": _softness_text,
    "error so far": lambda row: "" if row.error is None else f"{row.error:.2g}",
}
