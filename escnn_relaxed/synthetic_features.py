"""Synthetic feature maps on which the scale of a layer is calibrated at its start, never the user's data.

Smooth kernels have a coherent mean and meet features of non-zero mean, as smooth as such layers make them: no
closed form was found that predicts the energy of their answer (docs/start-of-a-layer.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from escnn.group import Representation
from escnn.gspaces import GSpace2D
from torch import Tensor, nn

from .coordinates import sample_group

__all__ = ["Drawer", "rectified", "synthetic_features"]

# For a list of fields, what draws a new filter bank from it to itself at each call.
Drawer = Callable[[list[Representation]], Callable[[], Tensor]]

_SIZE = 24
_BATCH = 4
_MOST_FIELDS = 4
_SAMPLES = 16


def synthetic_features(
    fields: Sequence[Representation],
    kernel_size: int,
    gspace: GSpace2D,
    drawer: Drawer,
    layers: int,
) -> Tensor:
    """Noise after a few random strict layers with rectification, of unit energy: (4, C, H, W).

    Args:
        fields: the fields that make up C. A few of each kind are drawn and serve for all.
        kernel_size: k.
        gspace: their symmetry.
        drawer: for a list of fields, what draws a new filter bank (C′, C′, k, k) from it to itself.
        layers: how many.
    """
    few = [field for field in dict.fromkeys(fields) for _ in range(min(_MOST_FIELDS, fields.count(field)))]
    size = max(_SIZE, 2 * kernel_size)
    before, after = (kernel_size - 1) // 2, kernel_size // 2
    draw_bank = drawer(few)
    bank = draw_bank()
    features = torch.randn(_BATCH, bank.shape[1], size, size).to(bank)
    for _ in range(layers):
        padded = nn.functional.pad(features, (before, after, before, after), mode="circular")
        features = rectified(nn.functional.conv2d(padded, bank), few, gspace)
        features = features / features.square().mean().sqrt().clamp_min(torch.finfo(bank.dtype).tiny)
        bank = draw_bank()
    return torch.cat([_field(features, few, field, number) for field, number in _numbered(fields)], dim=1)


def rectified(features: Tensor, fields: Sequence[Representation], gspace: GSpace2D) -> Tensor:
    """What the usual non-linearities make of each field.

    ReLU where channels may be rectified one by one; ReLU on the group (escnn's ``FourierPointwise``) on sums of
    irreps; nothing on a single irrep, where the ReLU of the norm keeps the field as it is.
    """
    parts = features.split([field.size for field in fields], dim=1)
    answers = []
    matrices: dict[Representation, tuple[Tensor, Tensor] | None] = {}
    for part, field in zip(parts, fields, strict=True):
        if "pointwise" in field.supported_nonlinearities:
            answers.append(part.relu())
            continue
        if field not in matrices:
            matrices[field] = _group_samples(field, gspace)
        answers.append(_rectified_field(part, matrices[field]))
    return torch.cat(answers, dim=1)


def _rectified_field(part: Tensor, samples: tuple[Tensor, Tensor] | None) -> Tensor:
    if samples is None:
        return part
    forward, backward = (matrix.to(part) for matrix in samples)
    values = torch.einsum("gc,bchw->bghw", forward, part).relu()
    return torch.einsum("cg,bghw->bchw", backward, values)


def _group_samples(field: Representation, gspace: GSpace2D) -> tuple[Tensor, Tensor] | None:
    """The map from a sum of irreps to its values on the group and back; None where the values do not determine it."""
    if len(field.irreps) == 1:
        return None
    seed = []
    for number, irrep in enumerate(field.irreps):
        size = gspace.fibergroup.irrep(*irrep).size
        # The n-th copy of an irrep holds the n-th column of its matrix coefficients.
        copy = field.irreps[:number].count(irrep)
        seed.append(np.sqrt(size) * np.eye(size)[copy % size])
    vector = field.change_of_basis @ np.concatenate(seed)
    sample = sample_group(gspace, _SAMPLES)
    forward = np.stack([field(element) @ vector for element in sample.elements])
    if np.linalg.matrix_rank(forward, tol=1e-6) < field.size:
        return None
    return torch.from_numpy(forward), torch.from_numpy(np.linalg.pinv(forward))


def _numbered(fields: Sequence[Representation]) -> Iterator[tuple[Representation, int]]:
    """Each field with its number among its equals, counted modulo the fields that are drawn."""
    seen: dict[Representation, int] = {}
    for field in fields:
        number = seen.get(field, 0)
        seen[field] = number + 1
        yield field, number % _MOST_FIELDS


def _field(features: Tensor, fields: list[Representation], field: Representation, number: int) -> Tensor:
    """The channels of the ``number``-th of the fields equal to ``field``."""
    index = [i for i, other in enumerate(fields) if other == field][number]
    start = sum(other.size for other in fields[:index])
    return features[:, start : start + field.size]
