"""How fast the equivariance error of a layer may grow with ω′, from the other weights (equation (10)).

Two values of a kernel net at domain points a and a′ differ by at most c_j |ω′ ⊙ (a − a′)|, whatever it sees of the
filter. So does φ − φ̄, the features of K − PK, and a matrix whose absolute entries are known has at most the geometric
mean of its largest row and column sums as its norm (Schur's test).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .error_bound import check_orthogonal
from .filter_bank import ContinuousFilterBank
from .integral_operator import ConvolutionGeometry
from .relaxed_convolution import RelaxedConvolution
from .steering import BlockPair

__all__ = ["lipschitz_constants"]

# Largest difference of a coordinate: on the circle and for positions in the image, of the angle over 2π, of s/2.
_DIAMETERS = {"circle": 2.0, "log": 1.0, "reflection": 0.5, "translation": 2.0}


@torch.no_grad()
def lipschitz_constants(layer: RelaxedConvolution, size: tuple[int, int]) -> dict[str, Tensor]:
    r"""L of each relaxed subgroup: how fast the equivariance error may grow with its ω′.

    .. math::
        \| f(hx) - h f(x) \| \le 2 \sum_s |\omega'_s| \cdot L_s \, \| x \|

    for every group element h and input x, with the product summed over the axes of translation. L depends on all
    weights but ω′. At a given ω′ :func:`~escnn_relaxed.soft_part_norm` is sharper: it knows what cancels.

    Args:
        layer: the layer.
        size: height and width of the image in pixels.

    Returns:
        subgroup name → as many values as its ω′ has; 0 where the layer is hardened.

    Raises:
        ValueError: for fields on which the group does not act by orthogonal matrices.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv, soft_part_norm
        >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
        >>> layer = RelaxedR2Conv(fields, fields, 3, padding=1, relax={"rotation": 0.25})
        >>> bound = 0.25 * lipschitz_constants(layer, (9, 9))["rotation"].item()
        >>> soft_part_norm(layer, (9, 9)) <= bound
        True
    """
    check_orthogonal(layer.in_type, layer.out_type)
    # A pixel that padding copies is read more than once by a tap.
    reads = max(_most_reads(layer.geometry, way) for way in {size, size[::-1]})
    constants = {}
    for name, frequency in layer.domain_frequency.items():
        constants[name] = torch.zeros_like(frequency)
        if layer.bank is not None and name not in layer.hardened:
            variations = [_variation(layer.bank, differences) for differences in _differences(layer.bank, name)]
            values = [math.sqrt(reads) * _norm_bound(layer.bank, variation) for variation in variations]
            constants[name] = frequency.new_tensor(values)
    return constants


def _differences(bank: ContinuousFilterBank, name: str) -> list[Tensor]:
    """For each ω′ of a subgroup the largest differences of the coordinates it scales, u @ (r, D) for |u| ≤ 1."""
    form = bank.settings.rotation_coordinates if name == "rotation" else name
    diameter = _DIAMETERS[form]
    if name == "translation" and bank.settings.frame == "group":
        # Positions turn with g: a corner of the image comes to lie on any axis.
        diameter *= math.sqrt(2)
    own = [column == name for column in bank.grid.domain_columns]
    differences = torch.eye(len(own))[own].to(bank.grid.taps) * diameter
    return list(differences.split(1)) if name == "translation" else [differences]


def _variation(bank: ContinuousFilterBank, differences: Tensor) -> Tensor:
    """Bound on |φ_j − φ̄_j| within the window, for features (P, …) of a steered average: (J or J + 1, 1, 1, T)."""
    hidden = bank.kernel.domain_variation(differences)
    if not bank.centred:
        hidden = torch.cat([hidden, hidden.new_zeros(1)])
    return hidden.view(-1, 1, 1, 1) * bank.grid.window


def _norm_bound(bank: ContinuousFilterBank, variation: Tensor) -> float:
    """Bound on the norm of the convolution with a kernel whose features are bounded."""
    average = bank.steered_average
    rows: list[list[Tensor]] = [[] for _ in average.out_counts]
    columns: list[list[Tensor]] = [[] for _ in average.in_counts]
    for number, (pair, weights) in enumerate(zip(average.block_pairs, average.plain_weights(), strict=True)):
        out_number, in_number = divmod(number, len(average.in_counts))
        # |entries| summed over taps, (fields_out, fields_in, |A|, |B|).
        entries = torch.einsum("oip,pab->oiab", weights.abs(), _steered_bound(pair, variation).sum(dim=-1))
        rows[out_number].append(entries.sum(dim=(1, 3)).flatten())
        columns[in_number].append(entries.sum(dim=(0, 2)).flatten())
    largest_row = max(float(torch.stack(parts).sum(dim=0).max()) for parts in rows)
    largest_column = max(float(torch.stack(parts).sum(dim=0).max()) for parts in columns)
    return average.assembly.basis_norm() * math.sqrt(largest_row * largest_column)


def _steered_bound(pair: BlockPair, variation: Tensor) -> Tensor:
    """Bound on the steered features of a pair, (P, |A|, |B|, T)."""
    steering = pair.steering
    out_size, in_size = steering.sizes
    if steering.is_relative:
        return variation.expand(-1, out_size, in_size, -1)
    # Σ_g |ρ_A(g) ⊗ ρ_B(g)⁻¹|, of each entry of κ.
    spread = steering.coefficients.abs().sum(dim=-1).flatten(0, 1)
    bound = torch.einsum("mab,jt->mjabt", spread, variation[:, 0, 0])
    return bound.flatten(0, 1)


def _most_reads(geometry: ConvolutionGeometry, size: tuple[int, int]) -> int:
    """How often one tap reads the same pixel at most."""
    most = 0.0
    image = torch.zeros(1, 1, *size, requires_grad=True)
    with torch.enable_grad():
        padded = geometry.pad(image)
        for tap in range(geometry.kernel_size**2):
            rows, columns = geometry.window(tap, *geometry.output_size(*size))
            (counts,) = torch.autograd.grad(padded[:, :, rows, columns].sum(), image, retain_graph=True)
            most = max(most, float(counts.max()))
    return round(most)
