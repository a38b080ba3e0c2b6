"""Field types taken apart into blocks: put together again they are the representation."""

from __future__ import annotations

import battery
import numpy as np
import pytest
from escnn.group import change_basis, directsum
from tolerances import DECOMPOSED

from escnn_relaxed.group.elements import sample_group
from escnn_relaxed.group.fields import FieldStructure

TYPES = {space: {fields for pair in battery.pairs(space) for fields in pair.split(" -> ")} for space in battery.GSPACES}


def rebuilt(structure: FieldStructure, number: int) -> np.ndarray:
    """ρ(g) of the whole type from the blocks, for the number-th element."""
    blocks = [
        block.matrices[number]
        for block, count in zip(structure.blocks, structure.counts, strict=True)
        for _ in range(count)
    ]
    matrix = np.zeros((structure.size, structure.size))
    start = 0
    for block in blocks:
        matrix[start : start + len(block), start : start + len(block)] = block
        start += len(block)
    matrix = matrix[np.ix_(structure.channels, structure.channels)]
    if structure.basis is None:
        return matrix
    return structure.basis @ matrix @ structure.basis_inverse


@pytest.mark.parametrize("space", TYPES)
def test_blocks_make_up_the_representation(space: str) -> None:
    """In a permutation of the channels, and a basis with its inverse."""
    sample = sample_group(battery.gspace(space), samples=6)
    for fields in sorted(TYPES[space]):
        field_type = battery.field_type(space, fields)
        structure = FieldStructure(field_type.representations, sample)
        assert structure.size == field_type.size
        assert sorted(structure.channels) == list(range(field_type.size))
        if structure.basis is not None:
            assert np.abs(structure.basis @ structure.basis_inverse - np.eye(structure.size)).max() <= DECOMPOSED
        for number, element in enumerate(sample.elements):
            expected = field_type.representation(element)
            assert np.abs(rebuilt(structure, number) - expected).max() <= DECOMPOSED, fields


@pytest.mark.parametrize(
    ("space", "field"), [("C4", "regular"), ("D4", "regular"), ("D4", "quotient"), ("C8", "quotient")]
)
def test_permutation_fields_are_kept_whole(space: str, field: str) -> None:
    field_type = battery.field_type(space, f"{field} + {field}")
    sample = sample_group(battery.gspace(space), samples=1)
    structure = FieldStructure(field_type.representations, sample)
    assert all(block.is_permutation for block in structure.blocks)
    assert structure.basis is None
    for block in structure.blocks:
        assert set(np.unique(block.matrices)) == {0.0, 1.0}
        assert (block.matrices[np.arange(len(sample)), block.image, 0] == 1).all()


@pytest.mark.parametrize("field", ["hidden regular", "two regular in one", "mixed", "induced"])
def test_other_fields_are_taken_apart_into_irreps(field: str) -> None:
    field_type = battery.field_type("D4", field)
    structure = FieldStructure(field_type.representations, sample_group(battery.gspace("D4"), samples=1))
    assert not any(block.is_permutation for block in structure.blocks)
    assert sum(structure.counts) == len(field_type.irreps)


def test_equal_blocks_are_gathered_across_fields() -> None:
    structure = FieldStructure(
        battery.field_type("C4", "regular + irreps + regular + mixed").representations,
        sample_group(battery.gspace("C4"), samples=1),
    )
    assert len({block.name for block in structure.blocks}) == len(structure.blocks)
    counts = dict(zip([block.name for block in structure.blocks], structure.counts, strict=True))
    assert sorted(counts.values()) == [2, 2, 2, 3]  # regular, two irreps twice, the trivial one three times


def test_signed_permutation_is_no_permutation_field() -> None:
    space = battery.gspace("C4")
    signs = np.diag([1.0, -1.0, 1.0, 1.0])
    field = change_basis(space.regular_repr, signs, name="signed regular")
    structure = FieldStructure([field], sample_group(space, samples=1))
    assert not any(block.is_permutation for block in structure.blocks)


def test_field_of_irreps_in_their_own_basis_needs_no_basis() -> None:
    space = battery.gspace("C4")
    field = directsum([space.irrep(0), space.irrep(1)], name="plain sum")
    assert FieldStructure([field], sample_group(space, samples=1)).basis is None
