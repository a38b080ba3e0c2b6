"""Strict layers are equivariant to rounding, for every symmetry, field type and geometry of the convolution."""

from __future__ import annotations

import itertools

import battery
import pytest
import torch
from escnn import nn
from escnn.nn import FieldType
from layers import SOFT_PARTS, build
from tolerances import ROUNDING
from transformations import largest_error, on_grid_elements, reflections, rotations, shift_error

from escnn_relaxed.kernel import SirenKernel


# Continuous kernels, whose strict part is the limit of the soft one, are measured in test_softness too.
@pytest.mark.parametrize(
    ("space", "pair", "soft_part"),
    [
        *((*case, "tied") for case in battery.covering("C4", "D4", "O(2)")),
        *((*case, "continuous") for case in battery.covering("D2")),
    ],
)
def test_strict_layer_is_equivariant(space: str, pair: str, soft_part: str) -> None:
    in_type, out_type = battery.types(space, pair)
    layer = build(in_type, out_type, padding=1, padding_mode="circular", relax=None, soft_part=soft_part)
    features = battery.random_input(in_type, 5, 5)
    if on_grid_elements(in_type.gspace):
        assert largest_error(layer, features) <= ROUNDING
    assert shift_error(layer, features) <= ROUNDING


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize(
    ("space", "pair"),
    [
        ("flip axis 0", "irreps -> two regular"),
        ("C4", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed"),
        ("C8", "induced + quotient + trivial -> regular + induced"),
        ("D4", "two regular -> regular"),
        ("D6", "quotient -> irreps"),
        ("SO(2)", "band-limited + trivial -> irreps + mixed"),
        ("O(2)", "induced -> induced"),
    ],
)
def test_layer_with_every_frequency_at_zero_is_strict(space: str, pair: str, learn: bool, soft_part: str) -> None:
    in_type, out_type = battery.types(space, pair)
    layer = build(
        in_type,
        out_type,
        padding=1,
        padding_mode="circular",
        relax=battery.subgroups(space, 0.0) | {"translation": 0.0},
        learn_relaxation=learn,
        initial_softness=0.3,
        soft_part=soft_part,
    )
    features = battery.random_input(in_type, 4, 4)
    assert largest_error(layer, features) <= ROUNDING
    assert shift_error(layer, features) <= ROUNDING


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
def test_soft_layer_set_to_zero_is_strict_again(soft_part: str) -> None:
    in_type, out_type = battery.types("D4", "regular -> irreps")
    layer = build(
        in_type,
        out_type,
        padding=1,
        relax={"rotation": 0.25, "reflection": 0.5, "translation": 0.3},
        initial_softness=0.3,
        soft_part=soft_part,
    )
    features = battery.random_input(in_type, 8, 8)
    # A layer this soft errs by half its answer; well above 1e-3 is what is asked for.
    assert largest_error(layer, features) > 0.05
    layer.set_domain_frequency(rotation=0.0, reflection=0.0, translation=0.0)
    assert layer.is_stationary
    assert largest_error(layer, features) <= ROUNDING


GEOMETRIES = {
    "kernel 1": ({"kernel_size": 1}, (4, 4)),
    "kernel 2": ({"kernel_size": 2}, (5, 5)),
    "kernel 2 padded": ({"kernel_size": 2, "padding": 1}, (4, 4)),
    "kernel 4": ({"kernel_size": 4, "padding": 1}, (6, 6)),
    "kernel 5": ({"kernel_size": 5, "padding": 2}, (5, 5)),
    "kernel 5 unpadded": ({"kernel_size": 5}, (7, 7)),
    "dilation": ({"dilation": 2, "padding": 2}, (6, 6)),
    "dilation of an even kernel": ({"kernel_size": 2, "dilation": 3}, (6, 6)),
    # The outputs' grid must have the image's centre: (n + 2p − reach) is a multiple of the stride.
    "stride": ({"stride": 2, "padding": 1}, (7, 7)),
    "stride 3 of an even kernel": ({"kernel_size": 4, "stride": 3}, (7, 7)),
    "reflect": ({"padding": 1, "padding_mode": "reflect"}, (4, 4)),
    "replicate": ({"padding": 2, "padding_mode": "replicate"}, (4, 4)),
    "circular": ({"padding": 2, "padding_mode": "circular"}, (4, 4)),
    "hard disk": ({"kernel_size": 5, "support": "disk"}, (6, 6)),
    "image of other sides": ({"padding": 1}, (4, 7)),
    "image of other sides, even kernel": ({"kernel_size": 4}, (7, 4)),
    "no bias": ({"bias": False}, (4, 4)),
    "siren": ({"net": SirenKernel, "padding": 1}, (4, 4)),
    "log coordinates": ({"rotation_coordinates": "log", "padding": 1}, (4, 4)),
}


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize(
    ("space", "pair", "soft_part"),
    [
        ("D4", "regular + irreps -> quotient + trivial", "tied"),
        ("D4", "regular + irreps -> quotient + trivial", "continuous"),
        ("O(2)", "irreps -> band-limited", "continuous"),
    ],
)
def test_strict_layer_is_equivariant_whatever_the_convolution(
    space: str, pair: str, soft_part: str, geometry: str
) -> None:
    in_type, out_type = battery.types(space, pair)
    arguments, size = GEOMETRIES[geometry]
    layer = build(in_type, out_type, relax=None, soft_part=soft_part, **arguments)
    assert largest_error(layer, battery.random_input(in_type, *size)) <= ROUNDING


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
def test_unequal_padding_keeps_half_turns_and_flips(soft_part: str) -> None:
    in_type, out_type = battery.types("D2", "regular -> irreps")
    layer = build(in_type, out_type, padding=(2, 1), relax=None, soft_part=soft_part)
    assert largest_error(layer, battery.random_input(in_type, 4, 5)) <= ROUNDING


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@pytest.mark.parametrize("space", ["C4", "D3", "O(2)"])
def test_grouped_layer_is_equivariant(space: str, soft_part: str) -> None:
    in_fields, out_fields = ("irreps", "band-limited") if space == "O(2)" else ("regular", "irreps")
    in_type = battery.field_type(space, f"{in_fields} + trivial + {in_fields} + trivial")
    out_type = battery.field_type(space, f"{out_fields} + {out_fields}")
    layer = build(in_type, out_type, padding=1, groups=2, relax=None, soft_part=soft_part)
    features = battery.random_input(in_type, 5, 5)
    assert largest_error(layer, features) <= ROUNDING
    # The second half of the output does not see the first half of the input.
    changed = features.clone()
    changed[:, : in_type.size // 2] += 1
    with torch.no_grad():
        before, after = layer(in_type(features)).tensor, layer(in_type(changed)).tensor
    half = out_type.size // 2
    assert torch.equal(before[:, half:], after[:, half:])
    assert not torch.allclose(before[:, :half], after[:, :half])


def network(space: str, fields: str, soft_part: str) -> nn.SequentialModule:
    """Four layers with escnn's own batch norm, ReLU and pooling, down to invariants."""
    types = [battery.field_type(space, name) for name in ("trivial", fields, fields, fields)]
    modules: list[nn.EquivariantModule] = []
    for number, (in_type, out_type) in enumerate(zip(types, [*types[1:], types[-1]], strict=True)):
        modules += [
            build(in_type, out_type, padding=1, relax=None, soft_part=soft_part),
            nn.InnerBatchNorm(out_type),
            nn.ReLU(out_type),
        ]
        if number < 2:
            modules.append([nn.PointwiseMaxPool2D, nn.PointwiseAvgPool2D][number](out_type, kernel_size=2))
    modules.append(nn.GroupPooling(types[-1]))
    return nn.SequentialModule(*modules).double()


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    ("space", "fields"),
    [
        ("C4", "two regular + regular"),
        ("C8", "two regular"),
        ("D4", "regular + quotient"),
        ("D6", "two regular"),
        ("flip", "two regular + two regular"),
    ],
)
def test_strict_network_is_equivariant(space: str, fields: str, mode: str, soft_part: str) -> None:
    module = network(space, fields, soft_part)
    features = battery.random_input(module.in_type, 8, 8, batch=3)
    for _ in range(20):  # running statistics of batch norm near those of the features
        module(module.in_type(features))
    module.train(mode == "train")
    assert largest_error(module, features) <= ROUNDING


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@pytest.mark.parametrize("space", battery.CONTINUOUS)
def test_strict_network_of_irreps_is_equivariant(space: str, soft_part: str) -> None:
    irreps = battery.field_type(space, "irreps + irreps")
    types = [battery.field_type(space, "trivial"), irreps, irreps, irreps, battery.field_type(space, "trivial")]
    modules: list[nn.EquivariantModule] = []
    for in_type, out_type in itertools.pairwise(types):
        modules += [
            build(in_type, out_type, padding=1, relax=None, soft_part=soft_part),
            nn.IIDBatchNorm2d(out_type),
            nn.NormNonLinearity(out_type, function="n_relu"),
        ]
    modules.insert(6, nn.PointwiseAvgPool2D(FieldType(irreps.gspace, irreps.representations), kernel_size=2))
    module = nn.SequentialModule(*modules).double()
    assert largest_error(module, battery.random_input(module.in_type, 8, 8, batch=3)) <= ROUNDING


def test_the_measure_of_equivariance_sees_a_kernel_that_is_not() -> None:
    """A plain convolution in the place of a layer: the tests above can fail."""
    in_type, out_type = battery.types("D4", "two regular -> regular")
    layer = build(in_type, out_type, padding=1, relax=None)
    layer.filter_bank = lambda: torch.randn(out_type.size, in_type.size, 3, 3, dtype=torch.float64)
    features = battery.random_input(in_type, 5, 5)
    assert largest_error(layer, features, rotations) > 1  # white noise: of the order √2
    assert largest_error(layer, features, reflections) > 1
