"""The partial group convolution: its window on the group, element by element, and what is learned of it."""

from __future__ import annotations

import math

import battery
import pytest
import torch
from baseline_layers import baseline
from escnn.group import GroupElement
from escnn.gspaces import GSpace2D
from forms import answer, features_of
from reference_coordinates import angle_and_flip
from reference_fields import coset
from tolerances import ROUNDING
from torch import Tensor
from transformations import largest_error, reflections, relative_error, rotations

from escnn_relaxed.baselines import PartialR2Conv


def window(space: GSpace2D, element: GroupElement, narrowing: dict[str, float]) -> float:
    """1 near the identity, falling linearly over one step of rotations; less by its narrowing on reflections."""
    angle, flip = angle_and_flip(space, element)
    angles = [abs(angle_and_flip(space, g)[0]) for g in space.fibergroup.elements]
    largest, turns = max(angles), [abs(a) for a in angles]
    steps = sorted({round(turn, 6) for turn in turns})
    step = steps[1] - steps[0] if len(steps) > 1 else 1.0
    kept = largest * (1 - narrowing.get("rotation", 0.0))
    weight = 1 - min(max((abs(angle) - kept) / step, 0), 1)
    return weight * (1 - flip * narrowing.get("reflection", 0.0))


def looped(layer: PartialR2Conv, narrowing: dict[str, float]) -> Tensor:
    """w(g) k(g′⁻¹d, g′⁻¹g), channel by channel; that of a coset is the mean of its elements."""
    bank = layer.kernel.strict(layer.weights).detach().clone()
    row = 0
    for field in layer.out_type.representations:
        elements = layer.space.fibergroup.elements
        for channel in range(field.size):
            members = [g for g in elements if coset(field, g) == channel]
            bank[row] *= sum(window(layer.space, g, narrowing) for g in members) / len(members)
            row += 1
    return bank


@pytest.mark.parametrize(
    ("space", "pair", "narrowing"),
    [
        ("C8", "trivial -> regular", {"rotation": 0.6}),
        ("C8", "regular -> quotient", {"rotation": 0.3}),
        ("C3", "regular -> regular", {"rotation": 0.5}),
        ("C2", "regular -> regular", {"rotation": 0.5}),
        ("D4", "irreps -> two regular", {"rotation": 0.7, "reflection": 0.2}),
        ("D3", "regular -> quotient", {"rotation": 0.25, "reflection": 1.0}),
        ("flip", "regular -> reordered regular", {"reflection": 0.4}),
        ("D4", "regular -> regular", {"reflection": 0.4}),
    ],
)
def test_bank_is_that_of_the_loop(space: str, pair: str, narrowing: dict[str, float]) -> None:
    layer = baseline("partial", space, pair, relax=dict.fromkeys(narrowing, 0.0))
    layer.set_narrowing(**narrowing)
    expected = looped(layer, narrowing)
    assert relative_error(layer.filter_bank().detach(), expected) < 1e-6  # ν is a float32 that was cast
    assert relative_error(layer.kernel.strict(layer.weights).detach(), expected) > 0.05


def test_narrowed_to_the_identity_only_the_identity_answers() -> None:
    layer = baseline("partial", "D4", "trivial -> regular", relax={"rotation": 1.0, "reflection": 1.0})
    layer.set_narrowing(rotation=1.0, reflection=1.0)
    found = layer.filter_bank().detach().flatten(1).norm(dim=1)
    assert found[0] > 0
    assert not found[1:].any()


def test_a_subgroup_that_is_not_named_stays_strict() -> None:
    """Rotations are a normal subgroup, over which a window on reflections is constant; the other way not."""
    layer = baseline("partial", "D4", "regular -> regular", relax={"reflection": 0.5})
    features = features_of(layer, side=5)
    assert largest_error(layer, features, rotations) <= ROUNDING
    assert largest_error(layer, features, reflections) > 0.1
    assert list(layer.narrowing) == ["reflection"]


@pytest.mark.parametrize("relax", [None, {}])
@pytest.mark.parametrize(("space", "pair"), [("SO(2)", "irreps -> irreps"), ("D4", "mixed -> irreps")])
def test_layer_of_which_nothing_is_relaxed_takes_any_fields(relax: dict | None, space: str, pair: str) -> None:
    layer = baseline("partial", space, pair, relax=relax)
    assert largest_error(layer, features_of(layer, side=5)) <= ROUNDING
    assert layer.narrowing == {}


def test_trivial_group_has_nothing_to_narrow() -> None:
    layer = baseline("partial", "trivial", "trivial -> trivial")
    assert layer.narrowing == {}
    assert answer(layer).isfinite().all()


@pytest.mark.parametrize("start", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("space", ["C2", "C3", "C8", "D4"])
def test_narrowing_is_learned_from_anywhere(space: str, start: float) -> None:
    names = {"rotation": start} | ({"reflection": start} if space == "D4" else {})
    layer = PartialR2Conv(*battery.types(space, "trivial -> regular"), 3, relax=names).double()
    layer.set_narrowing(**names)
    kept = layer.kernel.window().sum()
    gradients = torch.autograd.grad(kept, list(layer.narrowing.values()))
    assert all(gradient < 0 for gradient in gradients)


def test_narrowing_below_0_narrows_as_well() -> None:
    layer = baseline("partial", "C8", "trivial -> regular", relax={"rotation": 0.3})
    expected = layer.filter_bank()
    with torch.no_grad():
        layer.narrowing["rotation"].neg_()
    assert torch.equal(layer.filter_bank(), expected)


def test_narrowing_is_fixed_unless_it_is_learned() -> None:
    types = battery.types("D4", "trivial -> regular")
    learned, fixed = (PartialR2Conv(*types, 3, learn_relaxation=learn) for learn in (True, False))
    counts = [sum(p.numel() for p in layer.parameters()) for layer in (learned, fixed)]
    assert counts[0] == counts[1] + 2
    assert learned.state_dict().keys() == fixed.state_dict().keys()
    fixed.load_state_dict(learned.state_dict())
    assert learned.narrowing.keys() == fixed.narrowing.keys() == {"rotation", "reflection"}


def test_default_narrowing_cuts_off_little() -> None:
    for space in ("C2", "C4", "C8", "D8"):
        layer = PartialR2Conv(*battery.types(space, "trivial -> regular"), 3)
        assert layer.kernel.window()[0] == 1
        assert layer.softness().item() == pytest.approx(0.01, rel=1e-5)


REGULAR = "regular -> regular"
BAD = [
    ("C4", REGULAR, {"relax": 0.3}, TypeError, "relax must be a dict from subgroup to narrowing, or None, got 0.3"),
    ("C4", REGULAR, {"relax": "most"}, ValueError, "relax must be one of .'default'., got 'most'"),
    ("C4", REGULAR, {"relax": {"translation": 0.3}}, ValueError, r"\['rotation', 'reflection'\], got 'translation'"),
    ("C4", REGULAR, {"relax": {"reflection": 0.3}}, ValueError, "the group has no reflection to relax"),
    ("C4", REGULAR, {"relax": {"rotation": 1.5}}, ValueError, r"'rotation' must be in \[0, 1\], got 1.5"),
    ("C4", REGULAR, {"relax": {"rotation": math.nan}}, ValueError, r"'rotation' must be in \[0, 1\], got nan"),
    ("C4", REGULAR, {"relax": {"rotation": "half"}}, TypeError, "'rotation' must be a number, got 'half'"),
    ("C4", REGULAR, {"initial_softness": 0.9}, ValueError, "initial_softness must be at most 0.75 in rotation"),
    ("C4", "regular -> irreps", {}, ValueError, "out_type must be of regular and quotient fields.*relax=None"),
    ("C4", "regular -> trivial", {}, ValueError, "out_type must be of regular and quotient fields.*irrep_0"),
    ("SO(2)", "irreps -> irreps", {}, ValueError, "out_type must be of regular and quotient fields"),
]


@pytest.mark.parametrize(("space", "pair", "arguments", "error", "message"), BAD)
def test_bad_arguments_are_named(space: str, pair: str, arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PartialR2Conv(*battery.types(space, pair), 3, **arguments)


def test_bad_narrowings_are_named() -> None:
    layer = PartialR2Conv(*battery.types("D4", REGULAR), 3, relax={"rotation": 0.0})
    with pytest.raises(ValueError, match=r"'reflection' has no narrowing in this layer, which has .'rotation'."):
        layer.set_narrowing(reflection=0.5)
    with pytest.raises(ValueError, match=r"set_narrowing: the narrowing of 'rotation' must be in \[0, 1\], got 2"):
        layer.set_narrowing(rotation=2)
