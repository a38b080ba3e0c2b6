"""The group frame, against escnn's products of elements and chords written out; in the plane and in space."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import battery
import numpy as np
import pytest
import torch
from escnn import gspaces
from reference_coordinates import angle_and_flip

from escnn_relaxed import ContinuousKernel
from escnn_relaxed.group.elements import GroupSample, KeptGroup, grid_symmetries
from escnn_relaxed.group.frame import FIBER_SUBGROUPS, GroupFrame
from escnn_relaxed.group.points import tap_grid
from escnn_relaxed.kernel.centred_kernel import CentredKernel


class StrictOfEnergy(NamedTuple):
    """What a start asks of a strict part."""

    value: float

    def energy(self) -> torch.Tensor:
        return torch.tensor(self.value)


# Matrices go through a few products and arc tangents in float64.
ROUNDING = 1e-14
FINITE = [name for name in battery.GSPACES if name not in battery.CONTINUOUS]
MEANS = ((), ("rotation",), ("reflection",), FIBER_SUBGROUPS)


def frame_of(space: str, samples: int = 4, **options: object) -> GroupFrame:
    return GroupFrame(battery.gspace(space), samples, **options)


def in_order(rows: list[np.ndarray]) -> np.ndarray:
    """Rows sorted by their values without rounding errors."""
    return np.array(sorted(rows, key=lambda row: tuple(np.round(row, 6) + 0.0)))


def members(sample: GroupSample, subgroups: tuple[str, ...]) -> list[int]:
    """Numbers of the elements h of a subgroup: rotations, the identity and f, or all."""
    is_turned = [not np.allclose(rotation, np.eye(sample.dimension)) for rotation in sample.rotation]
    return [
        number
        for number, (turned, reflected) in enumerate(zip(is_turned, sample.reflected, strict=True))
        if (not turned or "rotation" in subgroups) and (not reflected or "reflection" in subgroups)
    ]


@pytest.mark.parametrize("space", FINITE)
def test_translates_are_products_of_elements(space: str) -> None:
    """The set of hg for each g: as many as h, with the action and the coordinates of escnn's product."""
    frame = frame_of(space)
    sample = frame.sample
    for subgroups in MEANS:
        own = members(sample, subgroups)
        translates = frame.translates(subgroups)
        assert translates.action.shape[:2] == (len(sample), len(own))
        for row, g in enumerate(sample.elements):
            expected = []
            for h in own:
                product = sample.elements[h] @ g
                angle, flip = angle_and_flip(frame.gspace, product)
                matrix = frame.gspace.basespace_action(product).ravel()
                expected.append(np.array([math.cos(angle), math.sin(angle), flip / 2, *matrix]))
            parts = [translates.coordinates[name][row] for name in FIBER_SUBGROUPS]
            found = np.concatenate([*parts, translates.action[row].reshape(len(own), -1)], axis=-1)
            assert in_order(list(found)) == pytest.approx(in_order(expected), abs=ROUNDING)


@pytest.mark.parametrize("space", ["C6", "D3", "SO(2)", "O(2)"])
@pytest.mark.parametrize("offset", [0.0, 0.1])
def test_translates_map_the_sample_to_itself(space: str, offset: float) -> None:
    """On a turned grid too; without rotations they are as far as f, turned with the grid."""
    frame = frame_of(space, offset=offset if space in battery.CONTINUOUS else 0.0)
    known = frame.sample.action
    for subgroups in MEANS[1:]:
        action = frame.translates(subgroups).action
        for row, column in np.ndindex(action.shape[:2]):
            assert np.abs(known - action[row, column]).max(axis=(1, 2)).min() <= ROUNDING
            distance = action[row, column] @ known[row].T  # h = (hg)g⁻¹
            assert np.isclose(np.linalg.det(distance), 1) or "reflection" in subgroups
            if subgroups == ("reflection",):
                candidates = [np.eye(2), frame.sample.flip]
                assert any(np.allclose(distance, h, rtol=0, atol=ROUNDING) for h in candidates)


def test_kept_group_is_averaged_over_in_any_case() -> None:
    kept = frame_of("D4", kept=KeptGroup(2, True)).translates(())
    assert kept.action.shape == (8, 4, 2, 2)
    turned = kept.action[0] @ frame_of("D4").sample.action[0].T
    assert sorted(np.linalg.det(turned).round(9).tolist()) == [-1, -1, 1, 1]


def test_coordinates_of_subgroups() -> None:
    sample = frame_of("D4").sample
    circle, log = (frame_of("D4", form=form).translates(()).coordinates for form in ("circle", "log"))
    expected = np.stack([np.cos(sample.angle), np.sin(sample.angle)], axis=1)
    assert np.allclose(circle["rotation"][:, 0], expected, rtol=0, atol=ROUNDING)
    assert log["rotation"][:4, 0, 0] == pytest.approx([0, 0.25, 0.5, -0.25])
    assert circle["reflection"][:, 0, 0].tolist() == [0, 0, 0, 0, 0.5, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("space", battery.GSPACES)
def test_subgroups_and_sizes(space: str) -> None:
    frame = frame_of(space)
    expected = [space in battery.WITH_ROTATION, space in battery.WITH_REFLECTION]
    assert frame.subgroups == tuple(itertools.compress(FIBER_SUBGROUPS, expected))
    assert frame.coordinate_sizes() == {"position": 2, "translation": 2, "rotation": 2, "reflection": 1}
    assert frame_of(space, form="log").coordinate_sizes()["rotation"] == 1


def test_resolved_frequency_grows_with_the_number_of_rotations() -> None:
    assert frame_of("C8", form="log").resolved_frequency() == 4
    assert frame_of("C8").resolved_frequency() == pytest.approx(2 / math.pi)
    assert frame_of("SO(2)", samples=16).resolved_frequency() == pytest.approx(4 / math.pi)
    # The octahedral group has quarter turns.
    assert GroupFrame(gspaces.octaOnR3(), 1).resolved_frequency() == pytest.approx(1 / math.pi)


def test_turned_frame_turns_its_sample_alone() -> None:
    frame = frame_of("O(2)", samples=6, kept=KeptGroup(2))
    turned = frame.turned(0.1)
    assert (turned.kept, turned.samples, turned.form) == (frame.kept, 6, "circle")
    assert np.allclose(turned.sample.angle[0], 0.1, rtol=0, atol=ROUNDING)


def test_coordinates_of_space_have_the_chords_of_the_plane() -> None:
    """The chord of two rotations is 2 sin(Δ/2), Δ the angle from one to the other: ω′ means the same per radian."""
    space = GroupFrame(gspaces.octaOnR3(), 1)
    points = space.translates(()).coordinates["rotation"][:, 0]
    rotations = space.sample.rotation
    traces = np.einsum("aij,bij->ab", rotations, rotations)
    angles = np.arccos(np.clip((traces - 1) / 2, -1, 1))
    chords = np.linalg.norm(points[:, None] - points, axis=-1)
    assert np.allclose(chords, 2 * np.sin(angles / 2), rtol=0, atol=1e-7)  # the arc cosine near 1
    plane = frame_of("C4").translates(()).coordinates["rotation"][:, 0]
    assert np.linalg.norm(plane[0] - plane[1]) == pytest.approx(chords[np.isclose(angles, np.pi / 2)][0])


def test_frame_of_space_has_the_groups_of_the_plane() -> None:
    octahedral = GroupFrame(gspaces.octaOnR3(), 1)
    assert (octahedral.dimension, octahedral.rotations, octahedral.subgroups) == (3, 24, ("rotation",))
    full = GroupFrame(gspaces.fullOctaOnR3(), 1)
    assert (full.rotations, len(full.sample), full.subgroups) == (24, 48, FIBER_SUBGROUPS)
    assert np.allclose(
        full.sample.rotation[full.sample.reflected == 1] @ full.sample.reflection,
        full.sample.action[full.sample.reflected == 1],
    )


def test_centred_kernel_of_the_octahedral_group_has_no_strict_part() -> None:
    """Its explicit mean over the 24 elements is 0: nothing below the layers knows a dimension."""
    gspace = gspaces.octaOnR3()
    regular = gspace.regular_repr
    frame = GroupFrame(gspace, 1)
    kernel_size = 3
    bank = CentredKernel(
        [regular],
        [regular],
        frame,
        ContinuousKernel(),
        kernel_size=kernel_size,
        dilation=1,
        domain_subgroups=("rotation",),
    ).double()
    frequency = {"rotation": torch.tensor([0.25], dtype=torch.float64)}
    bank.start(frequency, softness=0.5, strict=StrictOfEnergy(1.0))
    kernel = bank(frequency).detach().numpy()
    assert kernel.shape == (24, 24, 3, 3, 3)
    symmetries = grid_symmetries(gspace, tap_grid(kernel_size, dimension=3))
    assert len(symmetries) == 24
    taps = kernel.reshape(24, 24, -1)
    mean = sum(
        np.einsum("ab,bct,dc->adt", regular(element), taps[..., steered], regular(element))
        for element, steered in symmetries
    ) / len(symmetries)
    # Sums of 24 terms in float64.
    assert np.linalg.norm(mean) <= 1e-15 * np.linalg.norm(taps)
    assert np.linalg.norm(taps) > 0.1
