"""Which symmetry helps: whether poses are equal, trainings that go on without a symmetry, and what follows."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import small
import torch
from escnn import gspaces
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.learning import which_softness_helps
from escnn_relaxed.measure import PoseReport, PoseRow, pose_test, poses
from escnn_relaxed.measure.poses import _copies, _exact_elements, _orders
from escnn_relaxed.network.relaxed_layers import relaxed_layers

D4 = gspaces.flipRot2dOnR2(4)


@pytest.fixture(autouse=True)
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear images need fewer steps."""
    monkeypatch.setattr(poses, "_STEPS", 40)


def test_poses_are_tested_in_inference_mode_too() -> None:
    images = sevens(60)
    expected = pose_test(images, D4)
    with torch.inference_mode():
        assert pose_test(images, D4) == expected
    with torch.no_grad():
        assert pose_test(images, D4) == expected


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
        (gspaces.rot2dOnR2(6), ["rotation"]),  # a half turn
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


def test_images_of_one_source_are_in_one_half_and_count_as_one() -> None:
    """Noise has no pose, but copies of an image in both halves would be recognised."""
    images, sources = torch.randn(40, 1, 8, 8).repeat_interleave(5, 0), torch.arange(40).repeat_interleave(5)
    assert not any(pose_test(images, D4).equal.values())
    found = pose_test(images, D4, sources=sources)
    assert all(found.equal.values())
    assert all(row.error == pytest.approx(math.sqrt(row.told_apart * (1 - row.told_apart) / 20)) for row in found.rows)


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
        ((torch.zeros(60, 1, 8, 9), D4), ValueError, r"images must be \(n, channels, H, W\) with equal sides"),
        ((torch.zeros(60, 1, 8, 8), gspaces.octaOnR3()), ValueError, r"\(n, channels, D, H, W\)"),
        ((torch.zeros(39, 1, 8, 8), D4), ValueError, "images must be 40 or more"),
        ((torch.zeros(60, 1, 8, 8), gspaces.rot2dOnR2(3)), ValueError, "gspace must have a quarter turn"),
        ((torch.full((60, 1, 8, 8), torch.nan), D4), ValueError, "images must be finite"),
    ],
)
def test_images_and_groups_without_poses_are_refused(arguments: tuple, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        pose_test(*arguments)  # type: ignore[arg-type]


def test_verdicts_say_which_kind_of_breaking_it_is() -> None:
    def verdict(equal: bool, helps: bool) -> str:
        found = PoseReport((PoseRow("rotation", 0.5 if equal else 1.0, 0.01, equal),))
        (text,) = found.verdicts({"rotation": helps, "reflection": True}).values()
        return text

    texts = {(equal, helps): verdict(equal, helps) for equal in (True, False) for helps in (True, False)}
    assert len(set(texts.values())) == 4
    assert "cannot say" in texts[False, True]
    assert "labels need it" in texts[True, True]
    found = PoseReport((PoseRow("rotation", 0.5, 0.01, True),))
    with pytest.raises(ValueError, match="helps must have one of the subgroups"):
        found.verdicts({"reflection": True})
    with pytest.raises(TypeError, match="helps must say True or False"):
        found.verdicts({"rotation": 0.3})  # type: ignore[dict-item]


def network() -> RelaxedR2Conv:
    image = small.field_type("D4", "trivial")
    return RelaxedR2Conv(image, image, 5, relax=("rotation", "reflection"), initial_softness=0.1)


def losses_of(costs: dict[frozenset[str], float], spread: float = 0.0) -> Callable[[nn.Module], Tensor]:
    """Losses of a hundred inputs whose mean is known for each set of subgroups in which a network is strict."""

    def losses(copy: nn.Module) -> Tensor:
        assert not copy.training
        (layer,) = relaxed_layers(copy).values()
        # Numbers of mean 0 and variance 1, so that errors are spread / 10.
        numbers = torch.tensor([-1.0, 1.0]).repeat(50)
        return costs[frozenset(layer.hardened)] + numbers * (spread if layer.hardened else 0.0)

    return losses


NOTHING: frozenset[str] = frozenset()
ROTATION, REFLECTION, BOTH = frozenset({"rotation"}), frozenset({"reflection"}), frozenset({"rotation", "reflection"})


@pytest.mark.parametrize(
    ("costs", "helps", "hardened", "trainings"),
    [
        ({NOTHING: 1, ROTATION: 2, REFLECTION: 1, BOTH: 2}, {"rotation": True, "reflection": False}, REFLECTION, 6),
        ({NOTHING: 1, ROTATION: 2, REFLECTION: 3}, {"rotation": True, "reflection": True}, NOTHING, 6),
        ({NOTHING: 1, ROTATION: 1, REFLECTION: 1, BOTH: 1}, {"rotation": False, "reflection": False}, BOTH, 4),
        # Either can do the work of the other: one of them has to stay soft.
        ({NOTHING: 1, ROTATION: 0.9, REFLECTION: 1, BOTH: 2}, {"rotation": False, "reflection": True}, ROTATION, 6),
    ],
)
def test_what_is_missed_least_becomes_strict_first(
    costs: dict[frozenset[str], float], helps: dict[str, bool], hardened: frozenset[str], trainings: int
) -> None:
    trained: list[nn.Module] = []
    found = which_softness_helps(network(), trained.append, losses_of(costs))
    assert found.helps == helps
    assert found.trainings == len(trained) == trainings
    (layer,) = relaxed_layers(found.network).values()
    assert set(layer.hardened) == hardened
    assert any(found.network is copy for copy in trained)


def test_what_is_not_needed_becomes_strict_although_another_is_missed_less() -> None:
    certain = losses_of({NOTHING: 1, ROTATION: 1.05, REFLECTION: 1.06, BOTH: 1.11})
    noise = torch.tensor([-2.0, 2.0]).repeat(50)

    def losses(copy: RelaxedR2Conv) -> Tensor:
        return certain(copy) + noise * ("reflection" in copy.hardened)

    found = which_softness_helps(network(), lambda copy: None, losses)
    assert found.helps == {"rotation": True, "reflection": False}
    assert found.network.hardened == ("reflection",)


@pytest.mark.parametrize(
    ("rise", "spread", "options", "helps"),
    [
        # Above a few errors, of 0.1 each.
        *[(0.29, 1.0, {"errors": 3.0}, False), (0.31, 1.0, {"errors": 3.0}, True), (0.21, 1.0, {"errors": 2.0}, True)],
        # Certain and small: a hundred inputs have to make softness 20 times as likely, 0.03 each.
        *[(0.02, 0.01, {"odds": 20.0}, False), (0.04, 0.01, {"odds": 20.0}, True)],
        *[(0.04, 0.01, {"odds": 100.0}, False), (0.02, 0.01, {"odds": 2.0}, True)],
    ],
)
def test_a_rise_helps_where_it_is_above_a_few_errors_and_large(
    rise: float, spread: float, options: dict[str, float], helps: bool
) -> None:
    losses = losses_of({NOTHING: 1, ROTATION: 1 + rise}, spread)
    found = which_softness_helps(network(), lambda copy: None, losses, subgroups=("rotation",), **options)
    (row,) = found.rows
    assert (row.rise, row.error) == pytest.approx((rise, spread / 10), rel=1e-4)  # single precision
    assert found.helps == {"rotation": helps} == {"rotation": row.helps}
    assert str(found).splitlines()[1].split()[0] == "rotation"


def test_trainings_are_alike_and_leave_the_network_and_the_generator() -> None:
    layer, drawn = network(), []
    before = {key: value.clone() for key, value in layer.state_dict().items()}

    def train(copy: nn.Module) -> None:
        assert copy.training
        drawn.append([*torch.rand(3).tolist(), random.random(), np.random.rand()])
        assert torch.is_grad_enabled()
        with torch.no_grad():
            for parameter in copy.parameters():
                parameter.add_(1)

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    others = random.getstate(), np.random.get_state()[1].tolist()
    costs = {NOTHING: 1.0, ROTATION: 1.0, REFLECTION: 1.0, BOTH: 1.0}
    with torch.no_grad():
        found = which_softness_helps(layer, train, losses_of(costs), seed=3)
    assert torch.equal(torch.rand(1), expected)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == others
    assert drawn == [drawn[0]] * 4
    assert layer.hardened == ()
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    # The last one was trained from the start, not from the one before.
    weights = next(iter(relaxed_layers(found.network).values())).weights
    torch.testing.assert_close(weights, before["weights"] + 1)


def test_what_is_strict_already_is_beside_every_trial() -> None:
    layer = network()
    layer.harden("rotation")
    found = which_softness_helps(layer, print, losses_of({ROTATION: 1.0, BOTH: 2.0}))
    assert (found.helps, found.trainings, found.rows[0].hardened) == ({"reflection": True}, 4, ("rotation",))


STRICT = RelaxedR2Conv(*[small.field_type("C4", "trivial")] * 2, 3, relax=None)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"network": STRICT}, ValueError, "network must be soft"),
        ({"losses": lambda copy: 1.0}, TypeError, "losses must return a tensor"),
        ({"losses": lambda copy: torch.tensor([1.0, torch.nan])}, ValueError, "finite"),
        ({"subgroups": ("turn",)}, ValueError, "subgroups must be of"),
        ({"errors": 0}, ValueError, "errors must be"),
        ({"odds": 1}, ValueError, "odds must be above 1"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        which_softness_helps(**{"network": network(), "train": print, "losses": losses_of({NOTHING: 1.0}), **arguments})
