"""The paper's kernel as a whole: its strict part, its regions, what it refuses and warns of, and its states."""

from __future__ import annotations

import re
from collections import OrderedDict

import battery
import pytest
import torch
from layers import ROUGH, build
from tolerances import BROKEN, ROUNDING
from torch import Tensor
from transformations import relative_error

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
from escnn_relaxed.checks import SUBGROUPS
from escnn_relaxed.continuous import SirenKernel
from escnn_relaxed.group.projection import GroupAverage
from escnn_relaxed.group.regions import RegionPartition

EVERYWHERE = {"rotation": 0.2, "translation": (0.3, 0.5)}


def soft(space: str, pair: str, relax: object = "default", **arguments: object) -> RelaxedR2Conv:
    options = {"soft_part": "continuous", "initial_softness": 0.3, "filter_frequency": ROUGH}
    return build(*battery.types(space, pair), relax=relax, **{**options, **arguments})


def average_over(layer: RelaxedR2Conv, kernel: Tensor, count: int | None = None) -> Tensor:
    """The mean of K over the group, or over the rotations of so many."""
    space = layer.in_type.gspace
    elements = space.fibergroup.elements
    if count is not None:
        subgroup, include, _ = space.fibergroup.subgroup((None, count) if space.flips_order else count)
        elements = [include(element) for element in subgroup.elements]
    return GroupAverage(layer.in_type, layer.out_type, layer.kernel_size, layer.dilation, elements).double()(kernel)


@torch.no_grad()
@pytest.mark.parametrize(
    ("space", "pair"),
    [("C4", "regular -> irreps"), ("D4", "quotient -> regular"), ("D2", "mixed, sheared -> two regular in one")],
)
def test_mean_over_the_domain_is_the_mean_over_the_group(space: str, pair: str) -> None:
    """PK, which averages φ, is the mean of ρ_out(h) K(h⁻¹d) ρ_in(h)⁻¹."""
    layer = soft(space, pair)
    kernel, strict = layer.kernel(None), layer.kernel(None, averaged=SUBGROUPS)
    assert relative_error(kernel, strict) > BROKEN
    assert relative_error(strict, average_over(layer, kernel)) <= ROUNDING


@torch.no_grad()
@pytest.mark.parametrize(("space", "keep", "count"), [("C4", "C2", 2), ("D4", "C4", 4), ("D4", "C2", 2)])
def test_kept_group_is_exact(space: str, keep: str, count: int) -> None:
    layer = soft(space, "regular -> irreps", keep=keep)
    kernel = layer.kernel(None)
    assert relative_error(kernel, average_over(layer, kernel, count)) <= ROUNDING
    assert relative_error(kernel, average_over(layer, kernel)) > BROKEN


@torch.no_grad()
def test_kernel_of_a_region_is_the_mean_over_its_cells() -> None:
    layer = soft("C4", "regular -> irreps", EVERYWHERE)
    whole, two = RegionPartition.of_cells(4), RegionPartition.of((8, 8), 4)
    cells, regions = layer.kernel(None, whole), layer.kernel(None, two)
    assert (len(cells), len(regions)) == (16, 4)
    means = cells.unflatten(0, (2, 2, 2, 2)).mean((1, 3)).flatten(0, 1)
    assert relative_error(regions, means) <= ROUNDING
    hardened = layer.kernel(None, two, ("translation",))
    assert relative_error(hardened, hardened[:1].expand_as(hardened)) == 0
    assert relative_error(hardened[0], cells.mean(0)) <= ROUNDING


def test_layer_has_no_weights_of_r2conv_and_no_soft_part_of_its_own() -> None:
    layer = soft("C4", "regular -> regular", learn_relaxation=True)
    assert layer.weights is None
    assert layer.basisexpansion is None
    assert layer.weight_groups() == {}
    assert set(layer.soft_parameters()) == {layer.domain_frequency["rotation"], layer.kernel.net.domain_weight}
    with pytest.raises(ValueError, match="no soft part of its own"):
        layer.set_softness(0.1)
    layer.harden()
    layer.drop_soft_part()
    assert layer.hardened == SUBGROUPS


@pytest.mark.parametrize("form", ["circle", "log"])
def test_number_of_weights_does_not_depend_on_the_group_or_the_size(form: str) -> None:
    counts = {
        sum(
            of.numel()
            for of in soft(space, "regular -> regular", kernel_size=size, rotation_coordinates=form).parameters()
        )
        for space, size in (("C4", 3), ("C8", 3), ("C4", 5))
    }
    assert len(counts) == 1


def test_start_without_softness_is_refused_where_something_is_soft() -> None:
    types = battery.types("C4", "regular -> regular")
    with pytest.raises(ValueError, match="initial_softness must be above 0 with kernel=ContinuousKernel"):
        RelaxedR2Conv(*types, 3, kernel=ContinuousKernel(), initial_softness=0)
    layer = RelaxedR2Conv(*types, 3, kernel=ContinuousKernel(), initial_softness=0, relax=None)
    assert layer.filter_bank().abs().max() > 0


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.parametrize(
    ("space", "relax", "form", "words"),
    [
        ("C8", {"rotation": 1.0}, "circle", "1 of rotation is above 0.637 (N/4π"),
        ("C8", {"rotation": 5.0}, "log", "5 of rotation is above 4 (N/2 for N = 8"),
        ("C4", {"translation": (0.5, 1.5)}, "circle", "1.5 of translation is above 1 (G/4 for regions = 4"),
        ("C2", {"rotation": 9.0}, "circle", ""),
    ],
)
def test_frequency_that_the_samples_do_not_resolve_is_warned_of(
    space: str, relax: dict[str, object], form: str, words: str
) -> None:
    def make() -> RelaxedR2Conv:
        kernel = ContinuousKernel(rotation_coordinates=form)
        return RelaxedR2Conv(*battery.types(space, "trivial -> trivial"), 3, relax=relax, kernel=kernel)

    if not words:
        make()  # warnings are errors
        return
    with pytest.warns(UserWarning, match=re.escape(words)):
        layer = make()
    name, value = next(iter(relax.items()))
    with pytest.warns(UserWarning, match="set_domain_frequency.*it aliases"):
        layer.set_domain_frequency(**{name: value})


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_arguments_of_the_steerable_basis_are_ignored_with_a_warning() -> None:
    types = battery.types("C4", "trivial -> regular")
    with pytest.warns(UserWarning, match="rings, sigma: ignored"):
        RelaxedR2Conv(*types, 3, sigma=0.5, rings=[0.0, 1.0], kernel=ContinuousKernel())


def earlier(state: dict[str, Tensor]) -> OrderedDict[str, Tensor]:
    """A state as version 0.1 saved it."""
    keys = {"kernel.frequency.": "_domain_frequency.", "kernel.net.": "bank.kernel.", "kernel.": "bank."}
    renamed: OrderedDict[str, Tensor] = OrderedDict()
    for key, value in state.items():
        start = next((of for of in keys if key.startswith(of)), "")
        renamed[keys.get(start, "") + key.removeprefix(start)] = value
    renamed._metadata = state._metadata
    return renamed


@torch.no_grad()
@pytest.mark.parametrize("net", [ContinuousKernel().net, SirenKernel])
@pytest.mark.parametrize("relax", [None, EVERYWHERE])
def test_state_of_an_earlier_version_loads(net: type, relax: dict[str, object] | None) -> None:
    saved, loaded = (soft("C4", "irreps + regular -> regular", relax, net=net) for _ in range(2))
    state = earlier(saved.state_dict())
    assert {"bank.steered_average.pairs.0.weights", "bank.kernel.filter_weight"} <= set(state)
    assert loaded.load_state_dict(state).missing_keys == []
    of_cells = RegionPartition.of_cells(4) if relax else None
    assert torch.equal(loaded.kernel(None, of_cells), saved.kernel(None, of_cells))


@pytest.mark.parametrize(
    ("keep", "fact", "value"),
    [(None, "frame", "image"), ("C2", "rotation coordinates", "circle")],
    ids=["frame", "keep"],
)
def test_state_of_an_earlier_version_that_means_another_kernel_is_refused(
    keep: str | None, fact: str, value: str
) -> None:
    """Positions in the frame of the image, and kept elements that κ told apart."""
    layer = soft("C4", "regular -> regular", EVERYWHERE, keep=keep)
    state = earlier(layer.state_dict())
    assert state._metadata[""]["layer"][fact] != value
    state._metadata[""]["layer"][fact] = value
    with pytest.raises(RuntimeError, match=f"{fact} is {value}, here"):
        layer.load_state_dict(state)


def test_layer_of_other_options_refuses_the_state() -> None:
    types = battery.types("SO(2)", "irreps -> irreps")
    state = build(*types, relax=None, soft_part="continuous").state_dict()
    for options, words in (
        ({"hidden_size": 8}, "kernel net"),
        ({"support": "disk"}, "support"),
        ({"samples": 4}, "samples"),
        ({"filter_frequency": 0.7}, "filter frequency"),
    ):
        other = build(*types, relax=None, **{"soft_part": "continuous", **options})
        with pytest.raises(RuntimeError, match=f"{words} is"):
            other.load_state_dict(state)


def test_gradient_reaches_every_parameter() -> None:
    layer = soft("D4", "regular + irreps -> irreps + regular", {"reflection": 0.3, **EVERYWHERE}, learn_relaxation=True)
    layer.kernel(None, RegionPartition.of_cells(4)).square().sum().backward()
    assert all(bool(of.grad.any()) for of in layer.kernel.parameters() if of.numel())
