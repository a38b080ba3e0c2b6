"""Agreement of predictions, on classifiers whose classes are known under every transformation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import small
import torch
from torch import Tensor, nn

from escnn_relaxed import prediction_agreement


class Side(nn.Module):
    """Which side of the image is brightest: right 0, top 1, left 2, bottom 3; the next one after a quarter turn."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([images[..., -1], images[..., 0, :], images[..., 0], images[..., -1, :]]).sum((2, 3)).T


class Brightness(nn.Module):
    """Bright or dark, after pooling where a window is given."""

    def __init__(self, window: int = 1) -> None:
        super().__init__()
        self.pooling = nn.MaxPool2d(window) if window > 1 else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        mean = self.pooling(images).mean(dim=(1, 2, 3))
        return torch.stack([mean, -mean], dim=1)


def image_with(*points: tuple[int, int]) -> Tensor:
    """An image of 5×5 with ones in some pixels."""
    image = torch.zeros(1, 5, 5)
    for row, column in points:
        image[0, row, column] = 1
    return image


RIGHT, TOP, CORNER = image_with((2, 4)), image_with((0, 2)), image_with((0, 4), (2, 4))
CENTRE = image_with((2, 2))  # no side is bright: the class is 0 under every turn


def test_classes_that_turn_do_not_agree() -> None:
    trivial = small.field_type("C4", "trivial")
    report = prediction_agreement(Side(), torch.stack([RIGHT, TOP, CENTRE, CENTRE]), in_type=trivial)
    assert [(row.name, row.kind, row.agreement, row.resampling) for row in report.rows] == [
        (f"rotation {degrees}°", "exact", 0.5, 1.0) for degrees in (90, 180, 270)
    ]
    assert report.orbit == 0.5
    lines = str(report).splitlines()
    assert lines[1].split() == ["rotation", "90°", "exact", "0.500"]
    assert lines[-1].split() == ["all", "of", "these", "0.500"]


def test_the_orbit_is_what_agrees_under_all() -> None:
    """Each shift changes another image."""
    images = torch.stack([image_with((2, 3)), image_with((1, 2)), CENTRE])
    report = prediction_agreement(
        Side(), images, in_type=small.field_type("C4", "trivial"), elements=(), shifts=[(0, 1), (-1, 0), (0, 0)]
    )
    # A side is bright only at the border: before, all are of class 0; the second comes to the top.
    assert [row.agreement for row in report.rows] == pytest.approx([1, 2 / 3, 1])
    assert report.orbit == pytest.approx(2 / 3)


def test_an_invariant_classifier_agrees_with_itself_and_strides_that_do_not_fit_are_told() -> None:
    trivial = small.field_type("C4", "trivial")
    report = prediction_agreement(Brightness(), torch.randn(50, 1, 6, 6), in_type=trivial)
    assert ({row.agreement for row in report.rows}, report.orbit) == ({1.0}, 1.0)
    kinds = {}
    for size in (6, 5):
        images = torch.randn(4, 1, size, size)
        rows = prediction_agreement(Brightness(2), images, in_type=trivial, shifts=[(1, 0), (2, 0)]).rows
        kinds[size] = [row.kind for row in rows]
    assert kinds == {6: ["exact"] * 3 + ["strided", "exact"], 5: ["strided"] * 4 + ["exact"]}


class Threshold(nn.Module):
    """Whether the largest pixel reaches 0.9, which a turn between pixels lowers."""

    def forward(self, images: Tensor) -> Tensor:
        largest = images.amax(dim=(1, 2, 3))
        return torch.stack([largest, torch.full_like(largest, 0.9)], dim=1)


def test_interpolation_alone_is_beside_the_agreement() -> None:
    """Turned by 45° and back, a pixel off the centre is lower; one in the centre stays."""
    trivial = small.field_type("C8", "trivial")
    images = torch.stack([image_with((2, 2)), image_with((1, 2))])
    (row,) = prediction_agreement(Threshold(), images, in_type=trivial, elements=(), angles=[math.pi / 4]).rows
    assert (row.kind, row.agreement, row.resampling) == ("interpolated", 0.5, 0.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"classifier": nn.Identity()}, r"classifier: the output must be \(batch, classes\)"),
        ({"data": torch.zeros(0, 1, 5, 5)}, r"data must be \(batch, 1, H, W\)"),
        ({"in_type": None}, "in_type: Side does not say"),
        ({"elements": ()}, "nothing to measure"),
    ],
)
def test_bad_arguments_are_named(given: dict[str, Any], message: str) -> None:
    trivial = small.field_type("C4", "trivial")
    with pytest.raises(ValueError, match=message):
        prediction_agreement(**{"classifier": Side(), "data": torch.zeros(1, 1, 5, 5), "in_type": trivial, **given})
