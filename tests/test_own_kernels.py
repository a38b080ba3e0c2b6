"""Kernels that users write: stationary, with factors at pixels, with a bank at each pixel, random."""

import functools
import inspect
import re
from pathlib import Path

import pytest
import small
import torch
from errors import FEW_TERMS, ROUNDING, SINGLE_REORDERED, relative_error
from escnn.nn import R2Conv
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.kernel import Kernel, StrictKernel, WeightGroup

DOCS = Path(__file__).parents[1] / "docs"
# The methods that one who writes a kernel may need.
METHODS = {"forward", "weight_groups", "varies", "filters", "at_pixels", "draw"}
RELAX = {"gains": "rotation", "factors": "translation", "at pixels": "translation"}
SIDE = 5


class OwnKernel(Kernel):
    """K = K_strict · (1 + gain), with gains of mean 0 over the channels; K_strict has the layer's weights."""

    subgroup = "rotation"

    def __init__(self, config) -> None:
        super().__init__(config)
        self.strict = StrictKernel(config)
        self.basis = self.strict.basis
        self.is_soft = self.subgroup in config.relax
        self.gains = nn.Parameter(torch.zeros(config.out_type.size))

    @property
    def relaxed_subgroups(self) -> tuple[str, ...]:
        return (self.subgroup,) if self.is_soft else ()

    def forward(self, weights: Tensor | None, averaged=()) -> Tensor:
        strict = self.strict(weights)
        if self.subgroup in averaged or not self.is_soft:
            return strict
        return strict * (1 + self.gains - self.gains.mean()).view(-1, 1, 1)

    def weight_groups(self) -> list[WeightGroup]:
        entries = [(self.gains, torch.arange(len(self.gains)))]
        return [WeightGroup(frozenset({self.subgroup}), entries)] if self.is_soft else []


class FactoredKernel(OwnKernel):
    """K(d; x) = K_strict(d) · (1 + gain · column of x), whose mean over the positions is K_strict."""

    subgroup = "translation"

    def varies(self, averaged=()) -> bool:
        return self.is_soft and "translation" not in averaged

    def forward(self, weights: Tensor | None, averaged=()) -> Tensor:
        return self.strict(weights)

    def factors(self, size: tuple[int, ...]) -> Tensor:
        columns = torch.linspace(-1, 1, size[1]).to(self.gains).expand(size)
        return 1 + self.gains.view(-1, 1, 1) * columns

    def filters(self, weights: Tensor | None, size: tuple[int, ...], averaged=()) -> tuple[Tensor, Tensor | None]:
        strict = self.strict(weights)
        return (strict[None], self.factors(size)[None]) if self.varies(averaged) else (strict, None)


class KernelAtPixels(FactoredKernel):
    """The same K, made at each pixel."""

    def filters(self, *_: object) -> None:
        return None

    def at_pixels(self, weights: Tensor | None, size: tuple[int, ...], averaged, start: int, end: int) -> Tensor:
        strict = self.strict(weights)
        if not self.varies(averaged):
            return strict.expand(end - start, *strict.shape)
        factors = self.factors(size).flatten(1)[:, start:end].mT
        return strict * factors[..., None, None]


class RandomKernel(OwnKernel):
    """K = K_strict · a drawn number, which is no tensor."""

    def __init__(self, config, always: bool = False) -> None:
        super().__init__(config)
        self.always, self.drawn = always, 1.0

    @property
    def is_random(self) -> bool:
        return self.always or self.training

    def draw(self) -> None:
        self.drawn = torch.rand(()).item()

    def forward(self, weights: Tensor | None, averaged=()) -> Tensor:
        return super().forward(weights, averaged) * self.drawn


KERNELS = {"gains": OwnKernel, "factors": FactoredKernel, "at pixels": KernelAtPixels}


def own_layer(name: str, **arguments: object) -> RelaxedR2Conv:
    types = small.types("C4", "regular -> regular")
    arguments = {"relax": RELAX[name], "padding": 1, "kernel": KERNELS[name], "initial_softness": 0.1, **arguments}
    return RelaxedR2Conv(*types, 3, **arguments).double()


def expected_factors(layer: RelaxedR2Conv) -> Tensor:
    """1 + f of each output channel and pixel, (C, rows, columns), written out."""
    gains = layer.kernel.gains
    if isinstance(layer.kernel, FactoredKernel):
        return 1 + gains[:, None, None] * torch.linspace(-1, 1, SIDE, dtype=torch.float64).expand(SIDE, SIDE)
    return (1 + gains - gains.mean())[:, None, None].expand(-1, SIDE, SIDE)


def expected_output(layer: RelaxedR2Conv, features: Tensor) -> Tensor:
    strict = layer.kernel.strict(layer.weights).unflatten(-1, (3, 3))
    output = nn.functional.conv2d(features, strict, padding=1) * expected_factors(layer)
    return output + layer.expanded_bias.view(-1, 1, 1)


def gradients(output: Tensor, layer: RelaxedR2Conv, features: Tensor) -> list[Tensor]:
    wanted = [features, layer.weights, layer.bias, *([layer.kernel.gains] if layer.kernel.is_soft else [])]
    return list(torch.autograd.grad(output.sin().sum(), wanted))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", KERNELS)
def test_values_and_gradients_are_those_of_the_definition(name: str, training: bool) -> None:
    layer = own_layer(name).train(training)
    features = small.random_input(layer.in_type, SIDE, SIDE).requires_grad_()
    found, expected = layer(layer.in_type(features)).tensor, expected_output(layer, features)
    assert relative_error(found.detach(), expected.detach()) <= ROUNDING
    for of, other in zip(gradients(found, layer, features), gradients(expected, layer, features), strict=True):
        assert relative_error(of, other) <= ROUNDING
    with torch.no_grad():
        layer.weights.mul_(2)  # nothing that was kept is stale
        found, expected = layer(layer.in_type(features)).tensor, expected_output(layer, features)
    assert relative_error(found, expected) <= ROUNDING


@torch.no_grad()
@pytest.mark.parametrize("name", KERNELS)
def test_softness_is_that_of_the_definition_and_0_once_hardened(name: str) -> None:
    layer, other = own_layer(name), own_layer(name)
    assert layer.softness(size=SIDE).item() != 0
    assert layer.softness().item() == pytest.approx(0.1)
    strict, factors = layer.kernel.strict(layer.weights), expected_factors(layer)
    soft = ((factors - 1).square().mean((1, 2)) * strict.square().sum((1, 2))).sum()
    s = soft / (soft + strict.square().sum())
    assert layer.softness(RELAX[name], size=SIDE).item() == pytest.approx(s.item(), abs=FEW_TERMS)
    layer.harden(RELAX[name])
    assert layer.softness().item() == 0
    assert relative_error(layer.filter_bank().flatten(2), strict) <= ROUNDING
    other.load_state_dict(layer.state_dict())
    features = layer.in_type(small.random_input(layer.in_type, SIDE, SIDE))
    assert torch.equal(other(features).tensor, layer(features).tensor)


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.parametrize("name", KERNELS)
def test_layer_is_strict_without_relax_and_says_where_a_kernel_is_not(name: str) -> None:
    layer = own_layer(name, relax=None)  # warnings are errors
    assert (layer.relaxed_subgroups, layer.softness().item(), layer.is_stationary) == ((), 0, True)

    class AlwaysSoft(KERNELS[name]):
        relaxed_subgroups = (RELAX[name],)

    for relax in (None, "default")[: 1 + (name != "gains")]:
        said = f"a AlwaysSoft is soft in {RELAX[name]}, which relax={relax!r} leaves out"
        with pytest.warns(UserWarning, match=said):
            own_layer(name, relax=relax, kernel=AlwaysSoft)


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_a_kernel_that_is_strict_in_what_relax_names_is_warned_of() -> None:
    types = small.types("C4", "regular -> regular")
    RelaxedR2Conv(*types, 3, relax=None, kernel=StrictKernel)
    RelaxedR2Conv(*types, 3, kernel=StrictKernel)  # nothing is named
    with pytest.warns(UserWarning, match="a StrictKernel cannot be soft in rotation, and the layer stays strict there"):
        RelaxedR2Conv(*types, 3, relax="rotation", kernel=StrictKernel)


def test_export_names_the_kernel_that_has_no_plain_form() -> None:
    for name in ("factors", "at pixels"):
        layer = own_layer(name)
        text = f"a {KERNELS[name].__name__} that is soft in translation has no form on plain tensors"
        with pytest.raises(RuntimeError, match=re.escape(text)):
            layer.export()
        layer.harden("translation")
        assert isinstance(layer.export(), nn.Conv2d)
    assert isinstance(own_layer("gains").export(), nn.Conv2d)


def test_weights_of_the_layer_that_change_before_the_backward_are_refused() -> None:
    layer = own_layer("at pixels")
    output = layer(layer.in_type(small.random_input(layer.in_type, SIDE, SIDE))).tensor
    with torch.no_grad():
        layer.weights.mul_(1.5)
    with pytest.raises(RuntimeError, match="a parameter of a KernelAtPixels that is soft in translation was changed"):
        output.sum().backward()


@torch.no_grad()
@pytest.mark.parametrize("always", [False, True])
def test_each_forward_draws_where_a_kernel_is_random(always: bool) -> None:
    types = small.types("C4", "regular -> regular")
    kernel = functools.partial(RandomKernel, always=always)
    layer = RelaxedR2Conv(*types, 3, bias=False, relax="rotation", kernel=kernel).double()
    features = types[0](small.random_input(types[0], SIDE, SIDE))
    for mode in (True, False):
        layer.train(mode)
        drawn, outputs = [], []
        for _ in range(2):
            outputs.append(layer(features).tensor)
            drawn.append(layer.kernel.drawn)
        assert (drawn[0] != drawn[1]) == (mode or always)
        assert relative_error(outputs[0] / drawn[0], outputs[1] / drawn[1]) <= ROUNDING


def test_the_pages_have_the_few_methods_that_a_kernel_of_a_user_may_need() -> None:
    page, guide = ((DOCS / name).read_text() for name in ("api/kernels.md", "how-to/add-a-kernel.md"))
    of_kernel = page.split("autoclass:: escnn_relaxed.kernel.Kernel\n")[1].split("autoclass")[0]
    assert {*re.findall(r"automethod:: (\w+)", of_kernel)} == METHODS
    assert {*re.findall(r"^- `(\w+)` ", guide, re.MULTILINE)} >= METHODS
    written = [value for value in vars(Kernel).values() if inspect.isfunction(value) or isinstance(value, property)]
    assert len(written) <= 14


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_with_a_basis_takes_the_states_of_r2conv(name: str) -> None:
    layer = own_layer(name).eval()
    trained = R2Conv(layer.in_type, layer.out_type, 3, padding=1).double().eval()
    layer.load_state_dict(trained.state_dict())
    features = layer.in_type(small.random_input(layer.in_type, SIDE, SIDE))
    # The basis of R2Conv is known in single precision.
    assert relative_error(layer(features).tensor, trained(features).tensor) <= SINGLE_REORDERED
    assert not layer.kernel.gains.any()


class ListKernel(OwnKernel):
    """OwnKernel with gains in a Python list, which no module knows of, and which no state holds."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.hidden = [torch.ones(config.out_type.size, dtype=torch.float64)]

    def forward(self, weights: Tensor | None, averaged=()) -> Tensor:
        return super().forward(weights, averaged) * sum(self.hidden).view(-1, 1, 1)


@torch.no_grad()
def test_evaluation_sees_tensors_that_a_kernel_keeps_in_a_list() -> None:
    layer = RelaxedR2Conv(*small.types("C4", "regular -> regular"), 3, kernel=ListKernel, bias=False).double().eval()
    features = layer.in_type(small.random_input(layer.in_type, 5, 5))
    known, hidden = layer(features).tensor, layer.kernel.hidden
    assert torch.equal(layer(features).tensor, known)
    for factor, change in (
        (2, lambda: hidden[0].mul_(2)),
        (3, lambda: hidden.append(torch.ones_like(hidden[0]))),
        (5, lambda: setattr(layer.kernel, "hidden", [5 * torch.ones_like(hidden[0])])),
    ):
        change()
        assert (layer(features).tensor - factor * known).norm() <= ROUNDING * known.norm()
