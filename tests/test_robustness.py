"""Accuracy after transformations, on classifiers whose classes are known under every one, and on counts written out."""

import math
import re
from typing import Any

import pytest
import small
import torch
from errors import ROUNDING
from escnn import nn as enn
from small_networks import left_alone
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv, equivariance_error, robustness_report

C4, D4 = small.gspace("C4"), small.gspace("D4")
IMAGE, MIRRORED = (space.type(space.trivial_repr) for space in (C4, D4))


class Side(nn.Module):
    """Which side of the image is brightest: right 0, top 1, left 2, bottom 3; the next one after a quarter turn."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([images[..., -1], images[..., 0, :], images[..., 0], images[..., -1, :]]).sum((2, 3)).T


class Network(nn.Module):
    """A small soft network of D4, with dropout and batch norm, so that its mode matters."""

    def __init__(self) -> None:
        super().__init__()
        hidden = enn.FieldType(D4, [D4.regular_repr] * 2)
        self.body = enn.SequentialModule(
            RelaxedR2Conv(MIRRORED, hidden, 3, padding=1, initial_softness=0.3), enn.InnerBatchNorm(hidden)
        )
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(MIRRORED(images)).tensor.unflatten(1, (2, 8)).amax(2).mean((2, 3)))


def bright_sides(*sides: int) -> Tensor:
    images = torch.zeros(len(sides), 1, 5, 5)
    for image, side in zip(images, sides, strict=True):
        image[0, 2, 4] = 1
        image[:] = image.rot90(side, (1, 2))
    return images


def test_turns_are_wrong_where_the_class_turns_with_the_image() -> None:
    """Three of four labels are right upright; one of a left image is right after half a turn."""
    images, labels = bright_sides(0, 1, 2, 2), torch.tensor([0, 1, 2, 0])
    report = robustness_report(Side(), images, labels, in_type=IMAGE)
    assert report.accuracy == 3 / 4
    assert report.images == 4
    rows = [(row.name, row.accuracy, row.agreement) for row in report.rows]
    assert rows == [("rotation 90°", 0, 0), ("rotation 180°", 1 / 4, 0), ("rotation 270°", 0, 0)]
    assert re.split("  +", str(report).splitlines()[2]) == [
        "rotation, mean of 3",
        "8.3",
        "0.0 (rotation 90°)",
        "0.0",
        "1.4",
    ]
    assert f"75.0 ± {100 * math.sqrt(3 / 64):.1f}" in str(report)


def test_mirrors_and_shifts_are_subgroups_of_their_own() -> None:
    """A mirror leaves top and bottom, and exchanges the others; a shift by a row takes the right side nowhere."""
    images, labels = bright_sides(0, 1), torch.tensor([0, 1])
    moved = {"elements": [D4.fibergroup.reflection], "shifts": [(1, 0)]}
    report = robustness_report(Side(), images, labels, in_type=MIRRORED, **moved)
    assert [(row.subgroup, row.accuracy) for row in report.rows] == [("reflection", 1 / 2), ("translation", 1 / 2)]
    text = str(report).splitlines()
    assert [line.split(",")[0].split("  ")[0] for line in text[1:]] == ["as they are", "reflection", "translation"]
    assert "100.0 ± 0.0" in text[1]
    assert "(shift 1, 0)" in text[3]


def test_numbers_are_those_of_the_network_written_out() -> None:
    """In float64, in chunks that do not fit; against rot90 and flip, and the sibling reports."""
    network = Network().double()
    network(torch.randn(64, 1, 6, 6, dtype=torch.float64))
    images, labels = torch.randn(23, 1, 6, 6, dtype=torch.float64), torch.randint(3, (23,))
    whole = robustness_report(network, images, labels, angles=[17])
    for batch_size in (1, 10, 23, 100):
        report = robustness_report(network, images, labels, angles=[17], batch_size=batch_size)
        assert report.accuracy == whole.accuracy
        for row, other in zip(report.rows, whole.rows, strict=True):
            assert row.error == pytest.approx(other.error, rel=ROUNDING)
            assert (row.accuracy, row.agreement, row.resampling) == (other.accuracy, other.agreement, other.resampling)
    rows = {row.name: row for row in report.rows}
    network.eval()
    with torch.no_grad():
        before = network(images)
        for name, moved in (("rotation 90°", images.rot90(1, (2, 3))), ("reflection along x", images.flip(3))):
            after = network(moved)
            row = rows[name]
            assert row.accuracy == (after.argmax(1) == labels).double().mean().item()
            assert row.agreement == (after.argmax(1) == before.argmax(1)).double().mean().item()
            assert row.error == pytest.approx(float((after - before).norm() / before.norm()), rel=ROUNDING)
        assert report.accuracy == (before.argmax(1) == labels).double().mean().item()
    of_sibling = equivariance_error(network, data=images, angles=[17]).rows
    assert [row.error for row in report.rows] == pytest.approx([row.error for row in of_sibling], rel=ROUNDING)


class Threshold(nn.Module):
    """Whether the largest pixel reaches 0.9, which a turn between pixels lowers."""

    def forward(self, images: Tensor) -> Tensor:
        largest = images.amax(dim=(1, 2, 3))
        return torch.stack([largest, torch.full_like(largest, 0.9)], dim=1)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)], ids=str)
def test_one_logit_of_an_image_says_yes_above_0(shape: tuple[int, ...]) -> None:
    classifier = Side()
    classifier.forward = lambda images: images[..., -1].sum((1, 2)).sub(0.5).view(shape)  # is the right side bright?
    report = robustness_report(classifier, bright_sides(0, 1), torch.tensor([1, 0]), in_type=IMAGE)
    assert (report.accuracy, [row.accuracy for row in report.rows]) == (1, [1 / 2, 1 / 2, 0])


def test_interpolated_angles_have_what_interpolation_alone_leaves() -> None:
    """Turned by 45° and back, a pixel off the centre is lower, so that its class changes; one in the centre stays."""
    images, labels = torch.zeros(2, 1, 5, 5), torch.zeros(2, dtype=torch.long)
    images[0, 0, 2, 2] = images[1, 0, 1, 2] = 1
    report = robustness_report(Threshold(), images, labels, in_type=IMAGE, elements=(), angles=[45])
    (row,) = report.rows
    assert report.accuracy == 1
    assert (row.kind, row.accuracy, row.agreement, row.resampling) == ("interpolated", 0.5, 0.5, 0.5)


def test_modes_come_back_and_strict_networks_lose_nothing() -> None:
    network = Network()
    network.body[1].eval()
    images, labels = torch.randn(6, 1, 5, 5), torch.tensor([0, 1, 2, 0, 1, 2])
    with left_alone(network):
        assert robustness_report(network, images, labels).rows[0].error > 0.001
    network.body[0].harden()
    report = robustness_report(network, images, labels)
    assert all(row.error < 1e-4 for row in report.rows)  # float32, through batch norm and a mean
    assert all(row.agreement == 1 and row.accuracy == report.accuracy for row in report.rows)


class Second(nn.Module):
    """Takes images, a number for each and one for all, and returns a dict."""

    def forward(self, images: Any, others: Tensor, all_of_them: Tensor) -> dict[str, Tensor]:
        assert len(others) == len(images.tensor)
        assert len(all_of_them) == 3
        return {"logits": torch.stack([others, 1 - others], 1)}


def test_further_inputs_go_with_their_images_and_fields_stay_fields() -> None:
    others = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])
    data = (IMAGE(torch.randn(5, 1, 5, 5)), others, torch.zeros(3))
    labels = 1 - others.long()
    report = robustness_report(Second(), data, labels, batch_size=2, output=lambda found: found["logits"])
    assert report.accuracy == 1
    assert [row.accuracy for row in report.rows] == [1, 1, 1]


LABELS = torch.zeros(2, dtype=torch.long)
IMAGES = torch.zeros(2, 1, 5, 5)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((Side(), IMAGES, LABELS[:1]), {}, ValueError, "data and labels must be as many, and some: got 2 images"),
        ((Side(), IMAGES, [0, 0]), {}, TypeError, "labels must be a tensor of integers"),
        ((Side(), IMAGES, LABELS - 1), {}, ValueError, "labels must be in 0 to 3, the classes of the output, got -1"),
        ((Side(), IMAGES / 0, LABELS), {}, ValueError, "classifier: the output must be finite"),
        ((Side(), (), LABELS), {}, ValueError, "data must have a batch"),
        ((Side(), IMAGES, LABELS), {"elements": ()}, ValueError, "nothing to measure"),
        ((nn.Identity(), IMAGES, LABELS), {}, ValueError, r"classifier: the output must be \(batch, classes\)"),
        ((Side(), IMAGES, LABELS), {"in_type": None}, ValueError, "in_type: Side does not say"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple, options: dict, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        robustness_report(*arguments, **{"in_type": IMAGE, **options})
