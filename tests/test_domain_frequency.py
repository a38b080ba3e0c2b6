"""The ω′ of a kernel by itself: what is raised for a while, and whether the kernel may vary."""

from __future__ import annotations

import math
from collections import OrderedDict

import pytest
import small
import torch
from escnn import gspaces
from small import soft_regular_layer

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, RelaxedR3Conv
from escnn_relaxed.kernel.domain_frequency import DomainFrequency


def values(frequency: DomainFrequency) -> dict[str, list[float]]:
    return {name: value.tolist() for name, value in frequency.values().items()}


def test_kernel_may_vary_where_a_frequency_is_learned_or_not_0() -> None:
    fixed, learned = (DomainFrequency({"rotation": 0.0, "reflection": 0.5}, learn) for learn in (False, True))
    assert not fixed.may_vary("rotation")
    assert fixed.may_vary("reflection")
    assert fixed.may_vary("rotation", "reflection")
    assert fixed.may_vary()
    assert learned.may_vary("rotation")
    assert not learned.may_vary("translation")
    assert DomainFrequency({"translation": (0.0, 0.5)}).may_vary("translation")


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_sign_of_a_frequency_does_not_make_it_resolved() -> None:
    frequency = DomainFrequency({"rotation": 0.1})
    frequency.limits["rotation"] = (0.3, "of the samples")
    frequency.set(rotation=-0.3)
    with pytest.warns(UserWarning, match=r"frequency 0.5 of rotation is above 0.3 \(of the samples\)"):
        frequency.set(rotation=-0.5)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("space", "options", "expected"),
    [
        ("C8", {"kernel": ContinuousKernel(hidden_size=2)}, 0.25),
        ("C8", {"kernel": ContinuousKernel(hidden_size=2, rotation_coordinates="log")}, 1.0),
        # As large as two and three samples resolve: N/4π.
        ("C2", {"kernel": ContinuousKernel(hidden_size=2)}, 2 / (4 * math.pi)),
        ("C3", {"kernel": ContinuousKernel(hidden_size=2)}, 3 / (4 * math.pi)),
        # Rotations of space, and cosets of what is kept: two of each.
        ("half turns of space", {}, 2 / (4 * math.pi)),
        ("C8", {"keep": "C4"}, 2 / (4 * math.pi)),
    ],
)
def test_default_frequency_is_a_quarter_or_1_in_logarithms_where_samples_resolve_it(
    space: str, options: dict, expected: float
) -> None:
    if space in small.GSPACES:
        layer = RelaxedR2Conv(*small.types(space, "regular -> regular"), 3, **options)
    else:
        gspace = gspaces.rot2dOnR3(2)
        layer = RelaxedR3Conv(gspace.type(gspace.trivial_repr), gspace.type(gspace.regular_repr), 3)
    assert layer.domain_frequency["rotation"].item() == pytest.approx(expected, rel=1e-6)  # float32


def test_subgroups_are_named_by_all_that_can_be_read_twice() -> None:
    """Several layers are built with one value, of which the second would be strict if the first used it up."""
    fields, names = small.types("D4", "regular -> regular"), {"rotation": 0.5, "reflection": 0.5}
    for relax in (list(names), tuple(names), set(names), frozenset(names), names.keys()):
        assert list(RelaxedR2Conv(*fields, 3, relax=relax).domain_frequency) == list(names)
    for name in ("translation", *names):
        assert list(RelaxedR2Conv(*fields, 3, relax=name).domain_frequency) == [name]
    with pytest.raises(ValueError, match=r"relax: unknown subgroup 'spin'; subgroups are .*None is a strict layer"):
        RelaxedR2Conv(*fields, 3, relax="spin")
    for relax in (iter(names), (name for name in names)):
        with pytest.raises(TypeError, match="relax must be the name of a subgroup"):
            RelaxedR2Conv(*fields, 3, relax=relax)


def test_fixed_frequency_is_a_setting_of_which_copies_are_handed_out() -> None:
    """Writing to a copy changes nothing; setting it and loading a state do."""
    layer = soft_regular_layer(relax={"rotation": 0.1, "translation": (0.1, 0.3)})
    features = layer.in_type(torch.randn(2, 4, 5, 5, dtype=torch.float64))
    assert [layer.domain_frequency[name].dtype for name in ("rotation", "translation")] == [torch.float64] * 2
    before = layer(features).tensor
    saved = [value for name, value in layer.state_dict().items() if "frequency" in name]
    assert len(saved) == 2
    for value in (*layer.domain_frequency.values(), *saved):
        value.fill_(9.0)
    assert torch.equal(layer(features).tensor, before)
    assert [value.tolist() for value in layer.domain_frequency.values()] == [[0.1, 0.3], [0.1]]
    assert not {name for name, _ in layer.named_buffers() if "frequency" in name}
    layer.set_domain_frequency(rotation=0.2)
    assert not torch.equal(layer(features).tensor, before)


def test_state_keeps_a_fixed_frequency_in_float64_and_says_where_it_is_missing_or_of_another_size() -> None:
    relax = {"rotation": 0.1, "translation": (0.1, 0.3)}
    layer = soft_regular_layer(relax=relax).float()
    state = layer.state_dict()
    keys = {f"kernel.frequency.{name}": value for name, value in relax.items()}
    for key, value in keys.items():
        assert state[key].dtype == torch.float64
        assert state[key].tolist() == list(value if isinstance(value, tuple) else [value])
    other = soft_regular_layer(relax={"rotation": 0.7, "translation": 0.7}).float()
    other.load_state_dict(state)
    assert torch.equal(other.double().domain_frequency["rotation"], torch.tensor([0.1], dtype=torch.float64))
    assert set(layer.state_dict()) == set(state)  # loading takes nothing away
    for key in keys:
        others = OrderedDict((name, value) for name, value in state.items() if name != key)
        with pytest.raises(RuntimeError, match=f'Missing key.*"{key}"'):
            other.load_state_dict(others)
        assert other.load_state_dict(others, strict=False).missing_keys == [key]
        with pytest.raises(RuntimeError, match=f"size mismatch for {key}: . value.s. here, 5 in the state"):
            other.load_state_dict({**state, key: torch.zeros(5)})
