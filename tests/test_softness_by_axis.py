"""Softness by axis is that of the kernel under the rotations about the axis."""

from __future__ import annotations

import numpy as np
import pytest
import small
import torch
from errors import transform
from escnn import nn

from escnn_relaxed import RelaxedR3Conv
from escnn_relaxed.measure import softness_by_axis


def softness_about(layer: RelaxedR3Conv, axis: tuple[float, float, float]) -> float:
    """Half the mean of ‖K − hK‖² / ‖K‖² over the rotations h about an axis; for fields of orthogonal irreps."""
    kernel, changes = layer.filter_bank().detach(), []
    for element in small.voxel_symmetries(layer.space):
        matrix = np.asarray(layer.space.basespace_action(element))
        if np.linalg.det(matrix) > 0 and np.allclose(matrix @ axis, axis, atol=1e-6):
            turned = transform(kernel.transpose(0, 1), layer.out_type, element)
            inverse = torch.from_numpy(np.asarray(layer.in_type.representation(~element)))
            turned = torch.einsum("boxyz,bc->ocxyz", turned, inverse)
            changes.append(float((turned - kernel).square().sum() / kernel.square().sum()))
    return sum(changes) / len(changes) / 2


@pytest.mark.parametrize("space", ["octahedral", "SO(3)", "C4"])
def test_softness_is_that_of_the_kernel_turned_about_each_axis(space: str) -> None:
    torch.manual_seed(0)
    layer = small.volume_layer(small.volume_type(space), initial_softness=0.3)
    rows = softness_by_axis(layer)
    assert len(rows) == (1 if space == "C4" else 13)
    for row in rows:
        # escnn's matrices of SO(3) and its subgroups are exact to 1e-7.
        assert row.softness == pytest.approx(softness_about(layer, row.axis), rel=1e-5)
        assert row.softness > 0.01


def test_softest_layer_counts_and_a_kept_axis_has_none() -> None:
    torch.manual_seed(0)
    cube = small.volume_space("octahedral")
    fields = nn.FieldType(cube, [cube.irrep(1)])
    kept = small.volume_layer(fields, keep="SO(2)", initial_softness=0.3)
    other = small.volume_layer(fields, initial_softness=0.01)
    assert [row.name for row in softness_by_axis(kept) if row.softness < 1e-20] == ["z"]
    both = [row.softness for row in softness_by_axis(nn.SequentialModule(kept, other))]
    apart = [softness_by_axis(layer) for layer in (kept, other)]
    assert both == [max(row.softness for row in rows) for rows in zip(*apart, strict=True)]


def test_networks_without_such_a_layer_are_refused() -> None:
    with pytest.raises(ValueError, match="network has no layer RelaxedR3Conv"):
        softness_by_axis(torch.nn.Identity())
    with pytest.raises(TypeError, match="network"):
        softness_by_axis("network")
