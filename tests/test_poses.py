"""Whether poses are equal, on images of which it is known, and what follows for softness."""

from __future__ import annotations

import pytest
import torch
from escnn import gspaces
from torch import Tensor

from escnn_relaxed.measure import PoseReport, PoseRow, pose_test, poses, symmetry_verdict
from escnn_relaxed.measure.poses import _copies, _exact_elements, _orders

D4 = gspaces.flipRot2dOnR2(4)


@pytest.fixture(autouse=True)
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear images need fewer steps."""
    monkeypatch.setattr(poses, "_STEPS", 120)


def sevens(count: int = 200) -> Tensor:
    """Noise with a bar on top and one on the right: neither turns nor mirrors keep it."""
    images = torch.randn(count, 1, 8, 8)
    images[:, :, 0] += 4
    images[:, :, :, -1] += 2
    return images


def turned(images: Tensor) -> Tensor:
    return torch.cat([part.rot90(turn, (2, 3)) for turn, part in enumerate(images.chunk(4))])


def mirrored(images: Tensor) -> Tensor:
    return torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images.flip(3), images)


@pytest.mark.parametrize(
    ("change", "rotation", "reflection"),
    [
        (lambda images: images, False, False),
        (turned, True, False),
        (mirrored, False, True),
        (lambda images: turned(mirrored(images)), True, True),
        (lambda images: torch.randn(len(images), 1, 8, 8), True, True),
    ],
    ids=("upright", "turned", "mirrored", "turned and mirrored", "noise"),
)
def test_poses_are_equal_where_images_come_in_all_of_them(change, rotation: bool, reflection: bool) -> None:  # type: ignore[no-untyped-def]
    found = pose_test(change(sevens()), D4)
    assert found.equal == {"rotation": rotation, "reflection": reflection}
    for row in found.rows:
        # The rule in words: three standard errors of a part of 100 pairs, which are half of the images.
        assert row.equal == (row.told_apart - 3 * row.error <= 1 / 2)
        assert row.error == pytest.approx((row.told_apart * (1 - row.told_apart) / 100) ** 0.5, abs=1 / 100)


def test_copies_are_images_moved_by_exact_elements_that_are_not_the_identity() -> None:
    image = torch.arange(25.0).view(1, 1, 5, 5)
    elements = _exact_elements(D4)
    turns = {tuple(image.rot90(turn, (2, 3)).flatten().tolist()) for turn in (1, 2, 3)}
    found = _copies(image.expand(60, -1, -1, -1), _orders(elements["rotation"], (5, 5)))
    assert {tuple(copy.flatten().tolist()) for copy in found} == turns
    (mirror,) = elements["reflection"]
    assert torch.equal(_copies(image, _orders([mirror], (5, 5))), image.flip(3))


@pytest.mark.parametrize(
    ("gspace", "names"),
    [
        (gspaces.rot2dOnR2(8), ["rotation"]),
        (gspaces.rot2dOnR2(-1), ["rotation"]),
        (gspaces.rot2dOnR2(6), ["rotation"]),  # a half turn
        (gspaces.flip2dOnR2(), ["reflection"]),
        (gspaces.flipRot2dOnR2(3), ["reflection"]),
        (gspaces.octaOnR3(), ["rotation"]),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_groups_are_tested_by_what_maps_pixels_to_pixels(gspace, names: list[str]) -> None:  # type: ignore[no-untyped-def]
    assert list(_exact_elements(gspace)) == names


def test_volumes_have_poses() -> None:
    volumes = torch.randn(60, 1, 6, 6, 6)
    volumes[:, :, 0] += 3
    assert pose_test(volumes, gspaces.octaOnR3()).equal == {"rotation": False}


def test_the_generator_is_left_and_the_seed_decides() -> None:
    images = sevens(60)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = pose_test(images, gspaces.flip2dOnR2(), seed=3)
    assert torch.equal(torch.rand(1), expected)
    assert pose_test(images, gspaces.flip2dOnR2(), seed=3) == first


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((torch.zeros(60, 1, 8, 8).long(), D4), TypeError, "images must be a floating-point tensor"),
        ((torch.zeros(60, 1, 8, 9), D4), ValueError, r"images must be \(n, channels, H, W\) with equal sides"),
        ((torch.zeros(60, 1, 8, 8), gspaces.octaOnR3()), ValueError, r"\(n, channels, D, H, W\)"),
        ((torch.zeros(39, 1, 8, 8), D4), ValueError, "images must be 40 or more"),
        ((torch.zeros(60, 1, 8, 8), gspaces.rot2dOnR2(3)), ValueError, "gspace must have a quarter turn"),
        ((torch.zeros(60, 1, 8, 8), "D4"), TypeError, "gspace must be one of"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        pose_test(*arguments)  # type: ignore[arg-type]


def test_verdicts_say_which_kind_of_breaking_it_is() -> None:
    def verdict(equal: bool, helps: bool) -> str:
        found = PoseReport((PoseRow("rotation", 0.5 if equal else 1.0, 0.01, equal),))
        (text,) = symmetry_verdict(found, {"rotation": helps, "reflection": True}).values()
        return text

    texts = {(equal, helps): verdict(equal, helps) for equal in (True, False) for helps in (True, False)}
    assert len(set(texts.values())) == 4
    assert "cannot say" in texts[False, True]
    assert "labels need it" in texts[True, True]
    found = PoseReport((PoseRow("rotation", 0.5, 0.01, True),))
    with pytest.raises(ValueError, match="helps must have one of the subgroups"):
        symmetry_verdict(found, {"reflection": True})
    with pytest.raises(TypeError, match="poses must be"):
        symmetry_verdict({"rotation": True}, {"rotation": True})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="helps must say True or False"):
        symmetry_verdict(found, {"rotation": 0.3})  # type: ignore[dict-item]
