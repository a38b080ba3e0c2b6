"""The profile of a symmetry: how far each element of the group moves the kernels of a network."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from escnn.group import GroupElement
from torch import nn

from ..layer.relaxed_layer import RelaxedLayer
from ..network.relaxed_layers import relaxed_layers
from .isometry import Isometry, turn_or_flip
from .reports import Report, plain_table


@dataclass(frozen=True)
class ProfileRow:
    """The distance ‖hK − K‖ / ‖K‖ for one element h and one layer, or the layer that h moves most.

    Attributes:
        layer: name of the layer.
        name: the element in degrees; this, its subgroup and its angle are as in
            :class:`~escnn_relaxed.measure.ErrorRow`.
        subgroup: ``"rotation"`` or ``"reflection"``, or ``"group"`` of elements that are neither.
        angle: in degrees.
        error: ‖hK − K‖ / ‖K‖, 0 where the element is kept.
        deviation: how far the data leave it open, NaN where they were not asked
            (:meth:`~escnn_relaxed.SoftnessEvidence.symmetry_profile`).

    Example:
        >>> row = ProfileRow("conv", "rotation 90°", "rotation", 90.0, error=0.2)
        >>> row.error
        0.2
    """

    layer: str
    name: str
    subgroup: str
    angle: float
    error: float
    deviation: float = math.nan

    def cell(self) -> str:
        """Return the error as text."""
        if self.error <= 0 and not self.deviation > 0:
            return "kept"
        return f"{self.error:.2g}" if math.isnan(self.deviation) else f"{self.error:.2g} ± {self.deviation:.1g}"


@dataclass(frozen=True)
class SymmetryProfile(Report):
    """A row for each layer and each element of its group but the identity; its text is a table.

    The table has a line for each element and the layer that it moves most.

    Attributes:
        rows: layer by layer, in the order of the network; turns of space stand by their axes.

    Example:
        >>> turns = [("rotation 90°", 90.0, 0.2), ("rotation 180°", 180.0, 0.0)]
        >>> profile = SymmetryProfile(
        ...     tuple(ProfileRow("conv", name, "rotation", *row) for name, *row in turns)
        ... )
        >>> print(profile)
        element        error  in the layer
        rotation 90°   0.2    conv
        rotation 180°  kept
        >>> profile.kept()
        ('rotation 180°',)
    """

    rows: tuple[ProfileRow, ...]

    @property
    def largest_by_element(self) -> tuple[ProfileRow, ...]:
        """The row with the largest error for each element that all layers share.

        A network in which all layers keep an element is equivariant to it.
        """
        rows_by_name: dict[str, list[ProfileRow]] = {}
        for row in self.rows:
            rows_by_name.setdefault(row.name, []).append(row)
        count = len({row.layer for row in self.rows})
        return tuple(max(rows, key=lambda row: row.error) for rows in rows_by_name.values() if len(rows) == count)

    def kept(self, tolerance: float = 0.0) -> tuple[str, ...]:
        """Return the names of the elements that move no layer by more than a tolerance.

        Args:
            tolerance: 0 for those that are kept exactly. Trained weights may miss 0 by a little.
        """
        return tuple(row.name for row in self.largest_by_element if row.error <= tolerance)

    def __str__(self) -> str:
        lines = [(row.name, row.cell(), row.layer if row.error > 0 else "") for row in self.largest_by_element]
        return plain_table(["element", "error", "in the layer"], lines)


@torch.no_grad()
def symmetry_profile(network: nn.Module) -> SymmetryProfile:
    """Return how far each element h of the group moves the kernels: ‖hK − K‖ / ‖K‖, 0 where h is kept.

    h moves a kernel to (hK)(d) = ρ(h) K(h⁻¹d) ρ(h)⁻¹. The softness is one number for a subgroup; the profile says which
    of its elements are broken. It follows from the weights alone, in a basis where ρ is orthogonal. On white noise it
    is the relative equivariance error under h. Of one layer the mean of its square over the group, with the identity,
    is 2s, where the group maps taps to taps.

    For the default kernel the distance is exact for every element, also at odd multiples of 45°. Kernels of other
    forms, ``ContinuousKernel`` for instance, are moved tap by tap, and elements that move taps off their grid are left
    out. A continuous group is seen at its samples. Soft translation leaves the elements of the group as they are.
    :meth:`SoftnessEvidence.symmetry_profile <escnn_relaxed.SoftnessEvidence.symmetry_profile>` has errors as well.

    Layers can undo each other, so that a network may keep an element that its layers do not. Where all layers keep an
    element, the network does.

    Args:
        network: a layer of this package, or any module with such layers.

    Returns:
        A :class:`SymmetryProfile`, a row for each element of the group and each layer.

    Raises:
        TypeError: for what is no module.
        ValueError: for a network without relaxed layers, or with none whose group has more than the identity.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.flipRot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> rectangular = RelaxedR2Conv(fields, fields, 3, keep="D2", initial_softness=0.1)
        >>> symmetry_profile(rectangular).kept()
        ('rotation 180°', 'reflection along x', 'reflection along y')
    """
    rows: list[ProfileRow] = []
    layers = relaxed_layers(network)
    for name, layer in layers.items():
        moves = _moves(layer)
        errors = layer.element_errors([element for element, _ in moves]).tolist() if moves else []
        for (_, how), error in zip(moves, errors, strict=True):
            if error == error:
                rows.append(ProfileRow(name, how.name, how.subgroup, how.degrees, error))
    if not rows:
        raise ValueError("network must have a relaxed layer whose group has more than the identity")
    return SymmetryProfile(tuple(rows))


def _moves(layer: RelaxedLayer) -> list[tuple[GroupElement, Isometry]]:
    """Return the elements of a group except the identity (samples of a continuous one), and their action."""
    domain, group = layer.domain, layer.space.fibergroup
    if domain.gspace.fibergroup != group:
        return []  # no action of a continuous group is known, and the layer is strict
    others = (element for element in domain.sample.elements if element != group.identity)
    moves = [(element, turn_or_flip(domain.gspace, element)) for element in others]
    return moves if domain.dimension == 2 or domain.is_abstract else _by_axis(moves)


def _by_axis(moves: list[tuple[GroupElement, Isometry]]) -> list[tuple[GroupElement, Isometry]]:
    """Return elements by axis and angle: rotations first, and of these the axes of the finest turns."""
    axes: dict[tuple[bool, tuple[float, ...]], list[tuple[GroupElement, Isometry]]] = {}
    for move in sorted(moves, key=lambda move: move[1].angle):
        axis = tuple((-move[1].axis).round(6).tolist())
        axes.setdefault((move[1].subgroup == "reflection", axis), []).append(move)
    order = sorted(axes, key=lambda key: (key[0], round(axes[key][0][1].angle, 6), key))
    return [move for key in order for move in axes[key]]
