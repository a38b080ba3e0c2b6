"""The group elements that channels belong to, against escnn's matrices of the fields."""

from __future__ import annotations

import battery
import numpy as np
import pytest

from escnn_relaxed.group.elements import sample_group
from escnn_relaxed.group.field_elements import channel_elements


@pytest.mark.parametrize("fields", ["regular", "reordered regular", "quotient"])
@pytest.mark.parametrize("space", ["C4", "C6", "D3", "D4"])
def test_elements_of_channels_move_with_them(space: str, fields: str) -> None:
    """g moves the elements of the channels as it moves the channels."""
    field_type = battery.field_type(space, fields)
    sample = sample_group(battery.gspace(space), samples=1)
    elements, has_any = channel_elements(field_type.representations, sample)
    assert elements.shape == (field_type.size, len(sample))
    assert has_any.all()
    assert elements.sum(axis=1) == pytest.approx(np.ones(field_type.size))
    order = {element: number for number, element in enumerate(sample.elements)}
    for g in sample.elements:
        products = [order[g @ h] for h in sample.elements]
        assert np.allclose(elements[:, products], field_type.representation(g) @ elements, rtol=0, atol=1e-9)


@pytest.mark.parametrize("fields", ["irreps", "mixed", "hidden regular", "trivial + irreps"])
def test_channels_of_other_fields_belong_to_all_alike(fields: str) -> None:
    sample = sample_group(battery.gspace("D4"), samples=1)
    elements, has_any = channel_elements(battery.field_type("D4", fields).representations, sample)
    assert not has_any.any()
    assert (elements == 1 / len(sample)).all()


def test_each_field_has_channels_of_its_own() -> None:
    sample = sample_group(battery.gspace("C4"), samples=1)
    fields = battery.field_type("C4", "last irrep + regular + trivial + regular").representations
    elements, has_any = channel_elements(fields, sample)
    assert has_any.tolist() == [False, *[True] * 4, False, *[True] * 4]
    assert elements[1:5].tolist() == elements[6:].tolist() == np.eye(4).tolist()
