"""Angles are degrees wherever they are typed or read, and what cannot be meant is refused."""

import math
from typing import Any

import numpy as np
import pytest
import small
import torch
from escnn import nn as enn
from small import build, soft_regular_layer
from torch import Tensor, nn

from escnn_relaxed import equivariance_error, robustness_report
from escnn_relaxed.measure import symmetry_profile
from escnn_relaxed.measure.measured_network import radians_of

LAYER = soft_regular_layer()
QUARTER = math.pi / 2


@pytest.mark.parametrize(
    ("angles", "error", "message"),
    [
        (90, TypeError, "angles must be a sequence of numbers in degrees, got 90"),
        (["90"], TypeError, "angles must be a number, got '90'"),
        ([math.inf], ValueError, "angles must be finite numbers in degrees, got inf"),
        ([math.nan], ValueError, "angles must be finite numbers in degrees, got nan"),
        # Radians, in float64 and float32, either way round.
        ([QUARTER], ValueError, "angles must be in degrees, got 1.57.*, which is 90° in radians"),
        ([-2 * QUARTER], ValueError, "angles must be in degrees, got -3.14.*, which is -180° in radians"),
        ([torch.tensor(QUARTER / 4).item()], ValueError, "angles must be in degrees, got 0.39.*, which is 22.5° in"),
        *(([typed], ValueError, f"got {typed}, which is .*° in radians") for typed in (1.5708, 3.1416, 0.7854)),
        # Of the elements that it is not, those beside it.
        ([100], ValueError, "holds no rotation 100°: the nearest are rotation 90° and rotation 180°; take its own"),
        ([-10], ValueError, "holds no rotation 350°: the nearest are rotation 0° and rotation 270°; take its own"),
    ],
)
def test_angles_are_finite_degrees_of_elements_where_fields_turn(angles: Any, error: type, message: str) -> None:
    classifier = nn.Sequential(LAYER, enn.GroupPooling(LAYER.out_type))
    images, labels = torch.randn(1, 4, 5, 5, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    for measure in (
        lambda: equivariance_error(LAYER, 5, angles=angles),
        lambda: robustness_report(classifier, images, labels, angles=angles),
    ):
        with pytest.raises(error, match=message):
            measure()


def test_elements_beside_a_rotation_are_rotations() -> None:
    """Though a mirror is nearer to it than the second of them."""
    with pytest.raises(ValueError, match="no rotation 100°: the nearest are rotation 180° and rotation 0°;"):
        equivariance_error(soft_regular_layer(space="D2"), 5, angles=[100])


class Mean(nn.Module):
    """The mean over neighbours."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(images, 3, stride=1, padding=1)


def test_angles_and_what_reports_say_of_them_are_degrees() -> None:
    trivial = small.field_type("D4", "trivial")
    angles = [90, 0.5, 1, 1.57, -30, 450.0, np.float32(45), 0]
    report = equivariance_error(Mean(), 17, in_type=trivial, out_type=trivial, angles=angles)
    assert [row.angle for row in report.rows[:3]] == [90.0, 180.0, 270.0]
    assert [row.angle for row in report.rows[7:]] == pytest.approx([90, 0.5, 1, 1.57, 330, 90, 45, 0])
    names = [f"rotation {angle:g}°" for angle in (90, 0.5, 1, 1.57, 330, 90, 45, 0)]
    assert [row.name for row in report.rows[7:]] == names
    assert [row.kind == "exact" for row in report.rows[7:]] == [True, *[False] * 4, True, False, True]
    profile = symmetry_profile(build(*[small.field_type("D4", "regular")] * 2))
    assert sorted(row.angle for row in profile.rows) == [0, 90, 90, 180, 180, 270, 270]


def test_degrees_beyond_a_turn_inradians_of_are_degrees() -> None:
    """Though they are near a multiple of 2.5° in radians."""
    assert radians_of(329.3) == math.radians(329.3)
