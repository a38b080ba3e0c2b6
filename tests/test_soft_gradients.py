"""Gradients of soft weights input by input, against a loop through the whole network."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import baseline_layers
import drop_in_networks
import pytest
import small
import small_networks
import torch
from errors import ROUNDING, SINGLE_REORDERED
from escnn import nn as enn
from escnn.gspaces import no_base_space
from escnn.nn import FieldType, GeometricTensor
from small import soft_layer, soft_regular_layer, soft_transposed_layer
from small_networks import network_of
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from escnn_relaxed import ContinuousKernel, RelaxedLinear, RelaxedR2Conv, RelaxedR2ConvTransposed
from escnn_relaxed.kernel.tied import TiedKernel
from escnn_relaxed.layer import input_gradients
from escnn_relaxed.layer.relaxed_layer import RelaxedLayer
from escnn_relaxed.learning.soft_gradients import _check_complete, gradients, input_chunks

EVERYWHERE = {"rotation": 0.25, "translation": (0.3, 0.5)}
IN_D4 = {"rotation": 0.25, "reflection": 0.3}


def linear() -> RelaxedLinear:
    space = no_base_space(small.gspace("D4").fibergroup)
    fields = FieldType(space, small.field_type("D4", "regular + trivial + regular").representations)
    return RelaxedLinear(fields, FieldType(space, fields.representations[::2]), initial_softness=0.3).double()


class Doubled(RelaxedR2Conv):
    """A layer whose output is not that of its kernel alone."""

    def forward(self, input: GeometricTensor) -> GeometricTensor:
        output = super().forward(input)
        return GeometricTensor(2 * output.tensor, output.type)


# Layers whose soft weights are factors of channels, taps and pixels.
MODULATED: dict[str, Callable[..., RelaxedLayer]] = {
    "no element of its own": partial(soft_layer, "C4", "regular -> trivial", kernel_size=5),
    "two subgroups": partial(soft_layer, "D4", "regular -> two regular", relax=IN_D4),
    "stride, dilation": partial(soft_layer, "C4", "regular -> regular", stride=2, dilation=2, padding=2),
    "groups": partial(soft_layer, "C4", "two regular -> two regular", groups=2, relax=EVERYWHERE),
    "gains at pixels": partial(soft_layer, "C4", "regular -> two regular", padding=1, relax=EVERYWHERE),
    "directions at pixels": partial(soft_layer, "C4", "regular -> irreps + regular", relax=EVERYWHERE),
    "all directions": partial(
        soft_layer, "C4", "regular -> regular", relax=EVERYWHERE, kernel=partial(TiedKernel, all_directions=True)
    ),
    "transposed, groups": partial(soft_transposed_layer, "C4", "two regular -> two regular", groups=2),
    "transposed, at pixels": partial(
        soft_transposed_layer, "C4", "two regular -> irreps + irreps", groups=2, relax=EVERYWHERE
    ),
    "linear": linear,
    "volumes, at pixels": partial(
        small.volume_layer, small.volume_type("cone 4"), relax={"rotation": 0.2, "translation": 0.4}
    ),
    "volumes, transposed": partial(small_networks.layer_of, "volumes, transposed"),
}
# The others are mapped over input by input.
OTHERS: dict[str, Callable[..., RelaxedLayer]] = {
    "pairs of channels": partial(soft_layer, "C4", "regular -> trivial", kernel_size=1),
    "a forward of its own": partial(soft_layer, "C4", "regular -> regular", make=Doubled),
    "learned ω′, continuous": partial(
        soft_layer, "C4", "regular -> regular", kernel=ContinuousKernel(hidden_size=4), learn_relaxation=True
    ),
    "at pixels, continuous": partial(small_networks.layer_of, "soft in translation, continuous"),
    **{way: partial(baseline_layers.baseline, way, "C4", "regular -> regular") for way in baseline_layers.WAYS},
}
LAYERS = MODULATED | OTHERS


def soft_parameters(network: nn.Module) -> list[nn.Parameter]:
    return [p for m in network.modules() if hasattr(m, "soft_parameters") for p in m.soft_parameters()]


def one_by_one(network: nn.Module, inputs: list[tuple[object, ...]], direction: Tensor) -> list[Tensor]:
    """A loop through the whole network."""
    rows = []
    for number, arguments in enumerate(inputs):
        output = network(*arguments)
        output = output.tensor if isinstance(output, GeometricTensor) else output
        product = (output * direction[number : number + 1]).sum()
        rows.append(torch.autograd.grad(product, soft_parameters(network), allow_unused=True, materialize_grads=True))
    return [torch.stack(of) for of in zip(*rows, strict=True)]


def assert_as_one_by_one(network: nn.Module, *arguments: object, tolerance: float = 10 * ROUNDING) -> list[Tensor]:
    network.eval()
    with torch.no_grad():
        output = network(*arguments)
    direction = torch.randn_like(output.tensor if isinstance(output, GeometricTensor) else output)
    # A network that goes through one input after the other asks for the direction of each.
    asked = iter(direction.split(1))
    found = gradients(
        network, soft_parameters(network), arguments, lambda o: direction if o.shape == direction.shape else next(asked)
    )
    expected = one_by_one(network, list(input_chunks(arguments, 1)), direction)
    assert any(of.abs().max() > 0 for of in expected)
    for of, wanted in zip(found, expected, strict=True):
        assert of.shape == wanted.shape
        assert (of - wanted).abs().max() <= tolerance * (1 + wanted.abs().max())  # sums over 8³ voxels too
    return found


def features_of(layer: RelaxedLayer) -> GeometricTensor:
    return layer.in_type(small_networks.features_of(layer, side=6, batch=3))


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_every_form_are_those_of_a_loop_and_of_a_map(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = LAYERS[name]()
    own = dict(enumerate(soft_parameters(layer)))
    features = features_of(layer)
    call = input_gradients.LayerCall(layer, features.tensor, layer(features).tensor)
    assert (input_gradients._modulated(call, own) is not None) == (name in MODULATED)
    monkeypatch.setattr(input_gradients, "_has_large_banks", lambda *_: True)
    assert_as_one_by_one(layer, features_of(layer))
    monkeypatch.setattr(input_gradients, "_has_large_banks", lambda *_: False)
    # Inputs at a time that are mapped over: all, and one.
    for most in (input_gradients._MOST_VALUES, 1):
        monkeypatch.setattr(input_gradients, "_MOST_VALUES", most)
        assert_as_one_by_one(layer, features_of(layer), tolerance=1e2 * ROUNDING)  # 1e-10


@pytest.mark.parametrize("name", ["two subgroups", "directions at pixels"])
def test_what_is_hardened_has_no_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_gradients, "_has_large_banks", lambda *_: True)
    layer = LAYERS[name]()
    before = assert_as_one_by_one(layer, features_of(layer))
    layer.harden("rotation")
    after = assert_as_one_by_one(layer, features_of(layer))
    assert sum((rows == 0).all(0).sum() for rows in after) > sum((rows == 0).all(0).sum() for rows in before)


class Largest(TorchDispatchMode):
    """Notes the number of values of the largest tensor that is made."""

    values = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        made = function(*arguments, **(options or {}))
        tensors = [of for of in (made if isinstance(made, (tuple, list)) else [made]) if isinstance(of, Tensor)]
        self.values = max([self.values, *(tensor.numel() for tensor in tensors)])
        return made


@pytest.mark.parametrize("relax", [{"rotation": 0.25}, EVERYWHERE, {"translation": 0.4}], ids=str)
def test_no_input_has_a_filter_bank_of_its_own(relax: dict[str, object]) -> None:
    fields = small.field_type("C4", " + ".join(["regular"] * 8))
    layer = RelaxedR2Conv(fields, fields, 5, padding=2, relax=relax).eval()
    arguments = (fields(torch.randn(3, 32, 4, 4)),)
    with Largest() as largest:
        gradients(layer, soft_parameters(layer), arguments, torch.ones_like)
    assert largest.values <= layer.kernel.values_at_a_pixel == 32 * 32 * 25


class OfFrames(nn.Module):
    """A network that sees several frames of each input as a batch of them, and calls its layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = soft_regular_layer()
        fields = self.layer.out_type
        # What is done in place behind a layer must not reach what is noted of it.
        self.norm, self.relu = enn.InnerBatchNorm(fields).double(), enn.ReLU(fields, inplace=True)
        self.head = nn.Linear(fields.size, 3).double()

    def forward(self, frames: Tensor, scale: Tensor, weights: Tensor, is_doubled: bool) -> Tensor:
        features = self.relu(self.layer(self.layer.in_type(frames.flatten(0, 1))))
        features = self.relu(self.layer(self.norm(features))).tensor.mean((2, 3))
        answers = torch.einsum("bfc,f->bc", self.head(features).unflatten(0, frames.shape[:2]), weights)
        return answers * scale * (2 if is_doubled else 1)


class Residual(nn.Module):
    """A ReLU in place of a layer's input on the way past it, and a call without gradients for a target."""

    def __init__(self, context: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        super().__init__()
        self.layer, self.context = soft_regular_layer(), context

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.layer(self.layer.in_type(images.flip(-1))).tensor
        features = images + 1
        with self.context():
            output = self.layer(input=self.layer.in_type(features)).tensor
        return (output * target * features.relu_()).mean((2, 3))


def images(count: int = 4) -> Tensor:
    return torch.randn(count, 4, 6, 6, dtype=torch.float64)


def test_networks_are_taken_apart_and_left_without_hooks() -> None:
    """Of frames, several for each input and of one, with an argument for each input, one for all, and an option."""
    network = OfFrames()
    for count in (3, 1):
        scale, weights = torch.randn(count, 1, dtype=torch.float64), torch.rand(2, dtype=torch.float64)
        assert_as_one_by_one(network, images(2 * count).unflatten(0, (count, 2)), scale, weights, True)
    assert not any(module._forward_hooks for module in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert_as_one_by_one(Residual(), images())


def test_hooks_of_users_see_tensors_that_they_can_use() -> None:
    """Values may be read, which torch refuses in its maps, and tensors kept."""
    network, kept = network_of(soft_regular_layer(), soft_regular_layer()), []
    network[0].register_forward_hook(lambda layer, given, output: output.tensor.sum().item() and None)
    network[2].register_forward_hook(lambda layer, given, output: kept.append(output.tensor.detach()))
    assert_as_one_by_one(network, network.in_type(images()))
    assert all(len(tensor.sum().reshape(1).tolist()) == 1 for tensor in kept)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_layers_without_gradients_say_so(context: Callable[[], AbstractContextManager[None]]) -> None:
    network = Residual(context)
    with pytest.raises(ValueError, match=r"layers are called without gradients.*use_reentrant=False"):
        gradients(network, soft_parameters(network), (images(),), torch.ones_like)


def twice(layer: RelaxedLayer, features: Tensor) -> Tensor:
    """The second call is past the hooks of the layer."""
    return layer.forward(layer(layer.in_type(features))).tensor.mean((2, 3))


@pytest.mark.parametrize(
    ("forward", "text"),
    [
        (lambda layer, features: features.mean((2, 3)) * layer.bias.sum(), "does not depend on the soft weights"),
        (twice, "in other ways than by calls of their layers"),
    ],
)
def test_network_that_does_not_use_its_layers_is_refused(forward: Callable[..., Tensor], text: str) -> None:
    network = Residual()
    network.forward = partial(forward, network.layer)
    with pytest.raises(ValueError, match=text):
        gradients(network, soft_parameters(network), (images(),), torch.ones_like)


class OnTorus(nn.Module):
    """Trivial fields on a torus and the mean over pixels: rotations of a kernel change nothing, but for rounding."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        layers = (soft_layer("C4", "trivial -> trivial", kernel_size=5, padding=2, padding_mode="circular"),)
        layers += tuple(soft_layer("C4", "trivial -> trivial", padding=1) for _ in range(depth - 1))
        self.network = network_of(*layers[::-1]) if depth > 1 else layers[0]

    def forward(self, images: Tensor) -> Tensor:
        return self.network(small.field_type("C4", "trivial")(images)).tensor.mean((2, 3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("depth", [1, 2])
def test_gradient_that_is_truly_0_misses_nothing(depth: int, dtype: torch.dtype) -> None:
    """The last layer, or the only one, has it; its rounding was taken for what is missed."""
    network = OnTorus(depth).to(dtype).eval()
    last = [module for module in network.modules() if isinstance(module, RelaxedLayer)][-1]
    found = gradients(network, soft_parameters(network), (torch.randn(8, 1, 7, 7, dtype=dtype),), torch.ones_like)
    scale = 1 + sum(float(of.detach().norm()) for of in found)
    assert found[-1].shape == (8, *soft_parameters(last)[0].shape)
    assert float(found[-1].detach().norm()) < 100 * torch.finfo(dtype).eps * scale


def test_compiled_network_has_the_gradients_of_the_network() -> None:
    """Its graph would leave the hooks out."""
    network = network_of(soft_regular_layer(), soft_regular_layer())
    networks = network, torch.compile(network, backend="aot_eager")
    inputs = (network.in_type(images()),)
    found = [gradients(each, soft_parameters(network), inputs, torch.ones_like) for each in networks]
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("name", drop_in_networks.NETWORKS)
def test_networks_that_know_nothing_of_it_are_taken_apart(name: str) -> None:
    """Strides, skips, transposed convolutions, gates, induced fields."""
    network = drop_in_networks.NETWORKS[name][0](
        partial(RelaxedR2Conv, initial_softness=0.1), partial(RelaxedR2ConvTransposed, initial_softness=0.1)
    )
    assert_as_one_by_one(network, drop_in_networks.images(name), tolerance=SINGLE_REORDERED)


@pytest.mark.parametrize(("missed", "is_refused"), [(1e-9, False), (1e-6, True)])
def test_what_is_missed_counts_beside_the_gradients_of_all_weights(missed: float, is_refused: bool) -> None:
    floats = {"dtype": torch.float64}
    wholes = [torch.ones(1, **floats), torch.zeros(1, **floats)]
    rows = [torch.ones(1, 1, **floats), torch.full((1, 1), missed, **floats)]
    refused = pytest.raises(ValueError, match="depends on soft weights in other ways") if is_refused else nullcontext()
    with refused:
        _check_complete(wholes, rows, [1.0, 0.0])
