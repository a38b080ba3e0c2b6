"""PyTorch around a layer: memory formats, derivatives of all kinds, parametrizations, devices."""

import copy

import pytest
import small
import torch
from errors import ROUNDING, relative_error
from small import EVERY_KIND, SIZES, build, relaxation
from small_networks import (
    A_FEW_FORMS,
    EVERY_FORM,
    EVERY_MODE,
    OnTensors,
    answer,
    features_of,
    layer_of,
    loss_and_gradients,
    train_a_step,
)
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, stack_module_state, vjp, vmap
from torch.nn.utils import parametrize

from escnn_relaxed import RelaxedR2Conv

# Torch's own, where it first goes forwards.
FORWARDS = pytest.mark.filterwarnings("ignore:`torch.jit.* is deprecated:DeprecationWarning")


@EVERY_FORM
def test_channels_last_and_sliced_images_give_the_same_answer_and_gradients(form: str) -> None:
    layer = layer_of(form).eval()
    features = features_of(layer)
    last = features.contiguous(memory_format=torch.channels_last)
    for a, b in zip(loss_and_gradients(layer, last), loss_and_gradients(layer, features), strict=True):
        assert relative_error(a, b) <= ROUNDING
    strided = torch.stack([features, features], dim=-1)[..., 0]
    assert relative_error(answer(layer, strided), answer(layer, features)) <= ROUNDING


@EVERY_KIND
def test_second_derivatives_are_right(kind: str) -> None:
    """Derivatives by every parameter, ω′ among them, and by the image."""
    in_type, out_type = small.types("C2", "regular -> regular")
    arguments = {"kernel_size": 2, "padding": 1, "learn_relaxation": True}
    layer = build(in_type, out_type, **arguments, **relaxation(kind, {"rotation": 0.2}))
    names = [name for name, _ in layer.named_parameters()]

    def of(features: Tensor, *values: Tensor) -> Tensor:
        return functional_call(
            OnTensors(layer), {f"fields.{n}": v for n, v in zip(names, values, strict=True)}, (features,)
        )

    values = [value.detach().requires_grad_() for value in layer.parameters()]
    features = small.random_input(in_type, *SIZES[kind], batch=1).requires_grad_()
    assert torch.autograd.gradgradcheck(of, (features, *values), fast_mode=True)


@EVERY_MODE
@A_FEW_FORMS
def test_ensemble_of_layers_is_mapped_over_its_parameters(form: str, mode: str) -> None:
    """``vmap`` of ``functional_call``, and of its gradient, as of any module."""
    layers = [OnTensors(layer_of(form)) for _ in range(3)]
    for seed, layer in enumerate(layers):
        torch.manual_seed(seed)
        train_a_step(layer.fields, torch.optim.SGD(layer.parameters(), lr=0.1 * (seed + 1)))
        layer.train(mode == "train")
    state, constants = stack_module_state(layers)
    skeleton = copy.deepcopy(layers[0]).to("meta")
    features = features_of(layers[0].fields)

    def loss(parameters: dict[str, Tensor], constants: dict[str, Tensor], features: Tensor) -> Tensor:
        return functional_call(skeleton, (parameters, constants), (features,)).square().mean()

    losses = vmap(loss, in_dims=(0, 0, None))(state, constants, features)
    gradients = vmap(grad(loss), in_dims=(0, 0, None))(state, constants, features)
    assert len(set(losses.tolist())) == len(layers)
    for number, layer in enumerate(layers):
        expected = layer(features).square().mean()
        assert relative_error(losses[number].detach(), expected.detach()) <= ROUNDING
        of_layer = torch.autograd.grad(expected, list(layer.parameters()))
        for (name, _), gradient in zip(layer.named_parameters(), of_layer, strict=True):
            assert relative_error(gradients[name][number].detach(), gradient) <= ROUNDING


@FORWARDS
@EVERY_MODE
@A_FEW_FORMS
def test_derivatives_go_forwards_too(form: str, mode: str) -> None:
    """The slope along a direction of all parameters and the image, against the derivatives backwards."""
    layer = OnTensors(layer_of(form).train(mode == "train"))
    features = features_of(layer.fields, batch=1)
    with torch.no_grad():
        layer(features)  # in eval mode a filter bank is kept, which has no slopes
    state = {name: value.detach() for name, value in layer.named_parameters()}

    def of(parameters: dict[str, Tensor], image: Tensor) -> Tensor:
        return functional_call(layer, parameters, (image,))

    tangents = {name: torch.randn_like(value) for name, value in state.items()}, torch.randn_like(features)
    found, slope = jvp(of, (state, features), tangents)
    assert relative_error(found, layer(features).detach()) <= ROUNDING
    cotangent = torch.randn_like(found)
    by_state, by_image = vjp(of, state, features)[1](cotangent)
    expected = (by_image * tangents[1]).sum() + sum((by_state[name] * tangents[0][name]).sum() for name in state)
    assert relative_error((slope * cotangent).sum(), expected) <= ROUNDING


class Doubled(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return 2 * values


def with_weights(layer: RelaxedR2Conv) -> list[nn.Module]:
    """The modules of a layer that hold weights which K is linear in."""
    return [module for module in layer.modules() if "weights" in dict(module.named_parameters(recurse=False))]


@A_FEW_FORMS
def test_parametrized_weights_are_those_that_count(form: str) -> None:
    layer, doubled = layer_of(form), layer_of(form)
    with torch.no_grad():
        for module in with_weights(doubled):
            module.weights.mul_(2)
    modules = with_weights(layer)
    for module in modules:
        parametrize.register_parametrization(module, "weights", Doubled())
    for mode in (True, False):
        assert relative_error(answer(layer.train(mode)), answer(doubled.train(mode))) <= ROUNDING
    with torch.no_grad():
        assert relative_error(layer.export()(features_of(layer)), answer(doubled)) <= ROUNDING
    assert layer.softness().item() == pytest.approx(doubled.softness().item())
    train_a_step(layer)
    for module in modules:
        assert module.parametrizations.weights.original.grad.any()
        parametrize.remove_parametrizations(module, "weights")
    assert layer.state_dict().keys() == doubled.state_dict().keys()


@EVERY_FORM
def test_empty_batch_and_batch_of_one_and_the_meta_device_give_what_they_should(form: str) -> None:
    """The last as counters of operations and of memory want it."""
    layer = layer_of(form).eval()
    features = features_of(layer, batch=3)
    whole = answer(layer, features)
    assert relative_error(answer(layer, features[1:2]), whole[1:2]) <= ROUNDING
    empty = layer(layer.in_type(features[:0])).tensor
    assert empty.shape == (0, *whole.shape[1:])
    gradients = torch.autograd.grad(empty.sum(), list(layer.parameters()), allow_unused=True)
    assert all(gradient is None or not gradient.any() for gradient in gradients)
    found = answer(layer.to("meta").eval(), features.to("meta"))
    assert found.is_meta
    assert (found.shape, found.dtype) == (whole.shape, whole.dtype)
