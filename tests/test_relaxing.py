"""What kernels that relax a strict one share: an exact start, soft weights, and states of R2Conv."""

from __future__ import annotations

import pytest
import small
import torch
from baseline_layers import EVERY_WAY, baseline
from errors import ROUNDING, SINGLE_REORDERED, relative_error
from escnn import gspaces, nn
from group_average import acted, energy, subgroup_elements
from small_networks import answer, features_of

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, RelaxedR3Conv
from escnn_relaxed.baselines import LAYERS, PartialR2Conv
from escnn_relaxed.kernel import WeightGroup
from escnn_relaxed.kernel.residual import ResidualKernel

REGULAR = "regular -> regular"


def soft_weights(layer: RelaxedR2Conv) -> list[torch.nn.Parameter]:
    return [parameter for group in layer.kernel.weight_groups() for parameter, _ in group.entries]


@EVERY_WAY
def test_soft_weights_are_those_that_are_0_in_a_strict_layer(way: str) -> None:
    layer = baseline(way, "D4", REGULAR)
    labels = ["rotation", "reflection"] if way == "partial" else ["rotation, reflection"]
    groups = {group.name: group.entries for group in layer.kernel.weight_groups()}
    assert list(groups) == labels
    soft = {id(parameter) for parameter in layer.soft_parameters()}
    assert {id(parameter) for parameter in soft_weights(layer)} <= soft
    assert id(layer.weights) not in soft
    layer.make_strict()
    assert layer.softness().item() == 0
    for label in labels:
        for parameter, numbers in groups[label]:
            with torch.no_grad():
                parameter.view(-1)[numbers[:1]] = 0.25
        assert layer.softness(*label.split(", ")).item() > 0


@pytest.mark.parametrize("way", ["residual", "weighted"])
@torch.no_grad()
def test_softness_is_set_and_the_strict_part_stays(way: str) -> None:
    layer = baseline(way, "D4", REGULAR)
    elements = subgroup_elements(layer.space)
    before = acted(layer, layer.filter_bank(), elements).mean(dim=0)
    layer.set_softness(0.07)
    bank = layer.filter_bank()
    strict = acted(layer, bank, elements).mean(dim=0)
    assert relative_error(strict, before) <= ROUNDING
    assert float(energy(layer, bank - strict) / energy(layer, bank)) == pytest.approx(0.07, rel=ROUNDING)


def test_softness_of_a_window_is_set_by_its_narrowing_alone() -> None:
    layer = baseline("partial", "D4", REGULAR)
    with pytest.raises(ValueError, match="softness cannot be set where a window relaxes a layer: set_narrowing"):
        layer.set_softness(0.1)


@EVERY_WAY
@pytest.mark.parametrize("space", ["D4", "trivial"])
@pytest.mark.parametrize("learn", [True, False])
def test_state_of_r2conv_makes_the_layer_compute_what_it_computed(way: str, space: str, learn: bool) -> None:
    arguments = {"learn_relaxation": learn} if way == "partial" else {"bias": learn}
    fields = small.types(space, REGULAR if space == "D4" else "trivial -> trivial")
    layer = LAYERS[way](*fields, 3, initial_softness=0.2, **arguments)
    convolution = nn.R2Conv(*fields, 3, bias=arguments.get("bias", True)).eval()
    layer.load_state_dict(convolution.state_dict())
    assert relative_error(answer(layer), answer(convolution)) < SINGLE_REORDERED
    layer(layer.in_type(features_of(layer))).tensor[:, 1:].square().sum().backward()
    assert all(parameter.grad.any() for parameter in soft_weights(layer))


@EVERY_WAY
def test_state_of_another_way_is_refused(way: str) -> None:
    layer = baseline(way, "C4", REGULAR)
    others = {name: kind(layer.in_type, layer.out_type, 3) for name, kind in LAYERS.items() if name != way}
    for other in others.values():
        with pytest.raises(RuntimeError, match=f"does not fit: soft part is {way}, here "):
            other.load_state_dict(layer.state_dict())


def test_kernel_is_one_of_relaxed_r2conv_too() -> None:
    fields = small.types("C4", REGULAR)
    layer = RelaxedR2Conv(*fields, 3, kernel=ResidualKernel)
    assert layer.softness().item() == pytest.approx(0.01, rel=1e-4)
    with pytest.raises(ValueError, match=r"a ResidualKernel must be a kernel of the plane, with keep=None, got .*'C2'"):
        RelaxedR2Conv(*fields, 3, keep="C2", kernel=ResidualKernel)
    scalars = nn.FieldType(gspaces.octaOnR3(), [gspaces.octaOnR3().trivial_repr])
    with pytest.raises(ValueError, match="a ResidualKernel must be a kernel of the plane"):
        RelaxedR3Conv(scalars, scalars, 3, kernel=ResidualKernel)


@pytest.mark.parametrize("coordinates", ["circle", "log"])
def test_strict_kernel_is_that_of_a_strict_layer_of_the_same_options(coordinates: str) -> None:
    types, kernel = small.types("C8", REGULAR), ContinuousKernel(rotation_coordinates=coordinates)
    torch.manual_seed(1)
    layer = PartialR2Conv(*types, 3, relax={"rotation": 0.0}, kernel=kernel)
    torch.manual_seed(1)
    assert torch.equal(layer.filter_bank(), RelaxedR2Conv(*types, 3, relax=None, kernel=kernel).filter_bank())


def test_window_that_no_narrowing_makes_so_soft_is_refused() -> None:
    types = small.types("C4", "regular -> quotient")
    with pytest.raises(ValueError, match=r"initial_softness must be at most 0.5 for these fields.*got 0.6"):
        PartialR2Conv(*types, 3, initial_softness=0.6)


@pytest.mark.parametrize(
    ("name", "hardened", "expected"),
    [
        ("rotation", ("rotation",), True),
        ("rotation", ("reflection",), False),
        # Functions of both go with either.
        ("rotation × reflection", ("rotation",), True),
        ("rotation × reflection", (), False),
        # What relaxes both at once goes with both alone.
        ("rotation, reflection", ("rotation",), False),
        ("rotation, reflection", ("reflection", "rotation"), True),
    ],
)
def test_soft_weights_are_gone_with_their_subgroups(name: str, hardened: tuple[str, ...], expected: bool) -> None:
    group = WeightGroup(frozenset({"reflection", "rotation"} if " " in name else {name}), [], needs_all="," in name)
    assert group.name == name
    assert group.is_gone(hardened) == expected
