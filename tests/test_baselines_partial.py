"""The partial group convolution: its window on the group, element by element, and what is learned of it."""

import math

import pytest
import small
import torch
from baseline_layers import baseline, members, strict_bank
from errors import ROUNDING, largest_error, reflections, relative_error, rotations
from reference_group import Elements, angle_of
from small_networks import features_of

from escnn_relaxed.baselines import PartialR2Conv


def window(elements: Elements, number: int, narrowing: dict[str, float]) -> float:
    """1 near the identity, falling linearly over one step of rotations; less by its narrowing on reflections."""
    turns = [abs(angle_of(elements.parts(action)[0])) for action in elements.actions]
    steps = sorted({round(turn, 6) for turn in turns})
    step = steps[1] - steps[0] if len(steps) > 1 else 1.0
    kept = max(turns) * (1 - narrowing.get("rotation", 0.0))
    weight = 1 - min(max((turns[number] - kept) / step, 0), 1)
    return weight * (1 - elements.parts(elements.actions[number])[1] * narrowing.get("reflection", 0.0))


@pytest.mark.parametrize(
    ("space", "pair", "narrowing"),
    [
        ("C8", "trivial -> regular", {"rotation": 0.6}),
        ("C3", "regular -> regular", {"rotation": 0.5}),
        ("C2", "regular -> regular", {"rotation": 0.5}),
        ("D4", "irreps -> two regular", {"rotation": 0.7, "reflection": 0.2}),
        ("D3", "regular -> quotient", {"rotation": 0.25, "reflection": 1.0}),
        ("flip", "regular -> reordered regular", {"reflection": 0.4}),
    ],
)
def test_partial_bank_is_that_of_the_loop(space: str, pair: str, narrowing: dict[str, float]) -> None:
    """w(g) k(g′⁻¹d, g′⁻¹g), channel by channel; that of a coset is the mean of its elements."""
    layer = baseline("partial", space, pair, relax=dict.fromkeys(narrowing, 0.0))
    expected, elements = strict_bank("partial", layer), Elements(layer.space)
    layer.set_narrowing(**narrowing)
    channels = [(field, channel) for field in layer.out_type.representations for channel in range(field.size)]
    for row, (field, channel) in enumerate(channels):
        numbers = members(field, elements, channel)
        expected[row] *= sum(window(elements, number, narrowing) for number in numbers) / len(numbers)
    assert relative_error(layer.filter_bank().detach(), expected) < 1e-6  # ν is a float32 that was cast
    assert relative_error(strict_bank("partial", layer), expected) > 0.05


def test_subgroup_that_a_partial_layer_does_not_name_stays_strict() -> None:
    """Rotations are a normal subgroup, over which a window on reflections is constant; the other way not."""
    layer = baseline("partial", "D4", "regular -> regular", relax={"reflection": 0.5})
    features = features_of(layer, side=5)
    assert largest_error(layer, features, rotations) <= ROUNDING
    assert largest_error(layer, features, reflections) > 0.1
    assert list(layer.narrowing) == ["reflection"]


@pytest.mark.parametrize(("space", "pair"), [("SO(2)", "irreps -> irreps"), ("D4", "mixed -> irreps")])
def test_partial_layer_of_which_nothing_is_relaxed_takes_any_fields(space: str, pair: str) -> None:
    for relax in (None, {}):
        layer = baseline("partial", space, pair, relax=relax)
        assert largest_error(layer, features_of(layer, side=5)) <= ROUNDING
        assert layer.narrowing == {}


@pytest.mark.whole
@pytest.mark.parametrize("start", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("space", ["C2", "C3", "C8", "D4"])
def test_narrowing_is_learned_from_anywhere(space: str, start: float) -> None:
    names = {"rotation": start} | ({"reflection": start} if space == "D4" else {})
    layer = PartialR2Conv(*small.types(space, "trivial -> regular"), 3, relax=names).double()
    layer.set_narrowing(**names)
    # Σ w k², whose slope in w is positive where w is 0, too.
    kept = (layer.filter_bank() * strict_bank("partial", layer)).sum()
    gradients = torch.autograd.grad(kept, list(layer.narrowing.values()))
    assert all(gradient < 0 for gradient in gradients)


def test_narrowing_is_fixed_unless_it_is_learned_and_has_no_sign() -> None:
    types = small.types("D4", "trivial -> regular")
    learned, fixed = (PartialR2Conv(*types, 3, learn_relaxation=learn) for learn in (True, False))
    assert len(list(learned.parameters())) == len(list(fixed.parameters())) + 2
    fixed.load_state_dict(learned.state_dict())
    assert learned.narrowing.keys() == fixed.narrowing.keys() == {"rotation", "reflection"}
    expected = fixed.filter_bank()
    fixed.narrowing["rotation"].neg_()
    assert torch.equal(fixed.filter_bank(), expected)


def test_rotation_and_reflection_have_equal_shares_of_the_softness() -> None:
    """The windows multiply, and so do 1 − s; each 1 − s is √(1 − s) of both."""
    layer = PartialR2Conv(*small.types("D4", "trivial -> regular"), 3, initial_softness=0.3).double()
    assert layer.softness().item() == pytest.approx(0.3, rel=1e-5)  # ν is a float32
    for name in ("rotation", "reflection"):
        assert layer.softness(name).item() == pytest.approx(1 - 0.7**0.5, rel=1e-5)


def test_start_cuts_off_little_and_narrowing_to_the_identity_all_else() -> None:
    for space in ("C2", "C4", "C8", "D8"):
        layer = PartialR2Conv(*small.types(space, "trivial -> regular"), 3)
        assert torch.equal(layer.filter_bank()[0], strict_bank("partial", layer)[0])
        assert layer.softness().item() == pytest.approx(0.01, rel=1e-4)
        layer.set_narrowing(**dict.fromkeys(layer.narrowing, 1.0))
        assert layer.filter_bank().flatten(1).any(dim=1).sum() == 1
        with pytest.raises(ValueError, match=r"'translation' has no narrowing in this layer, which has .'rotation'"):
            layer.set_narrowing(translation=0.5)
        with pytest.raises(ValueError, match=r"set_narrowing: the narrowing of 'rotation' must be in \[0, 1\], got 2"):
            layer.set_narrowing(rotation=2)
        # All are set, or none.
        for wrong in ({"reflection": math.nan}, {"translation": 0.5}):
            with pytest.raises(ValueError, match="narrowing"):
                layer.set_narrowing(rotation=0.5, **wrong)
        assert layer.narrowing["rotation"].item() == 1
