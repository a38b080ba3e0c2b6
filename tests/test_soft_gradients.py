"""Gradients of soft weights input by input against a loop through the whole network."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import baseline_layers
import drop_in_networks
import pytest
import small_networks as forms
import torch
from errors import ROUNDING, SINGLE_REORDERED
from escnn import nn as enn
from escnn.nn import EquivariantModule, GeometricTensor
from small import soft_regular_layer, soft_transposed_layer, volume_layer, volume_type
from small_networks import network_of
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed
from escnn_relaxed.learning.soft_gradients import gradients, input_chunks

LAYERS = {
    **{form: (lambda form=form: forms.layer_of(form)) for form in forms.FORMS if not form.startswith("strict")},
    **{
        way: (lambda way=way: baseline_layers.baseline(way, "C4", "regular -> regular")) for way in baseline_layers.WAYS
    },
    "transposed": lambda: soft_transposed_layer("C4", "regular -> regular", stride=2, padding=1),
    "of volumes": lambda: volume_layer(volume_type("octahedral"), kernel=None),
}


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


def assert_as_one_by_one(network: nn.Module, arguments: tuple[object, ...], tolerance: float = 10 * ROUNDING) -> None:
    network.eval()
    with torch.no_grad():
        output = network(*arguments)
    direction = torch.randn_like(output.tensor if isinstance(output, GeometricTensor) else output)
    single = list(input_chunks(arguments, 1))
    # A network that goes through one input after the other asks for the direction of each.
    asked = iter(direction.split(1))
    found = gradients(
        network, soft_parameters(network), arguments, lambda o: direction if o.shape == direction.shape else next(asked)
    )
    expected = one_by_one(network, single, direction)
    assert any(of.abs().max() > 0 for of in expected)
    for of, wanted in zip(found, expected, strict=True):
        assert of.shape == wanted.shape
        assert (of - wanted).abs().max() <= tolerance * (1 + wanted.abs().max())  # sums over 8³ voxels too


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_every_form_are_those_of_a_loop(name: str) -> None:
    layer: EquivariantModule = LAYERS[name]()
    features = forms.features_of(layer, side=6, batch=3)
    assert_as_one_by_one(layer, (layer.in_type(features),))


class Classifier(nn.Module):
    """Two soft layers, batch norm between them, and a linear one."""

    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.first, self.second = soft_regular_layer(), soft_regular_layer()
        fields = self.first.out_type
        self.norm, self.relu = enn.InnerBatchNorm(fields).double(), enn.ReLU(fields, inplace=in_place)
        self.head = nn.Linear(fields.size, 3).double()

    def forward(self, images: Tensor) -> Tensor:
        features = self.relu(self.first(self.first.in_type(images)))
        features = self.relu(self.second(self.norm(features)))
        return self.head(features.tensor.mean((2, 3)))


class OfFrames(nn.Module):
    """A network that sees several frames of each input as a batch of them."""

    def __init__(self) -> None:
        super().__init__()
        self.of_frame = Classifier()

    def forward(self, frames: Tensor) -> Tensor:
        return self.of_frame(frames.flatten(0, 1)).unflatten(0, frames.shape[:2]).mean(1)


def images(count: int = 4) -> Tensor:
    return torch.randn(count, 4, 6, 6, dtype=torch.float64)


def test_what_is_done_in_place_behind_a_layer_makes_no_difference() -> None:
    assert_as_one_by_one(Classifier(in_place=True), (images(),))


class Residual(nn.Module):
    """A layer, with a ReLU of its input in place on the way past it; the layer pads, and so keeps no input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = soft_regular_layer()

    def forward(self, images: Tensor) -> Tensor:
        features = images + 1
        output = self.layer(self.layer.in_type(features)).tensor
        return (output * features.relu_()).mean((2, 3))


def test_what_is_done_in_place_to_the_input_of_a_layer_makes_no_difference() -> None:
    assert_as_one_by_one(Residual(), (images(),))


class OfPairs(nn.Module):
    """A layer that is called a second time for a target, through which nothing is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = soft_regular_layer()

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.layer(self.layer.in_type(images.flip(-1))).tensor
        return (self.layer(self.layer.in_type(images)).tensor * target).mean((2, 3))


def test_calls_without_gradients_count_for_nothing() -> None:
    assert_as_one_by_one(OfPairs(), (images(),))


def test_inputs_of_several_frames_go_through_the_network_alone() -> None:
    assert_as_one_by_one(OfFrames(), (images(6).unflatten(0, (3, 2)),))


def test_layer_that_is_called_twice_has_the_sum_of_both_gradients() -> None:
    layer = soft_regular_layer()
    assert_as_one_by_one(enn.SequentialModule(layer, enn.ReLU(layer.out_type), layer), (layer.in_type(images()),))


def test_layer_that_cannot_be_mapped_over_is_called_for_one_input_after_the_other() -> None:
    network = network_of(soft_regular_layer(), soft_regular_layer())
    # A value that is read, which torch refuses in its maps.
    network[0].register_forward_hook(lambda layer, given, output: output.tensor.sum().item() and None)
    assert_as_one_by_one(network, (network.in_type(images()),))


def test_hooks_of_users_keep_tensors_that_they_can_use() -> None:
    layer, kept = soft_regular_layer(), []
    layer.register_forward_hook(lambda layer, given, output: kept.append(output.tensor.detach()))
    network = network_of(layer)
    assert_as_one_by_one(network, (network.in_type(images()),))
    assert all(len(tensor.sum().reshape(1).tolist()) == 1 for tensor in kept)


class Named(nn.Module):
    """A network that calls its layer with a keyword, and may do so without gradients."""

    def __init__(self, context: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        super().__init__()
        self.layer, self.context = soft_regular_layer(), context

    def forward(self, features: Tensor) -> Tensor:
        with self.context():
            return self.layer(input=self.layer.in_type(features)).tensor


def test_layer_may_be_called_with_a_keyword() -> None:
    assert_as_one_by_one(Named(), (images(),))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_layers_without_gradients_say_so(context: Callable[[], AbstractContextManager[None]]) -> None:
    network = Named(context)
    with pytest.raises(ValueError, match=r"layers are called without gradients.*use_reentrant=False"):
        gradients(network, soft_parameters(network), (images(),), torch.ones_like)


class Scaled(nn.Module):
    """A network of two arguments and an option."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Classifier()

    def forward(self, features: Tensor, scale: Tensor, is_doubled: bool) -> Tensor:
        return self.network(features) * scale * (2 if is_doubled else 1)


def test_all_arguments_of_a_network_are_taken_apart() -> None:
    assert_as_one_by_one(Scaled(), (images(), torch.randn(4, 1, dtype=torch.float64), True))


def test_arguments_of_another_length_are_in_each_chunk() -> None:
    batch, weights, scale = images(4), torch.arange(3.0), torch.tensor(2.0)
    chunks = list(input_chunks((batch, weights, scale, None), 3))
    assert [len(chunk[0]) for chunk in chunks] == [3, 1]
    assert torch.equal(torch.cat([chunk[0] for chunk in chunks]), batch)
    assert all(chunk[1] is weights and chunk[2] is scale and chunk[3] is None for chunk in chunks)


def test_networks_are_left_without_hooks() -> None:
    network = Classifier().eval()
    gradients(network, soft_parameters(network), (images(),), torch.ones_like)
    assert not any(module._forward_hooks for module in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_network_that_does_not_use_its_layers_is_refused() -> None:
    network = Classifier().eval()
    network.forward = lambda features: features.mean((2, 3)) * network.head.weight.sum()
    with pytest.raises(ValueError, match="does not depend on the soft weights"):
        gradients(network, soft_parameters(network), (images(),), torch.ones_like)


@pytest.mark.parametrize("name", drop_in_networks.NETWORKS)
def test_networks_that_know_nothing_of_it_are_taken_apart(name: str) -> None:
    """Strides, skips, transposed convolutions, cells that are called again and again, gates, quotient fields."""
    network = drop_in_networks.NETWORKS[name][0](
        partial(RelaxedR2Conv, initial_softness=0.1), partial(RelaxedR2ConvTransposed, initial_softness=0.1)
    )
    assert_as_one_by_one(network, (drop_in_networks.images(name),), tolerance=SINGLE_REORDERED)
