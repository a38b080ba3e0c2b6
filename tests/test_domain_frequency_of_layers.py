"""ω′ as a layer is given it: set, learned, and warned of where it aliases."""

from __future__ import annotations

import math

import battery
import pytest

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv

REGULAR = battery.field_type("C4", "two regular")


def layer_of(**arguments: object) -> RelaxedR2Conv:
    return RelaxedR2Conv(REGULAR, REGULAR, 3, **arguments)


@pytest.mark.parametrize(
    ("value", "error"), [(True, TypeError), (math.nan, ValueError), ("much", TypeError), ((0.1, 0.2), ValueError)]
)
def test_bad_frequency_is_refused_when_set_and_changes_nothing(value: object, error: type[Exception]) -> None:
    layer = layer_of(relax={"rotation": 0.25})
    with pytest.raises(error, match=r"set_domain_frequency.*rotation"):
        layer.set_domain_frequency(rotation=value)
    assert layer.domain_frequency["rotation"].item() == 0.25


def test_subgroup_that_was_not_named_cannot_be_set() -> None:
    with pytest.raises(ValueError, match=r"translation.*rotation"):
        layer_of(relax={"rotation": 0.25}).set_domain_frequency(translation=0.1)


ALIASING = [
    ("C4", "circle", 4 / (4 * math.pi)),
    ("C8", "circle", 8 / (4 * math.pi)),
    ("C8", "log", 4.0),
    ("SO(2)", "circle", 16 / (4 * math.pi)),
    ("SO(2)", "log", 8.0),
]


def test_frequency_that_was_learned_can_be_set_and_start_another_layer() -> None:
    """Learning may make it negative."""
    layer = layer_of(relax={"rotation": -0.2, "translation": (0.1, -0.3)}, learn_relaxation=True)
    expected = {name: value.tolist() for name, value in layer.domain_frequency.items()}
    layer.set_domain_frequency(**layer.domain_frequency)
    other = layer_of(relax=layer.domain_frequency)
    for each in (layer, other):
        assert {name: value.tolist() for name, value in each.domain_frequency.items()} == expected


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.parametrize(("space", "form", "limit"), ALIASING)
def test_aliasing_rotation_frequency_is_warned_of_once(space: str, form: str, limit: float) -> None:
    types = battery.types(space, "trivial -> irreps")

    def build(frequency: float) -> None:
        RelaxedR2Conv(*types, 1, relax={"rotation": frequency}, kernel=ContinuousKernel(rotation_coordinates=form))

    build(0.99 * limit)  # warnings are errors
    with pytest.warns(UserWarning, match="relax.*aliases") as caught:
        build(1.01 * limit)
    assert f"{1.01 * limit:g}"[:4] in str(caught[0].message)
    build(1.01 * limit)


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.parametrize("regions", [1, 2, 4, 6])
def test_frequency_of_translation_that_regions_do_not_resolve_is_warned_of_once(regions: int) -> None:
    limit = regions / 4
    kernel = {"kernel": ContinuousKernel(), "regions": regions}
    layer_of(relax={"translation": (limit, -limit)}, **kernel)  # warnings are errors
    for value in (1.01 * limit, (0.0, -1.01 * limit)):
        with pytest.warns(UserWarning, match=f"relax: .* of translation .*regions = {regions}: it aliases") as caught:
            layer = layer_of(relax={"translation": value}, **kernel)
        assert f"{1.01 * limit:g}"[:4] in str(caught[0].message)
        assert f"above {limit:g} " in str(caught[0].message)
        layer_of(relax={"translation": value}, **kernel)
    with pytest.warns(UserWarning, match=r"set_domain_frequency: .* of translation .* it aliases"):
        layer.set_domain_frequency(translation=2 * limit)


def test_kernel_for_every_pixel_resolves_every_frequency_of_translation() -> None:
    layer = layer_of(relax={"translation": 20.0}, regions=None)  # warnings are errors
    layer.set_domain_frequency(translation=(30.0, -30.0))
    assert layer.domain_frequency["translation"].tolist() == [30.0, -30.0]
