"""Which layer of a network is how soft, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from .ablation import AblationRow
from .conversion import named_relaxed_layers
from .layer_state import describe_fields
from .learning import equivariance_penalty

__all__ = ["LayerSummary", "RelaxationSummary", "relaxation_summary"]


@dataclass(frozen=True)
class LayerSummary:
    """What is known of one relaxed layer.

    Attributes:
        name: of the module.
        fields: its input and output fields, in words.
        domain_frequency: ω′ of each subgroup that may be soft.
        penalty: ‖ω′‖².
        softness: s of each of these subgroups, and of all as ``"all"``.
        hardened_value: what the ablation gave with this layer hardened, None without one.
    """

    name: str
    fields: str
    domain_frequency: Mapping[str, tuple[float, ...]]
    penalty: float
    softness: Mapping[str, float]
    hardened_value: float | None


@dataclass(frozen=True)
class RelaxationSummary:
    """A row for each relaxed layer; its text is a table."""

    rows: tuple[LayerSummary, ...]

    def __str__(self) -> str:
        with_ablation = any(row.hardened_value is not None for row in self.rows)
        header = ["layer", "fields", "ω′", "‖ω′‖²", "softness s"] + ["hardened"] * with_ablation
        cells = [header, *(_cells(row, with_ablation) for row in self.rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
        return "\n".join(line.rstrip() for line in lines)


@torch.no_grad()
def relaxation_summary(network: nn.Module, ablation: Sequence[AblationRow] = ()) -> RelaxationSummary:
    """A row for each relaxed layer of a network: its fields, ω′, softness, and what it is needed for.

    Args:
        network: any module.
        ablation: rows of :func:`~escnn_relaxed.softness_ablation`, to show what each layer's softness is needed for.

    Raises:
        ValueError: for a network without a relaxed layer.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr] * 2)
        >>> network = nn.SequentialModule(RelaxedR2Conv(fields, fields, 3), nn.ReLU(fields))
        >>> print(relaxation_summary(network))
        layer  fields                  ω′             ‖ω′‖²   softness s
        0      2 regular -> 2 regular  rotation 0.25  0.0625  0.01
    """
    values = {row.part: row.value for row in ablation if row.kind == "layer"}
    rows = []
    for name, layer in named_relaxed_layers(network):
        frequency = {subgroup: tuple(value.tolist()) for subgroup, value in layer.domain_frequency.items()}
        parts = {subgroup: layer.softness(subgroup).item() for subgroup in frequency}
        rows.append(
            LayerSummary(
                name,
                f"{describe_fields(layer.in_type)} -> {describe_fields(layer.out_type)}",
                frequency,
                equivariance_penalty(layer).item(),
                {**parts, "all": layer.softness().item()},
                values.get(name),
            )
        )
    if not rows:
        raise ValueError("network has no RelaxedR2Conv")
    return RelaxationSummary(tuple(rows))


def _cells(row: LayerSummary, with_ablation: bool) -> list[str]:
    frequency = ", ".join(
        f"{name} {' '.join(f'{value:.3g}' for value in values)}" for name, values in row.domain_frequency.items()
    )
    parts = [f"{name} {value:.2g}" for name, value in row.softness.items() if name != "all"]
    softness = f"{row.softness['all']:.2g}" + (f" ({', '.join(parts)})" if len(parts) > 1 else "")
    cells = [row.name, row.fields, frequency or "strict", f"{row.penalty:.3g}", softness]
    return cells + (["" if row.hardened_value is None else f"{row.hardened_value:.2f}"] if with_ablation else [])
