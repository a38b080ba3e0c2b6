"""Filter banks are kept in evaluation and never stale, in training neither; a part of the battery of every form."""

import copy
import gc
import math
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import small_networks
import torch
from errors import ROUNDING, relative_error
from operations import CountOperations
from small import shake
from small_networks import ALL, EVERY_LAYER, SOFT_IN_TRANSLATION, answer, features_of, layer_of, soft_weights, uncached
from torch import Tensor, nn
from torch.nn.utils import parametrize

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.continuous.kernel import SteeredKernel
from escnn_relaxed.group.evaluation_memo import EvaluationMemo
from escnn_relaxed.group.exact_constants import ExactConstants
from escnn_relaxed.kernel.tied import strict_kernel

CONTEXTS = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
# Operations that make a filter bank or expand a bias: none of them is left where both are kept.
PRODUCTS = {"addmm", "addmm_", "baddbmm", "baddbmm_", "bmm", "dot", "matmul", "mm", "mv"}


def products(layer: nn.Module, features: Tensor | None = None) -> int:
    """The number of matrix products of a forward pass."""
    with CountOperations() as count:
        answer(layer, features)
    return sum(count.operations[name] for name in PRODUCTS)


@pytest.mark.parametrize("context", CONTEXTS)
@EVERY_LAYER
def test_bank_is_made_once_in_evaluation(form: str, context: str) -> None:
    layer = layer_of(form).eval()
    with CONTEXTS[context]():
        first = answer(layer)
        # A continuous kernel is made at every pixel where translation is soft; a linear map is a product itself.
        kept = products(layer)
        assert kept <= (form == "linear") or not (is_factored(layer) or layer.is_stationary)
        assert torch.equal(answer(layer), first)
        layer.training = True
        assert products(layer) > (form == "linear") * kept
        assert relative_error(answer(layer), first) <= ROUNDING


def is_factored(layer: RelaxedR2Conv) -> bool:
    return not isinstance(layer.kernel, SteeredKernel)


@pytest.mark.parametrize("form", SOFT_IN_TRANSLATION)
def test_factors_are_those_of_the_size_of_the_image(form: str) -> None:
    layer = layer_of(form).eval()
    images = [torch.randn(1, layer.in_type.size, *size, dtype=torch.float64) for size in [(8, 8), (8, 9), (13, 9)]]
    expected = [answer(copy.deepcopy(layer), image) for image in images]
    for number in (0, 1, 2, 0, 1, 0):
        assert torch.equal(answer(layer, images[number]), expected[number])
    assert products(layer, images[0]) == 0 or not is_factored(layer)


@pytest.mark.parametrize("form", ["soft", "soft in translation"])
def test_images_of_ever_new_sizes_leave_nothing_behind(form: str) -> None:
    """Facts of a size may be kept, one set for a size: what a second round of the same sizes adds is a leak."""
    layer, order = layer_of(form, torch.float32), random.Random(1)

    def tensors_alive() -> int:
        for side in order.sample(range(8, 38), 30):
            layer.train()(layer.in_type(features_of(layer, side, batch=1))).tensor.square().mean().backward()
            answer(layer.eval(), features_of(layer, side, batch=1))
        layer.zero_grad()
        gc.collect()
        # Asking an object for its class, as isinstance does, warns of some that torch has deprecated.
        return sum(issubclass(type(value), Tensor) for value in gc.get_objects())

    first = tensors_alive()
    assert tensors_alive() <= first + 8


@EVERY_LAYER
def test_bank_serves_no_gradient_that_is_wanted(form: str) -> None:
    """Two backward passes in evaluation, as in fine-tuning with frozen statistics; and through a frozen layer."""
    layer = layer_of(form).eval()
    answer(layer)
    features = features_of(layer).requires_grad_()
    gradients = []
    for _ in range(2):
        loss = layer(layer.in_type(features)).tensor.square().mean()
        gradients.append(torch.autograd.grad(loss, [features, *layer.parameters()]))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert all(gradient.any() for gradient in gradients[0])
    # Made in inference mode, where nothing is kept yet.
    layer.requires_grad_(False).train().eval()
    with torch.inference_mode():
        answer(layer)
    (found,) = torch.autograd.grad(layer(layer.in_type(features)).tensor.square().mean(), features)
    assert relative_error(found, gradients[0][0]) <= ROUNDING


@pytest.mark.parametrize("form", ["soft", "soft in translation", "partial"])
def test_what_is_kept_is_no_state_and_of_no_copy(form: str) -> None:
    layer = layer_of(form).eval()
    keys, size = list(layer.state_dict()), len(pickle.dumps(layer))
    answer(layer)
    assert (list(layer.state_dict()), len(pickle.dumps(layer))) == (keys, size)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        shake(other)
        assert relative_error(answer(other), uncached(other)) <= ROUNDING


def test_constants_are_once_in_a_copy_and_results_of_the_last_few_settings_are_kept() -> None:
    constants, made = ExactConstants(), []
    constants.set_constant("value", np.array([1.0, 2.0]), single=np.array([1.5, 2.5]))
    constants.set_constant("value", np.zeros(10_000))
    copied = pickle.loads(saved := pickle.dumps(constants))
    assert len(saved) < 1.2 * 8 * 10_000
    assert torch.equal(copied.value, torch.zeros(10_000))
    for setting in (*range(100), 99, 98, 0):
        constants.remembered(setting, lambda setting=setting: made.append(setting))
    assert made == [*range(100), 0]


@EVERY_LAYER
def test_threads_that_share_a_layer_see_what_another_has_changed(form: str) -> None:
    layer = layer_of(form).eval()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            shake(layer)
            expected = uncached(layer)
            answers = list(pool.map(lambda _: answer(layer), range(8)))
            assert all(relative_error(found, expected) <= ROUNDING for found in answers)


@pytest.mark.parametrize("form", ["soft", "soft in translation", "soft, continuous"])
def test_weights_that_are_plain_tensors_are_seen_in_any_part(form: str) -> None:
    """As another network makes them."""
    layer = layer_of(form).eval()
    parts = [(part, name) for part in layer.modules() for name in part._parameters if "weight" in name]
    for part, name in [(part, name) for part, name in parts if part._parameters[name] is not None]:
        value = part._parameters.pop(name).detach()
        setattr(part, name, value)
        if value.numel():
            before = answer(layer)
            value.mul_(1.3)
            assert relative_error(answer(layer), uncached(layer)) <= ROUNDING
            assert relative_error(answer(layer), before) > 1e-4, name
            # Another tensor, as replicas of a layer have.
            setattr(part, name, value / 1.3)
            assert relative_error(answer(layer), before) <= ROUNDING, name


@pytest.mark.parametrize("part", ["layer", "soft part"])
def test_layer_with_weights_of_a_parametrization_keeps_nothing(part: str) -> None:
    """Its settings may be no tensors."""

    class Scaled(nn.Module):
        scale = 1.0

        def forward(self, weights: Tensor) -> Tensor:
            return self.scale * weights

    layer = layer_of("soft").eval()
    parametrize.register_parametrization(
        layer if part == "layer" else layer.kernel.modulation, "weights", scaled := Scaled()
    )
    before = answer(layer)
    scaled.scale = 1.5
    assert relative_error(answer(layer), before) > 1e-4
    assert products(layer) > 0


@pytest.mark.parametrize(("old", "new"), [(0.0, -0.0), (1.0, 1.0 + 2**-52), (math.nan, 1.0)])
def test_large_tensors_are_compared_bit_by_bit(old: float, new: float) -> None:
    values, calls = nn.Module(), []
    values.register_buffer("value", torch.full((5000,), old, dtype=torch.float64))
    memo = EvaluationMemo()

    def build() -> int:
        calls.append(values)
        return len(calls)

    assert memo(values, build) == memo(values, build) == 1  # NaN equals itself
    values.value[7] = new
    assert memo(values, build) == memo(values, build) == 2


def test_tensor_that_is_taken_away_is_seen() -> None:
    values, memo = nn.Module(), EvaluationMemo()
    values.first, values.second = torch.ones(2), torch.ones(3)
    assert memo(values, lambda: 1) == 1
    values.second = None
    assert memo(values, lambda: 2) == 2


@pytest.mark.parametrize("kind", ["odd", "odd offset", "transposed"])
def test_large_tensors_of_any_layout_are_compared(kind: str) -> None:
    """As of slices of one vector of all parameters, which does not end or begin at a word of eight bytes."""
    tensors = {"odd": torch.zeros(5001), "odd offset": torch.zeros(5001)[1:], "transposed": torch.zeros(50, 100).mT}
    values, memo = nn.Module(), EvaluationMemo()
    values.register_buffer("value", tensors[kind])
    for number in range(2):
        values.value[-1] = number
        assert [memo(values, lambda: values.value.sum().item()) for _ in range(2)] == [values.value.sum().item()] * 2


# Ways in which the values of a tensor can be written; only the first raises its version counter.
WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "in place": lambda tensor, new: torch.no_grad()(tensor.copy_)(new),
    "by its data": lambda tensor, new: tensor.data.copy_(new),
    "by other data": lambda tensor, new: setattr(tensor, "data", new.clone()),
    "by numpy": lambda tensor, new: np.copyto(tensor.detach().numpy(), new.numpy()),
}


def other_state(layer: RelaxedR2Conv) -> dict[str, Tensor]:
    other = small_networks.another_draw("soft" if layer.is_stationary else "soft in translation")
    return other.to(layer.weights).state_dict()


def frequency_zero_and_back(layer: RelaxedR2Conv) -> None:
    """Whether a layer is soft at all may be kept as well."""
    layer.set_domain_frequency(rotation=0.0)
    answer(layer)
    layer.set_domain_frequency(rotation=0.4)


CHANGES: dict[str, Callable[[RelaxedR2Conv], object]] = {
    "step": lambda layer: small_networks.train_a_step(layer, torch.optim.Adam(layer.parameters(), lr=0.01, fused=True)),
    "loaded": lambda layer: layer.load_state_dict(other_state(layer)),
    "loaded by assignment": lambda layer: layer.load_state_dict(other_state(layer), assign=True),
    "frequency set": lambda layer: layer.set_domain_frequency(**dict.fromkeys(layer.domain_frequency, 0.45)),
    "frequency zero and back": frequency_zero_and_back,
    "dtype": lambda layer: layer.float(),
    "hardened in rotation": lambda layer: layer.harden("rotation"),
    "softness set": lambda layer: layer.set_softness(0.01),
    "hardened and dropped": lambda layer: setattr(layer, "kernel", strict_kernel(layer.kernel)),
    "replaced parameter": lambda layer: setattr(layer, "weights", nn.Parameter(2 * layer.weights.detach())),
    "parametrization": lambda layer: parametrize.register_parametrization(layer, "weights", nn.Tanh()),
}


def seen(layer: nn.Module) -> list[Tensor]:
    """The answer with gradients and without, and the softness."""
    found: Tensor = layer(layer.in_type(features_of(layer))).tensor.detach()
    return [found, answer(layer), layer.softness().detach()]


def fresh(form: str, like: nn.Module) -> nn.Module:
    """Another layer in the same state and mode."""
    other = layer_of(form).train(like.training)
    other.load_state_dict(copy.deepcopy(like.state_dict()))
    return other


@pytest.mark.parametrize(
    ("form", "write", "mode"),
    [
        *((form, write, "eval") for form in ("soft", "learned in translation") for write in WRITES),
        *((form, "by its data", mode) for form in ALL for mode in ("train", "eval")),
    ],
)
def test_write_to_any_tensor_of_the_state_is_seen(form: str, write: str, mode: str) -> None:
    """One after the other, each of those without which the answer is another."""
    layer = layer_of(form).train(mode == "train")
    tensors = {"strict weights": getattr(layer, "weights", None), "bias": layer.bias}
    tensors |= {f"soft weights {number}": weights for number, weights in enumerate(soft_weights(layer))}
    # A fixed one is a setting.
    tensors |= {f"ω′ of {name}": value for name, value in layer.domain_frequency.items() if value.requires_grad}
    for name, tensor in tensors.items():
        if tensor is not None:
            before = seen(layer)
            WRITES[write](tensor, 1.3 * tensor.detach())
            after = seen(layer)
            for found, expected in zip(after, seen(fresh(form, layer)), strict=True):
                assert (found - expected).norm() <= ROUNDING * (1 + expected.norm()), name
            # More than rounding: the largest of what would be seen if something were stale.
            assert relative_error(after[0], before[0]) > 1e-4, name


@pytest.mark.parametrize(
    ("form", "mode"), [("soft", "no_grad"), ("soft", "train"), ("soft in translation", "inference_mode")]
)
@pytest.mark.parametrize("change", CHANGES)
def test_change_of_a_layer_is_seen_at_the_next_call(form: str, change: str, mode: str, device: torch.device) -> None:
    layer = layer_of(form).to(device).train(mode == "train")
    with CONTEXTS.get(mode, torch.no_grad)():
        before = answer(layer).clone()
    CHANGES[change](layer)
    with CONTEXTS.get(mode, torch.no_grad)():
        after = answer(layer).clone()
    assert relative_error(uncached(layer), after) <= ROUNDING
    assert after.dtype == (torch.float32 if change == "dtype" else torch.float64)
    assert change == "dtype" or relative_error(after, before) > 1e-4
