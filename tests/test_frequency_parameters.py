"""The ω′ of a kernel: the penalty on it, its group of parameters, one ω′ for layers or both axes, its state."""

import copy
import math
import pickle
from collections import OrderedDict

import pytest
import small
import torch
from baseline_layers import WAYS, baseline
from errors import ROUNDING
from escnn import gspaces
from escnn.nn import R2Conv
from small import soft_regular_layer
from small_networks import gradients, network_of
from torch import Tensor, nn

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, RelaxedR3Conv, parameter_groups
from escnn_relaxed.baselines import PartialR2Conv
from escnn_relaxed.learning import frequency_penalty, share_domain_frequency
from escnn_relaxed.network.relaxed_layers import relaxed_layers

FIELDS = small.field_type("C4", "regular")
BOTH = {"rotation": 0.2, "translation": (0.1, 0.3)}


def learning(*starts: dict[str, object]) -> nn.Module:
    return network_of(*(soft_regular_layer(relax=start, learn_relaxation=True) for start in starts))


def layers_of(network: nn.Module) -> list[RelaxedR2Conv]:
    return [layer for layer in relaxed_layers(network).values()]


def frequencies_of(network: nn.Module) -> list[nn.Parameter]:
    """Every parameter of ω′, once, as an optimiser sees them."""
    return parameter_groups(network)[0]["params"]


def test_penalty_is_the_sum_of_squares_over_layers_and_subgroups() -> None:
    first, last = (
        soft_regular_layer(space="D4", relax=relax, learn_relaxation=True)
        for relax in ({"rotation": 0.25, "reflection": 0.5}, {"rotation": 0.125, "translation": (0.5, 0.75)})
    )
    network = nn.ModuleDict({"block": nn.Sequential(first), "strict": soft_regular_layer(relax={}), "last": last})
    penalty = frequency_penalty(network)
    expected = 0.25**2 + 0.5**2 + 0.125**2 + 0.5**2 + 0.75**2
    assert penalty.item() == pytest.approx(expected, rel=ROUNDING)
    found = gradients(penalty, network)
    assert found.keys() == {name for name, _ in network.named_parameters() if "frequency" in name}
    for name, gradient in found.items():
        assert gradient.tolist() == pytest.approx((2 * network.get_parameter(name)).tolist(), rel=ROUNDING)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (PartialR2Conv(FIELDS, FIELDS, 3), "network: '0', a PartialR2Conv, has no ω′; SoftnessEvidence learns"),
        (R2Conv(FIELDS, FIELDS, 3), "network has no relaxed layer"),
    ],
)
def test_penalty_of_what_has_no_frequency_is_refused(layer: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        frequency_penalty(nn.Sequential(layer))


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_penalty_without_a_gradient_says_so_once_at_the_line_of_the_loop() -> None:
    """Of fixed ω′ and of learned ones that are frozen."""
    fixed, frozen = network_of(soft_regular_layer(relax={"rotation": 0.5})), learning({"rotation": 0.5})
    for value in frequencies_of(frozen):
        value.requires_grad_(False)
    with pytest.warns(
        UserWarning, match="constant without a gradient.*learn_relaxation=True, .*SoftnessEvidence"
    ) as said:
        penalties = [frequency_penalty(network) for network in (fixed, frozen, fixed)]
    assert [warning.filename for warning in said] == [__file__]
    assert [penalty.item() for penalty in penalties] == [0.25, 0.25, 0.25]


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_penalty_is_silent_where_it_learns_where_nothing_is_soft_and_where_it_is_looked_at() -> None:
    fixed = soft_regular_layer(relax={"rotation": 0.5})
    assert frequency_penalty(nn.ModuleList([fixed, learning({"rotation": 0.5})])).requires_grad
    assert frequency_penalty(network_of(soft_regular_layer(relax={}))).item() == 0
    with torch.no_grad():
        assert frequency_penalty(fixed).item() == 0.25


def answer(network: nn.Module) -> Tensor:
    torch.manual_seed(3)
    in_type = layers_of(network)[0].in_type
    return network(in_type(small.random_input(in_type, 8, 8))).tensor


def test_weight_decay_pulls_strict_weights_alone_and_frequencies_have_their_rate() -> None:
    network = learning({"rotation": 0.2}, {"rotation": 0.2})
    groups = parameter_groups(network, 0.5)
    assert sorted(id(p) for group in groups for p in group["params"]) == sorted(id(p) for p in network.parameters())
    frequencies = {id(layer.domain_frequency["rotation"]) for layer in layers_of(network)}
    assert frequencies == {id(parameter) for parameter in groups[0]["params"]}
    soft = {id(layer.kernel.modulation.weights) for layer in layers_of(network)}
    assert soft == {id(parameter) for parameter in groups[1]["params"]}
    before = [parameter.detach().clone() for parameter in network.parameters()]
    optimiser = torch.optim.SGD(groups, lr=0.25, weight_decay=0.2)
    found = [(group["lr"], group["weight_decay"]) for group in optimiser.param_groups]
    assert found == [(0.5, 0.0), (0.25, 0.0), (0.25, 0.2)]
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    for parameter, start in zip(network.parameters(), before, strict=True):
        assert torch.allclose(parameter, start if id(parameter) in frequencies | soft else (1 - 0.25 * 0.2) * start)
    plain = torch.optim.Adam(parameter_groups(network), lr=1e-3)
    assert [group["lr"] for group in plain.param_groups] == [1e-3] * 3


@pytest.mark.parametrize("way", ["tied", "continuous", *WAYS])
def test_what_has_no_weight_decay_are_the_soft_parameters(way: str) -> None:
    layer = baseline(way, "C4", "regular -> regular") if way in WAYS else soft_regular_layer(way, learn_relaxation=True)
    free = {id(value) for group in parameter_groups(layer) if "weight_decay" in group for value in group["params"]}
    assert free == {id(value) for value in layer.soft_parameters()}


def test_layers_share_the_mean_of_what_they_had_in_common() -> None:
    """Signs that learning gave do not cancel."""
    network = learning({"rotation": -0.1}, {"rotation": 0.3, "translation": (-0.1, 0.5)}, {"translation": (0.3, -0.3)})
    for without in (soft_regular_layer(), learning({})):
        with pytest.raises(ValueError, match=r"no layer that learns .*learn_relaxation=True"):
            share_domain_frequency(without)
    share_domain_frequency(network)
    first, second, third = (layer.domain_frequency for layer in layers_of(network))
    assert first["rotation"] is second["rotation"]
    assert second["translation"] is third["translation"]
    assert first["rotation"].tolist() == pytest.approx([0.2])
    assert second["translation"].tolist() == pytest.approx([0.2, 0.4])
    assert len(frequencies_of(network)) == 2


def test_copies_share_too_and_not_with_the_original() -> None:
    network = learning(BOTH, BOTH).float()
    share_domain_frequency(network)
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network)), copy.deepcopy(network).double().float()):
        assert len(frequencies_of(other)) == 2
        layers_of(other)[0].set_domain_frequency(rotation=0.25)
        assert layers_of(other)[1].domain_frequency["rotation"].item() == 0.25
        assert layers_of(network)[1].domain_frequency["rotation"].item() == pytest.approx(0.2)


def test_state_dicts_have_the_keys_of_before_and_load() -> None:
    network, other, apart = (learning(BOTH, BOTH) for _ in range(3))
    for each in (network, other):
        share_domain_frequency(each)
    layers_of(network)[1].set_domain_frequency(rotation=0.3, translation=0.7)
    state = network.state_dict()
    assert state.keys() == apart.state_dict().keys()
    # Where each layer has its own, too.
    for each, count in ((other, 2), (apart, 4)):
        each.load_state_dict(state)
        assert len(frequencies_of(each)) == count
        assert torch.equal(answer(each), answer(network))
        assert layers_of(each)[0].domain_frequency["translation"].tolist() == pytest.approx([0.7, 0.7])


@pytest.mark.whole
@pytest.mark.parametrize(
    ("space", "options", "expected"),
    [
        ("C8", {"kernel": ContinuousKernel(hidden_size=2)}, 0.25),
        ("C8", {"kernel": ContinuousKernel(hidden_size=2, rotation_coordinates="log")}, 1.0),
        # As large as three samples resolve: N/4π.
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
    with pytest.raises(TypeError, match="relax must be the name of a subgroup"):
        RelaxedR2Conv(*fields, 3, relax=iter(names))


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


@pytest.mark.parametrize("learn", [False, True])
def test_frequencies_are_all_set_or_none(learn: bool) -> None:
    layer = RelaxedR2Conv(*small.types("D4", "regular -> regular"), 3, learn_relaxation=learn)
    for wrong, error in ((math.nan, ValueError), ("much", TypeError)):
        with pytest.raises(error, match="'reflection' must be"):
            layer.set_domain_frequency(rotation=0.125, reflection=wrong)
    with pytest.raises(ValueError, match="'translation' has no domain frequency"):
        layer.set_domain_frequency(rotation=0.125, translation=0.125)
    assert {name: value.item() for name, value in layer.domain_frequency.items()} == {
        "rotation": 0.25,
        "reflection": 0.25,
    }


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
