"""``keep``: layers that are soft, and exactly equivariant to a subgroup all the same (the mean over its cosets)."""

from __future__ import annotations

import battery
import pytest
import torch
from escnn import nn as enn
from escnn.group import GroupElement
from layers import SOFT_PARTS, options_of
from tolerances import ROUNDING
from torch import Tensor
from transformations import relative_error

from escnn_relaxed import (
    RelaxedR2Conv,
    RelaxedR2ConvTransposed,
    equivariance_penalty,
    harden_network,
    relax_network,
    relaxation_summary,
)

# Space, fields, group to keep.
KEPT = [
    ("C8", "regular -> regular", "C4"),
    ("C8", "regular -> regular", "C2"),
    ("C8", "regular -> irreps", "C4"),
    ("D4", "regular + trivial + regular + quotient", "D2"),
    ("D4", "regular + trivial + regular + quotient", "C4"),
    ("SO(2)", "irreps -> band-limited", "C4"),
    ("O(2)", "irreps -> irreps", "D4"),
]


def types(space: str, pair: str) -> tuple[enn.FieldType, enn.FieldType]:
    if "->" in pair:
        return battery.types(space, pair)
    fields = battery.field_type(space, pair)
    return fields, fields


def layer_that_keeps(space: str, pair: str, keep: str | None, **arguments: object) -> RelaxedR2Conv:
    torch.manual_seed(0)
    arguments = {"initial_softness": 0.3, "padding": 1, **arguments}
    return RelaxedR2Conv(*types(space, pair), 3, keep=keep, **arguments).double()


def change(layer: torch.nn.Module, element: GroupElement, size: int = 9) -> float:
    """‖f(gx) − g f(x)‖ / ‖f(x)‖."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(2, layer.in_type.size, size, size, dtype=torch.float64, generator=generator)
    features = layer.in_type(values)
    with torch.no_grad():
        answer = layer(features)
        return relative_error(layer(features.transform(element)).tensor, answer.transform(element).tensor)


def elements(layer: torch.nn.Module, rotations: int, reflection: bool) -> list[GroupElement]:
    """Return the elements of the kept group that map the pixel grid to itself."""
    group = layer.in_type.gspace.fibergroup
    angles = [2 * torch.pi * turn / rotations for turn in range(rotations)]
    if layer.in_type.gspace.flips_order:
        values = [(flip, angle) for flip in range(1 + reflection) for angle in angles]
        return [group.element(value, param="radians") for value in values]
    return [group.element(angle, param="radians") for angle in angles]


@pytest.mark.parametrize("form", SOFT_PARTS)
@pytest.mark.parametrize(("space", "pair", "keep"), KEPT)
def test_layer_is_soft_and_exact_for_what_it_keeps(space: str, pair: str, keep: str, form: str) -> None:
    layer = layer_that_keeps(space, pair, keep, **options_of(form))
    free = layer_that_keeps(space, pair, None, **options_of(form))
    assert layer.softness() > 0.01
    kept = elements(layer, int(keep[1:]), keep[0] == "D")
    assert max(change(layer, element) for element in kept) <= ROUNDING
    assert max(change(free, element) for element in kept) > 1e-3


def test_what_is_not_kept_is_not_exact() -> None:
    layer = layer_that_keeps("C8", "regular -> regular", "C2")
    quarter_turn = elements(layer, 4, reflection=False)[1]
    assert change(layer, quarter_turn) > 1e-3


@pytest.mark.parametrize("size", [16, 15])
@pytest.mark.parametrize("frame", ["group", "image"])
@pytest.mark.parametrize("regions", [4, None])
def test_soft_translation_stays_exact_for_quarter_turns_about_the_centre(
    regions: int | None, frame: str, size: int
) -> None:
    from escnn_relaxed import ContinuousKernel

    layer = layer_that_keeps(
        "C8",
        "regular -> regular",
        "C4",
        relax={"translation": 0.25, "rotation": 0.25},
        regions=regions,
        kernel=ContinuousKernel(frame=frame),
    )
    assert layer.softness("translation") > 1e-3
    assert max(change(layer, element, size) for element in elements(layer, 4, reflection=False)) <= ROUNDING


def test_transposed_layer_keeps_too() -> None:
    layer = RelaxedR2ConvTransposed(
        *types("C8", "regular -> regular"), 3, padding=1, stride=2, initial_softness=0.3, keep="C4"
    ).double()
    assert layer.softness() > 0.01
    assert max(change(layer, element) for element in elements(layer, 4, reflection=False)) <= ROUNDING


def test_softness_is_what_the_kept_mean_leaves() -> None:
    """A kept subgroup takes its part of the energy; the strict part stays as it is."""
    layer, free = (layer_that_keeps("C8", "regular -> regular", keep, initial_softness=0.1) for keep in ("C4", None))
    hardened = [harden_network(of).filter_bank() for of in (layer, free)]
    torch.testing.assert_close(*hardened)
    assert layer.softness().item() == pytest.approx(0.1)


def test_training_stays_within_what_is_kept() -> None:
    layer = layer_that_keeps("C8", "regular -> regular", "C4", learn_relaxation=True)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    features = layer.in_type(torch.randn(2, layer.in_type.size, 9, 9, dtype=torch.float64))
    for _ in range(2):
        optimiser.zero_grad()
        (layer(features).tensor.square().mean() + equivariance_penalty(layer)).backward()
        optimiser.step()
    assert max(change(layer, element) for element in elements(layer, 4, reflection=False)) <= ROUNDING


def test_relaxed_networks_keep_and_can_be_hardened() -> None:
    fields = types("C8", "regular -> regular")[0]
    strict = enn.SequentialModule(enn.R2Conv(fields, fields, 3, padding=1), enn.ReLU(fields)).double()
    network = relax_network(strict, keep="C4")
    layer = network[0]
    torch.nn.init.normal_(layer.bank.weights)
    assert layer.softness() > 0
    assert max(change(layer, element) for element in elements(layer, 4, reflection=False)) <= ROUNDING
    assert relaxation_summary(network).rows[0].softness["rotation"] > 0
    assert harden_network(network)[0].softness() == 0


def test_exported_layer_is_the_same() -> None:
    layer = layer_that_keeps("C8", "regular -> regular", "C4")
    features: Tensor = torch.randn(1, layer.in_type.size, 7, 7, dtype=torch.float64)
    torch.testing.assert_close(layer.export()(features), layer.eval()(layer.in_type(features)).tensor)


def test_state_of_a_layer_that_keeps_another_group_is_refused() -> None:
    state = layer_that_keeps("C8", "regular -> regular", "C4").state_dict()
    layer_that_keeps("C8", "regular -> regular", "C4").load_state_dict(state)
    with pytest.raises(RuntimeError, match="keeps is C4, here C1"):
        layer_that_keeps("C8", "regular -> regular", None).load_state_dict(state)


def test_layer_says_what_it_keeps() -> None:
    assert "keep='C4'" in repr(layer_that_keeps("C8", "regular -> regular", "C4"))
    assert "keep" not in repr(layer_that_keeps("C8", "regular -> regular", None))


def test_default_leaves_out_what_is_kept_whole() -> None:
    assert layer_that_keeps("D4", "regular -> regular", "D2").relaxed_subgroups == ("rotation",)


@pytest.mark.parametrize(
    ("keep", "arguments", "error", "message"),
    [
        (4, {}, TypeError, "keep must be the name of a group, as 'C4' or 'D4', or None, got 4"),
        ("quarter turns", {}, ValueError, "keep must be 'C' or 'D' and a number of rotations"),
        ("C0", {}, ValueError, "keep must be 'C' or 'D'"),
        ("C3", {}, ValueError, "keep='C3' must have a number of rotations that divides 8"),
        ("D4", {}, ValueError, "keep='D4' has a reflection, which .* has not: 'C4' is without"),
        ("C8", {}, ValueError, "keep leaves nothing of rotation and reflection to be soft"),
        ("C8", {"relax": {"rotation": 0.25}}, ValueError, "all of the rotation is in the group to keep"),
    ],
)
def test_wrong_groups_are_named(
    keep: object, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        layer_that_keeps("C8", "regular -> regular", keep, **arguments)
