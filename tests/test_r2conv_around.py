"""PyTorch around escnn's own R2Conv, for the table in the docs: what works, and what fails."""

from __future__ import annotations

import battery
import pytest
import torch
from escnn.nn import R2Conv
from forms import features_of
from layers import shake
from tolerances import SINGLE_REORDERED
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint
from transformations import relative_error

EVERY_MODE = pytest.mark.parametrize("mode", ["train", "eval"])


class Plain(nn.Module):
    """A layer from tensor to tensor. Its basis is its own: casts of shared ones would reach other tests."""

    def __init__(self, mode: str = "train", **arguments: object) -> None:
        super().__init__()
        self.layer = R2Conv(*battery.types("C4", "two regular -> regular + regular"), 3, recompute=True, **arguments)
        shake(self.layer)
        self.train(mode == "train")

    def forward(self, features: Tensor) -> Tensor:
        return self.layer(self.layer.in_type(features)).tensor


def detached_error(found: Tensor, expected: Tensor) -> float:
    return relative_error(found.detach(), expected.detach())


@EVERY_MODE
@pytest.mark.parametrize("groups", [1, 2])
def test_r2conv_takes_channels_last_images_and_empty_batches(mode: str, groups: int) -> None:
    module = Plain(mode, groups=groups)
    features = features_of(module.layer)
    last = features.contiguous(memory_format=torch.channels_last)
    expected = module(features)
    assert detached_error(module(last), expected) <= SINGLE_REORDERED
    assert module(features[:0]).shape == (0, *expected.shape[1:])


def test_r2conv_has_second_derivatives_in_training() -> None:
    module = Plain().double()
    features = features_of(module.layer, side=3, batch=1).requires_grad_()

    def of(features: Tensor, weights: Tensor) -> Tensor:
        return functional_call(module, {"layer.weights": weights}, (features,))

    assert torch.autograd.gradgradcheck(of, (features, module.layer.weights), fast_mode=True)


def test_ensemble_of_r2convs_is_mapped_over_its_parameters_in_training() -> None:
    modules = [Plain() for _ in range(3)]
    features = features_of(modules[0].layer)
    state, constants = stack_module_state(modules)
    found = vmap(lambda *tensors: functional_call(modules[0], tensors, (features,)))(state, constants)
    for number, module in enumerate(modules):
        assert detached_error(found[number], module(features)) <= SINGLE_REORDERED


@EVERY_MODE
def test_r2conv_has_no_gradients_of_each_sample_by_vmap(mode: str) -> None:
    module = Plain(mode)
    parameters = {name: value.detach() for name, value in module.named_parameters()}

    def loss(parameters: dict[str, Tensor], image: Tensor) -> Tensor:
        return functional_call(module, parameters, (image[None],)).square().mean()

    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        vmap(grad(loss), in_dims=(None, 0))(parameters, features_of(module.layer))


def test_checkpoint_recomputes_r2conv_in_training() -> None:
    module = Plain()
    features = features_of(module.layer)
    gradients = []
    for found in (module(features), checkpoint(module, features, use_reentrant=False)):
        gradients.append(torch.autograd.grad(found.square().sum(), module.layer.weights)[0])
    assert torch.equal(*gradients)


class Doubled(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return 2 * values


@EVERY_MODE
def test_parametrization_of_r2conv_is_seen_in_training_alone(mode: str) -> None:
    module = Plain(mode)
    features = features_of(module.layer)
    with torch.no_grad():
        module.layer.bias.zero_()
        expected = 2 * module.train()(features)
        module.train(mode == "train")
        parametrize.register_parametrization(module.layer, "weights", Doubled())
        seen = relative_error(module(features), expected) <= SINGLE_REORDERED
    assert seen == (mode == "train")


def test_weight_norm_of_r2conv_keeps_its_function_in_training() -> None:
    module = Plain()
    features = features_of(module.layer)
    expected = module(features)
    parametrizations.weight_norm(module.layer, "weights")
    assert detached_error(module(features), expected) <= SINGLE_REORDERED


def test_deterministic_algorithms_take_r2conv() -> None:
    module = Plain()
    features = features_of(module.layer)
    torch.use_deterministic_algorithms(True)
    try:
        gradients = [torch.autograd.grad(module(features).square().sum(), module.layer.weights)[0] for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(*gradients)
