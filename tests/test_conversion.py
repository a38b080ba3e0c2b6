"""Networks of R2Conv relaxed: they compute what they computed, learn to be soft, and find their way back."""

from __future__ import annotations

import copy

import battery
import pytest
import torch
from escnn import nn
from escnn.nn import EquivariantModule, R2Conv
from group_average import acted, subgroup_elements
from tolerances import ROUNDING, SINGLE
from trained_networks import answer, convolution, network, softnesses, train_a_step
from transformations import largest_error, relative_error

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, harden_network, relax_network
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

TO_THE_BIT = 0.0 if torch.__version__ >= "2.13" else SINGLE  # torch 2.6 sums R2Conv's filter in an order of its own

SOFT = {"rotation": 0.2}
MODES = ("train", "eval")
EVERY_MODE = pytest.mark.parametrize("mode", MODES)


FORMS = {
    "plain": {},
    "padding": {"padding": 1},
    "padding pair": {"padding": (1, 2)},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "replicate": {"padding": 2, "padding_mode": "replicate"},
    "circular": {"padding": 2, "padding_mode": "circular"},
    "stride": {"padding": 1, "stride": 2},
    "dilation": {"dilation": 2},
    "groups": {"groups": 2},
    "no bias": {"bias": False},
    "kernel 4": {"kernel_size": 4},
    "rings and sigma": {"kernel_size": 5, "rings": [0.0, 1.0, 2.0], "sigma": [0.4, 0.5, 0.6]},
    "cutoff": {"kernel_size": 5, "frequencies_cutoff": 1.0},
    "basis filter": {"kernel_size": 5, "basis_filter": lambda attributes: attributes["radius"] > 0.5},
}
TYPES = {
    "C4": "regular + regular -> irreps + irreps",
    "D4": "irreps + irreps -> regular + regular",
    "SO(2)": "irreps + irreps -> band-limited + band-limited",
}
# Every form in both modes, on two symmetries, and some on a third.
CASES = [
    (("C4", "SO(2)")[(row + turn) % 2], form, mode) for row, form in enumerate(FORMS) for turn, mode in enumerate(MODES)
]
CASES += [("D4", form, MODES[row % 2]) for row, form in enumerate(FORMS) if row % 3 == 0]


@pytest.mark.parametrize(("space", "form", "mode"), CASES)
def test_relaxed_layer_computes_what_the_layer_computed_and_finds_its_way_back(
    space: str, form: str, mode: str
) -> None:
    trained = convolution(space, TYPES[space], **FORMS[form]).train(mode == "train")
    expected = answer(trained)
    relaxed = relax_network(trained, relax=SOFT)
    assert relaxed.training == (mode == "train")
    assert relative_error(answer(relaxed), expected) <= SINGLE
    back = harden_network(relaxed)
    assert torch.equal(back.weights, trained.weights)
    assert (back.bias is None) == (trained.bias is None)
    assert back.bias is None or torch.equal(back.bias, trained.bias)
    assert relative_error(answer(back), expected) <= SINGLE


def test_hardened_again_its_parameters_are_those_of_an_r2conv() -> None:
    trained, other = (convolution("D4", "irreps -> regular") for _ in range(2))
    back = harden_network(relax_network(trained, relax=SOFT))
    other.load_state_dict(dict(back.named_parameters()), strict=False)
    assert relative_error(answer(other), answer(trained)) <= TO_THE_BIT


@pytest.mark.parametrize(
    "relax",
    [None, "default", {"translation": (0.2, 0.4)}, {"rotation": 0.2, "reflection": 0.5, "translation": 0.3}],
    ids=["strict", "default", "translation", "everything"],
)
def test_function_is_kept_whatever_may_become_soft(relax: dict[str, float] | str | None) -> None:
    trained = network("D4").eval()
    relaxed = relax_network(trained, relax=relax)
    assert relative_error(answer(relaxed), answer(trained)) <= SINGLE
    assert softnesses(relaxed) == [0, 0, 0]
    assert relative_error(answer(harden_network(relaxed)), answer(trained)) <= TO_THE_BIT


@EVERY_MODE
def test_network_in_double_precision_is_that_of_exact_kernels(mode: str) -> None:
    """R2Conv itself is equivariant to float32 alone; the layer that its state makes is to float64, and is relaxed."""
    trained = network("D4")
    exact = nn.SequentialModule(*(_strict(module) for module in trained)).double().train(mode == "train")
    trained.double().train(mode == "train")
    relaxed = relax_network(trained, relax=SOFT)
    assert all(parameter.dtype == torch.float64 for parameter in relaxed.parameters())
    assert relative_error(answer(relaxed), answer(trained)) <= SINGLE
    assert relative_error(answer(relaxed), answer(exact)) <= ROUNDING
    features = battery.random_input(trained.in_type, 8, 8)
    assert largest_error(relaxed, features) <= ROUNDING
    assert largest_error(trained, features) > ROUNDING


def _strict(module: EquivariantModule) -> EquivariantModule:
    if not isinstance(module, R2Conv):
        return copy.deepcopy(module)
    layer = RelaxedR2Conv(module.in_type, module.out_type, 3, padding=1, relax=None)
    layer.load_state_dict(module.state_dict())
    return layer


@pytest.mark.parametrize("freeze", [False, True], ids=["learning", "frozen"])
@pytest.mark.parametrize("relax", [SOFT, {"rotation": 0.2, "translation": 0.3}], ids=["rotation", "translation too"])
def test_soft_part_learns(relax: dict[str, float], freeze: bool) -> None:
    trained = network()
    relaxed = relax_network(trained, freeze=freeze, relax=relax)
    assert softnesses(relaxed) == [0, 0, 0]
    train_a_step(relaxed)
    assert min(softnesses(relaxed)) > 0
    kept = [torch.equal(relaxed[i].weights, trained[i].weights) for i in (0, 3, 5)]
    assert kept == [freeze] * 3


@torch.no_grad()
@pytest.mark.parametrize("freeze", [False, True], ids=["learning", "frozen"])
@pytest.mark.parametrize("space", ["C4", "D4"])
def test_trained_kernel_is_the_strict_part_whatever_the_soft_part_learns(space: str, freeze: bool) -> None:
    """The strict part is the explicit mean over the group."""
    trained = convolution(space, "regular -> irreps", padding=1).double()
    relaxed = relax_network(trained, freeze=freeze, relax=battery.subgroups(space, 0.2))
    before = relaxed.filter_bank()
    for step in range(2):
        bank = relaxed.filter_bank()
        mean = acted(relaxed, bank, subgroup_elements(relaxed.in_type.gspace)).mean(dim=0)
        assert relative_error(harden_network(relaxed).filter_bank(), mean) <= ROUNDING
        if freeze:
            assert relative_error(mean, before) <= ROUNDING
        if step:
            assert relative_error(mean, bank) > 1e-4
        with torch.enable_grad():
            train_a_step(relaxed, rate=10.0)
    back = harden_network(relaxed)
    assert torch.equal(back.weights, trained.weights) == freeze


def test_frozen_network_hardened_after_training_is_the_trained_one() -> None:
    trained = network().eval()
    relaxed = relax_network(trained, freeze=True, relax=SOFT)
    for _ in range(2):
        train_a_step(relaxed)
    for number in (0, 3, 5):
        back = harden_network(relaxed[number])
        assert torch.equal(back.weights, trained[number].weights)
        with torch.no_grad():
            back.bias.copy_(trained[number].bias)  # biases are equivariant, and learn
        assert relative_error(answer(back), answer(trained[number])) <= TO_THE_BIT


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_soft_part_learns_in_units_of_the_trained_kernel(factor: float) -> None:
    trained = convolution("C4", "two regular -> regular")
    larger = copy.deepcopy(trained)
    with torch.no_grad():
        larger.weights.mul_(factor)
    units = []
    for module in (trained, larger):
        torch.manual_seed(0)
        (pair,) = relax_network(module, relax=SOFT, kernel=ContinuousKernel()).bank.steered_average.block_pairs
        units.append(float(pair.units.norm()))
    assert units[1] / units[0] == pytest.approx(factor, rel=1e-5)


def test_modulation_learns_as_fast_beside_a_kernel_of_any_size() -> None:
    """It is a proportion of the trained kernel, so that its units are the same."""
    small, large = (convolution("C4", "two regular -> regular") for _ in range(2))
    with torch.no_grad():
        large.weights.copy_(1e3 * small.weights)
    relaxed = [relax_network(module, relax=SOFT) for module in (small, large)]
    assert torch.equal(relaxed[0].bank.units, relaxed[1].bank.units)
    for layer in relaxed:
        torch.nn.init.ones_(layer.bank.weights)
    assert relaxed[1].softness().item() == pytest.approx(relaxed[0].softness().item(), rel=1e-5)


def test_soft_part_of_a_layer_that_starts_at_zero_can_learn() -> None:
    """As the last layer of a residual block often does."""
    trained = R2Conv(*battery.types("C4", "two regular -> regular"), 3, initialize=False)
    relaxed = relax_network(trained, relax=SOFT)
    for _ in range(2):
        train_a_step(relaxed)
    assert relaxed.softness().item() > 0


def test_layers_are_picked_by_name_and_by_what_they_are() -> None:
    relaxed = relax_network(network(), lambda name, layer: name == "3" or layer.in_type.size == 1, relax=SOFT)
    assert [name for name, _ in named_relaxed_layers(relaxed)] == ["0", "3"]
    assert isinstance(relaxed[5], R2Conv)
    with pytest.raises(ValueError, match=r"where picks none of \['0', '3', '5'\]"):
        relax_network(network(), lambda name, layer: False)


def test_options_are_those_of_the_layer() -> None:
    relaxed = relax_network(
        network(), relax=SOFT, learn_relaxation=True, kernel=ContinuousKernel(hidden_size=5, frame="image")
    )
    for _, layer in named_relaxed_layers(relaxed):
        assert isinstance(layer.domain_frequency["rotation"], torch.nn.Parameter)
        assert layer.bank.kernel.hidden_size == 5
        assert layer.bank.options.frame == "image"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relax": {"spin": 0.2}}, "unknown subgroup 'spin'"),
        ({"relax": {"reflection": 0.2}}, "no reflection to relax"),
        ({"initial_softness": 2.0}, r"initial_softness must be in \[0, 1\), got 2"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        relax_network(network(), **options)


@pytest.mark.parametrize(
    "option", [{"strict_kernel": "continuous"}, {"bias": False}, {"padding": 2}, {"rings": [0.0]}, {"relaxed": True}]
)
def test_what_the_trained_layers_decide_is_no_option(option: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=rf"relax_network has no argument '{next(iter(option))}'.*takes these.*relax, "):
        relax_network(network(), **option)


@pytest.mark.parametrize("name", ["network", "soft"])
def test_network_without_an_r2conv_is_refused(name: str) -> None:
    soft = RelaxedR2Conv(*battery.types("C4", "trivial -> regular"), 3)
    with pytest.raises(ValueError, match=r"network has no escnn\.nn\.R2Conv, R2ConvTransposed or R3Conv to relax"):
        relax_network({"network": torch.nn.Linear(2, 2), "soft": soft}[name])


@pytest.mark.parametrize("convert", [relax_network, harden_network])
def test_what_is_no_network_is_refused(convert) -> None:
    with pytest.raises(TypeError, match=r"network must be a torch\.nn\.Module, got str: 'net'"):
        convert("net")


def test_network_without_a_relaxed_layer_cannot_be_hardened() -> None:
    with pytest.raises(ValueError, match=r"network has no relaxed layer: relax_network"):
        harden_network(network())


@pytest.mark.parametrize("freeze", [False, True], ids=["learning", "frozen"])
def test_frozen_parameters_stay_frozen(freeze: bool) -> None:
    trained = network()
    trained[0].weights.requires_grad_(False)
    trained[3].bias.requires_grad_(False)
    relaxed = relax_network(trained, freeze=freeze, relax=SOFT)
    assert [relaxed[i].weights.requires_grad for i in (0, 3, 5)] == [False, not freeze, not freeze]
    assert [relaxed[i].bias.requires_grad for i in (0, 3, 5)] == [True, False, True]
    with pytest.raises(TypeError, match="freeze must be True or False, got 'no'"):
        relax_network(trained, freeze="no", relax=SOFT)


def test_layers_that_share_weights_or_biases_go_on_sharing_them() -> None:
    trained = network()
    trained[5].weights, trained[5].bias = trained[3].weights, trained[3].bias
    relaxed = relax_network(trained, relax=SOFT)
    assert relaxed[5].weights is relaxed[3].weights is not trained[3].weights
    assert relaxed[5].bias is relaxed[3].bias is not trained[3].bias
    assert torch.equal(relaxed[3].bias, trained[3].bias)
    apart = relax_network(trained, lambda name, layer: name == "3", relax=SOFT)
    assert apart[5].bias is apart[3].bias


def test_where_is_given_the_whole_name_of_a_nested_layer() -> None:
    inner = network()
    names: list[str] = []

    def where(name: str, layer: R2Conv) -> bool:
        names.append(name)
        return name == "body.3"

    relaxed = relax_network(torch.nn.ModuleDict({"body": inner}), where)
    assert names == ["body.0", "body.3", "body.5"]
    assert [name for name, _ in named_relaxed_layers(relaxed)] == ["body.3"]
