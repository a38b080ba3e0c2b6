"""Networks of R2Conv relaxed: they compute the same, learn to be soft, and find their way back, to escnn too."""

import copy
import inspect
import re
from collections.abc import Callable
from functools import partial

import pytest
import small
import torch
from errors import ROUNDING, SINGLE, answer_to, relative_error
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType, R2Conv, R2ConvTransposed
from small import shake
from small_networks import C4, EVERY_MODE, answer, convolution, left_alone, network, settled, tensors_of, train_a_step
from torch import nn
from torch.nn.utils import parametrize

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, export_network, harden_network, relax_network
from escnn_relaxed.baselines import ResidualR2Conv
from escnn_relaxed.layer.softness_options import DEFAULTS
from escnn_relaxed.network import to_escnn
from escnn_relaxed.network.relaxed_layers import Relaxed, in_eval_mode, relaxed_layers

TO_THE_BIT = 0.0 if torch.__version__ >= "2.13" else SINGLE  # torch 2.6 sums R2Conv's filter in an order of its own

SOFT = {"rotation": 0.2}
MODES = ("train", "eval")
FREEZE = pytest.mark.parametrize("freeze", [False, True], ids=["learning", "frozen"])
FORMS: dict[str, dict[str, object]] = {
    "reflect": {"padding": (1, 2), "padding_mode": "reflect", "stride": 2},
    "circular": {"kernel_size": 4, "padding": 2, "padding_mode": "circular", "dilation": 2, "bias": False},
    "groups": {"groups": 2},
    "rings and sigma": {"kernel_size": 5, "rings": [0.0, 1.0, 2.0], "sigma": [0.4, 0.5, 0.6]},
    "cutoff": {"kernel_size": 5, "frequencies_cutoff": 1.0},
    "basis filter": {"kernel_size": 5, "basis_filter": lambda attributes: attributes["radius"] > 0.5},
}
TRANSPOSED: dict[str, dict[str, object]] = {
    "stride": {"padding": 1, "stride": 2, "output_padding": 1},
    "pairs": {"padding": (1, 0), "stride": (2, 2), "output_padding": (0, 1), "groups": 2},
    "rings and sigma": {"rings": [0.0, 1.0], "sigma": [0.4, 0.5]},
}
BASIS = ("rings", "sigma", "frequencies_cutoff", "basis_filter")
TYPES = {"C4": "regular + regular -> irreps + irreps", "D4": "irreps + irreps -> regular + regular"}
STRICT, STRICT_TRANSPOSED = (partial(layer, relax=None) for layer in (RelaxedR2Conv, RelaxedR2ConvTransposed))
CASES = [(R2Conv, form, arguments) for form, arguments in FORMS.items()]
CASES += [(STRICT, form, FORMS[form]) for form in ("reflect", "groups", "rings and sigma")]
CASES += [(STRICT, "kernel 2, of which escnn has none", {"kernel_size": 2})]
CASES += [(build, form, of) for form, of in TRANSPOSED.items() for build in (enn.R2ConvTransposed, STRICT_TRANSPOSED)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: f"{number}: {CASES[number][1]}")
def test_relaxed_layer_computes_what_the_layer_computed_learns_and_finds_its_way_back(number: int, mode: str) -> None:
    build, _, arguments = CASES[number]
    space = list(TYPES)[(number + MODES.index(mode)) % len(TYPES)]
    trained = build(*small.types(space, TYPES[space]), **{"kernel_size": 3, **arguments})
    shake(trained)
    trained = trained.double() if isinstance(trained, Relaxed) else trained
    expected = answer(trained.train(mode == "train"))
    relaxed = relax_network(trained, freeze=True, relax=SOFT)
    is_transposed = isinstance(trained, enn.R2ConvTransposed)
    assert type(relaxed) is (RelaxedR2ConvTransposed if is_transposed else RelaxedR2Conv)
    assert relaxed.training == (mode == "train")
    assert relaxed.relaxed_subgroups == ("rotation",)
    assert relaxed.weights is not trained.weights
    assert relative_error(answer(relaxed), expected) <= (ROUNDING if isinstance(trained, Relaxed) else SINGLE)
    assert relaxed.softness().item() == 0
    back = harden_network(relaxed)
    assert (back.bias is None) == (trained.bias is None)
    assert back.bias is None or torch.equal(back.bias, trained.bias)
    if trained.kernel_size == 2:
        with pytest.raises(ValueError, match=r"escnn's R2Conv has an empty basis .*rings=\[0.707\] and"):
            to_escnn(back)
    else:
        # Of escnn's own, whose change of mode keeps what it computes.
        own = to_escnn(back.double(), **{name: of for name, of in arguments.items() if name in BASIS})
        assert type(own) is (enn.R2ConvTransposed if is_transposed else R2Conv)
        assert own.training == (mode == "train")
        for module in (own, own.train(mode != "train")):
            assert relative_error(answer(module), answer(back)) <= ROUNDING
    if build is R2Conv:
        trained.load_state_dict(dict(back.named_parameters()), strict=False)
        assert relative_error(answer(trained.train(mode == "train")), expected) <= TO_THE_BIT
    # A soft part is learned beside the strict one, to which the layer returns.
    train_a_step(relaxed.train(), torch.optim.SGD(relaxed.parameters(), lr=0.1))
    assert relaxed.softness().item() > 0
    assert torch.equal(harden_network(relaxed).weights, trained.weights)


def test_soft_layers_are_copied_as_they_are() -> None:
    soft, in_place = (RelaxedR2Conv(C4, C4, 1, relax=SOFT, initial_softness=0.2) for _ in range(2))
    in_place.harden()
    mixed = enn.SequentialModule(soft, in_place, RelaxedR2Conv(C4, C4, 3, relax=None)).eval()
    relaxed = relax_network(mixed, relax={"rotation": 0.3})
    assert relaxed[0] is not soft
    assert [repr(layer) for layer in list(relaxed)[:2]] == [repr(soft), repr(in_place)]
    assert relaxed[2].relaxed_subgroups == ("rotation",)
    assert torch.equal(answer(relaxed), answer(mixed))
    assert [layer.softness().item() for layer in relaxed_layers(relaxed).values()] == [soft.softness().item(), 0, 0]
    with pytest.raises(ValueError, match=r"network has none of .*R2Conv.* to relax, nor a layer .*with relax=None"):
        relax_network(enn.SequentialModule(soft, in_place))


def test_options_are_those_of_a_layer_beside_its_strict_part() -> None:
    """In the signature, in the docstring, and one that is passed on."""
    arguments = inspect.signature(RelaxedR2Conv).parameters.values()
    own = [each.name for each in arguments if each.kind is each.KEYWORD_ONLY]
    assert list(DEFAULTS) == own
    (listed,) = re.findall(r"\*\*softening: .*?:(.*?)\.", relax_network.__doc__, re.DOTALL)
    assert re.findall("``(.*?)``", listed) == own
    strict = RelaxedR2Conv(*small.types("C8", "regular -> regular"), 3, relax=None)
    assert "keep='C4'" in repr(relax_network(strict, relax=SOFT, keep="C4"))


def test_layers_are_picked_by_their_whole_name_and_by_what_they_are() -> None:
    names: list[str] = []

    def where(name: str, layer: R2Conv) -> bool:
        names.append(name)
        return name == "body.3" or layer.in_type.size == 1

    relaxed = relax_network(torch.nn.ModuleDict({"body": network()}), where, relax=SOFT, learn_relaxation=True)
    assert names == ["body.0", "body.3", "body.5"]
    assert list(relaxed_layers(relaxed)) == ["body.0", "body.3"]
    assert isinstance(relaxed["body"][5], R2Conv)
    assert all(layer.domain_frequency["rotation"].requires_grad for layer in relaxed_layers(relaxed).values())
    with pytest.raises(ValueError, match=r"where must pick .* which has \['0', '3', '5'\]"):
        relax_network(network(), lambda name, layer: False)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: relax_network(network(), relax={"reflection": 0.2}), "no reflection to relax"),
    (lambda: relax_network(network(), bias=False), r"no argument 'bias'.*takes these.*relax, "),
    (lambda: relax_network(torch.nn.Linear(2, 2)), r"none of escnn\.nn\.R2Conv, .* to relax"),
    (lambda: relax_network(enn.R2ConvTransposed(C4, C4, 3, stride=(2, 1))), r"of equal ones, got \(2, 1\)"),
    (lambda: harden_network(network()), "network has no relaxed layer: relax_network"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


@FREEZE
def test_frozen_parameters_stay_frozen(freeze: bool) -> None:
    trained = network()
    trained[0].weights.requires_grad_(False)
    trained[3].bias.requires_grad_(False)
    relaxed = relax_network(trained, freeze=freeze, relax=SOFT)
    assert [relaxed[i].weights.requires_grad for i in (0, 3, 5)] == [False, not freeze, not freeze]
    assert [relaxed[i].bias.requires_grad for i in (0, 3, 5)] == [True, False, True]


def test_layers_that_share_weights_or_biases_go_on_sharing_them() -> None:
    trained = network()
    # One of escnn's, and a strict one of this package.
    trained = enn.SequentialModule(*list(trained)[:5], RelaxedR2Conv(C4, C4, 3, relax=None))
    trained[5].weights, trained[5].bias = trained[3].weights, trained[3].bias
    relaxed = relax_network(trained, relax=SOFT)
    assert relaxed[5].weights is relaxed[3].weights is not trained[3].weights
    assert relaxed[5].bias is relaxed[3].bias is not trained[3].bias
    assert torch.equal(relaxed[3].bias, trained[3].bias)


class Named(R2Conv):
    """Nothing of its own but its name and how it is built."""

    def __init__(self, fields: enn.FieldType) -> None:
        super().__init__(fields, fields, 3)


class Doubled(R2Conv):
    def forward(self, input: enn.GeometricTensor) -> enn.GeometricTensor:
        return super().forward(input) * 2.0


class Transposed(enn.R2ConvTransposed):
    def expand_parameters(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        return super().expand_parameters()


class DoubledStrict(RelaxedR2Conv):
    def forward(self, input: enn.GeometricTensor) -> enn.GeometricTensor:
        return super().forward(input) * 2.0


def with_hook(layer: R2Conv, register: str) -> R2Conv:
    getattr(layer, register)(lambda module, inputs, *output: output[0] * 2.0 if output else None)
    return layer


def with_own_forward(layer: R2Conv) -> R2Conv:
    layer.forward = partial(R2Conv.forward, layer)
    return layer


def with_gain(layer: R2Conv) -> R2Conv:
    layer.gain = torch.nn.Parameter(torch.ones(()))
    return layer


def parametrized(layer: R2Conv) -> R2Conv:
    parametrize.register_parametrization(layer, "weights", torch.nn.Tanh())
    return layer


MORE_THAN_A_KERNEL = {
    "subclass": (lambda: Doubled(C4, C4, 3), "1, a Doubled, has more than its class.*type.layer. is R2Conv"),
    "forward": (lambda: with_own_forward(Named(C4)), "1, a Named, has more than its class"),
    "parameter": (lambda: with_gain(Named(C4)), "1, a Named, has more than its class, gain"),
    "hook": (lambda: with_hook(Named(C4), "register_forward_hook"), "1 has forward_hooks, which would be lost"),
    "parametrization": (lambda: parametrized(Named(C4)), r"1 has parametrized \['weights'\]"),
    "transposed": (lambda: Transposed(C4, C4, 3), r"layer: type\(layer\) is R2ConvTransposed"),
    "strict": (
        lambda: DoubledStrict(C4, C4, 3, relax=None),
        "1, a DoubledStrict, has more than its class, forward, .* put a RelaxedR2Conv",
    ),
}


@pytest.mark.parametrize("case", MORE_THAN_A_KERNEL)
def test_layer_that_does_more_than_its_kernel_is_refused_or_left_as_it_is(case: str) -> None:
    build, message = MORE_THAN_A_KERNEL[case]
    trained = enn.SequentialModule(Named(C4), build())
    with pytest.raises(ValueError, match=message):
        relax_network(trained, relax=SOFT)
    relaxed = relax_network(trained, lambda name, layer: name == "0", relax=SOFT)
    assert type(relaxed[0]) is RelaxedR2Conv
    assert type(relaxed[1]) is type(trained[1])
    assert relative_error(answer(relaxed), answer(trained)) <= SINGLE


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_source_is_left_as_it_is_and_shares_nothing(mode: str) -> None:
    trained = network().train(mode == "train")
    noise = torch.get_rng_state()
    with left_alone(trained):
        relaxed = relax_network(trained, relax=SOFT)
        torch.set_rng_state(noise)  # which drew soft weights
        assert not {of.data_ptr() for of in tensors_of(trained)} & {of.data_ptr() for of in tensors_of(relaxed)}
        assert not any(a is b or a.out_type != b.out_type for a, b in zip(trained, relaxed, strict=True))
        train_a_step(relaxed.train())
    kinds = [RelaxedR2Conv if type(module) is R2Conv else type(module) for module in trained]
    assert [type(module) for module in relaxed] == kinds
    assert kinds.count(RelaxedR2Conv) == 3


class Holding(torch.nn.Module):
    """One layer used twice and in a list, one that shares its weights, and an attribute beside the layers."""

    def __init__(self, held: object = None) -> None:
        super().__init__()
        self.first = self.second = convolution("C4", "regular -> regular", padding=1)
        self.known, self.held = [self.first], held
        self.third = convolution("C4", "regular -> regular", padding=1)
        self.third.weights = self.first.weights
        self.in_type = self.first.in_type

    def forward(self, features: enn.GeometricTensor) -> enn.GeometricTensor:
        return self.third(self.second(self.first(features)))


@pytest.mark.filterwarnings("ignore:relax_network leaves Linear strict")
def test_other_modules_of_escnn_do_not_hinder() -> None:
    """In evaluation they keep tensors with a history, as R2Conv does."""
    regular = small.field_type("C4", "regular")
    c4 = regular.fibergroup
    vectors = FieldType(gspaces.no_base_space(c4), [c4.regular_representation])
    for other in (enn.R2ConvTransposed(regular, regular, 3), enn.Linear(vectors, vectors)):
        module = torch.nn.ModuleDict({"layer": convolution("C4", "regular -> regular"), "other": other}).eval()
        relaxed = relax_network(module, lambda name, layer: name == "layer", relax=SOFT)
        assert isinstance(relaxed["layer"], RelaxedR2Conv)
        assert type(harden_network(relaxed)["other"]) is type(other)


def to_and_from_escnn(network: torch.nn.Module) -> torch.nn.Module:
    return to_escnn(harden_network(relax_network(network, relax=SOFT)))


@pytest.mark.filterwarnings("ignore:export_network keeps the forward:UserWarning")
@pytest.mark.parametrize("copied", [relax_network, export_network, to_and_from_escnn])
def test_python_modules_that_a_network_keeps_are_shared_and_layers_that_appear_twice_stay_one(copied: Callable) -> None:
    network = Holding({"escnn": [enn], "torch": torch})
    copy = copied(network)
    assert copy.held == network.held
    assert copy.held["escnn"] is not network.held["escnn"]
    assert copy.first is copy.second is copy.known[0] is not copy.third
    assert copied is export_network or copy.third.weights is copy.first.weights
    assert relative_error(answer(copy), answer(network)) <= SINGLE


def test_every_module_gets_its_own_mode_back_also_after_an_error() -> None:
    """A frozen block in a network that trains, with a module that trains inside; its batch norm is listed twice."""
    block = torch.nn.Sequential(torch.nn.BatchNorm2d(2), torch.nn.ReLU())
    for parts in ([block, torch.nn.Sequential(block[0], torch.nn.ReLU())], [torch.nn.Sequential(block[0]), block]):
        network = torch.nn.Sequential(*parts).train()
        block.eval()
        block[1].train()
        before = [module.training for module in network.modules()]
        with in_eval_mode(network):
            assert not any(module.training for module in network.modules())
        assert [module.training for module in network.modules()] == before
        with pytest.raises(RuntimeError, match="inside"), in_eval_mode(network):
            raise RuntimeError("inside")
        assert [module.training for module in network.modules()] == before


def test_state_of_a_relaxed_network_loads_into_what_escnn_builds() -> None:
    """The line of docs/how-to/save-and-load.md, for a network with two cutoffs."""

    def build() -> enn.SequentialModule:
        kept = R2Conv(C4, C4, 5, frequencies_cutoff=low, sigma=[0.4, 0.5, 0.6])
        return enn.SequentialModule(kept, R2Conv(C4, C4, 3), R2ConvTransposed(C4, C4, 3, groups=2))

    hardened = harden_network(relax_network(settled(build())))
    for fresh in (build(), build().eval()):
        fresh.train().load_state_dict({**fresh.state_dict(), **hardened.state_dict()})
        features = small.random_input(C4, 9, 10, dtype=torch.float32)
        assert relative_error(answer_to(fresh.eval(), features), answer_to(hardened.eval(), features)) <= SINGLE


def test_what_is_shared_stays_shared_and_what_is_frozen_frozen() -> None:
    layers = [RelaxedR2Conv(C4, C4, 3, relax=None) for _ in range(2)]
    layers[1].weights = layers[0].weights
    layers[0].bias.requires_grad_(False)
    strict = to_escnn(nn.Sequential(*layers, layers[0]))
    assert strict[0] is strict[2]
    assert strict[0].weights is strict[1].weights
    assert strict[0].weights.requires_grad
    assert not strict[0].bias.requires_grad
    # Nor do casts of one change the bases of others.
    strict[0].double()
    assert answer_to(R2Conv(C4, C4, 3), torch.zeros(1, C4.size, 5, 5)).dtype == torch.float32


def of_three_layers() -> enn.SequentialModule:
    convolutions = [R2Conv(C4, C4, 3, padding=1), R2Conv(C4, C4, 5, padding=2, bias=False)]
    convolutions.append(R2ConvTransposed(C4, C4, 3, groups=2))  # its buffer of the bias is built for one group
    return enn.SequentialModule(convolutions[0], enn.InnerBatchNorm(C4), enn.ReLU(C4), *convolutions[1:])


@EVERY_MODE
def test_network_goes_there_and_back_and_training_goes_on_in_the_same_way(mode: str) -> None:
    """Relaxed and hardened, it is what it was to the last bit, and what escnn builds anew loads its state."""
    trained = settled(of_three_layers()).train(mode == "train")
    hardened = harden_network(relax_network(trained, relax={"rotation": 0.25}))
    strict = to_escnn(hardened)
    assert [type(module) for module in strict] == [type(module) for module in trained]
    fresh = of_three_layers() if mode == "train" else of_three_layers().eval()
    fresh.load_state_dict(strict.state_dict())
    features = small.random_input(C4, 9, 10, dtype=torch.float32)
    # In eval mode first: a pass in training mode changes statistics.
    expected = answer_to(copy.deepcopy(trained).eval() if mode == "train" else trained, features)
    for module in (strict, fresh):
        assert module.training == (mode == "train")
        assert torch.equal(module[0].weights, trained[0].weights)
        assert torch.equal(answer_to(module.eval(), features), expected)
        assert torch.equal(answer_to(module.train(), features), answer_to(trained.train(), features))
    # In double precision; copies, since escnn keeps bases for all layers.
    hardened, strict, fresh = hardened.double().train(), to_escnn(hardened), copy.deepcopy(of_three_layers()).double()
    fresh.load_state_dict(strict.state_dict())
    features = small.random_input(C4, 9, 10)
    for each in (hardened, strict, fresh):
        each.train()(C4(features)).tensor.square().sum().backward()
    for other in (strict, fresh):
        slopes = dict(other.named_parameters())
        for name, parameter in hardened.named_parameters():
            # That of a bias before batch norm is 0 but for rounding.
            error = (slopes.pop(name).grad - parameter.grad).norm()
            assert error <= ROUNDING * max(parameter.grad.norm(), 1)
        assert not slopes


def low(radius: float) -> float:
    return 1.0 if radius else 0.0


def test_basis_of_other_arguments_is_asked_for() -> None:
    other = settled(enn.SequentialModule(R2Conv(C4, C4, 5, frequencies_cutoff=low, sigma=[0.4, 0.5, 0.6])))
    hardened = harden_network(relax_network(enn.SequentialModule(other, R2Conv(C4, C4, 3))))
    for given in ({}, {"frequencies_cutoff": low}):
        with pytest.raises(ValueError, match=r"0\.0: escnn's R2Conv has another basis with (its default|freq)"):
            to_escnn(hardened, **given)
    with pytest.raises(TypeError, match="to_escnn has no argument 'padding'"):
        to_escnn(hardened, padding=1)
    strict = to_escnn(hardened, frequencies_cutoff=low, sigma=[0.4, 0.5, 0.6])
    features = small.random_input(C4, 9, 10, dtype=torch.float32)
    assert relative_error(answer_to(strict, features), answer_to(hardened, features)) <= SINGLE


def hooked(register: str) -> nn.Module:
    layer = RelaxedR2Conv(C4, C4, 3, relax=None)
    getattr(layer, register)(lambda *_: None)
    return layer


NOT_OF_ESCNN: list[tuple[Callable[[], object], str]] = [
    (lambda: enn.SequentialModule(enn.ReLU(C4), RelaxedR2Conv(C4, C4, 3)), "1 is not hardened, and escnn has no soft"),
    (
        lambda: harden_network(RelaxedR2Conv(*small.types("D4", "regular -> quotient"), 3), ("rotation",)),
        "network is not hardened",
    ),
    (
        lambda: harden_network(ResidualR2Conv(C4, C4, 3)),
        "network is a ResidualR2Conv, which has no form in escnn: make",
    ),
    (lambda: hooked("register_forward_hook"), "network has forward_hooks, which would be lost"),
    (lambda: hooked("register_forward_pre_hook"), "network has forward_pre_hooks, which would be lost"),
    (lambda: nn.Linear(2, 2), "network has no relaxed layer"),
    (lambda: "net", r"network must be a torch\.nn\.Module, got str: 'net'"),
]


@pytest.mark.parametrize(("build", "message"), NOT_OF_ESCNN, ids=[message for _, message in NOT_OF_ESCNN])
def test_what_is_no_layer_of_escnn_is_refused(build: Callable[[], object], message: str) -> None:
    network = build()
    with pytest.raises((TypeError, ValueError), match=message):
        to_escnn(network)
