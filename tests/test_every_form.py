"""What each form of a layer inherits: one battery, in which a new form is a line in ``small_networks``."""

import copy
from functools import partial

import pytest
import small
import small_networks as forms
import torch
from errors import BROKEN, FEW_TERMS, ROUNDING, SINGLE_REORDERED, largest_error, relative_error
from group_average import check_strict_part
from small import EVERY_KERNEL, TORUS, shake, soft_layer
from small_networks import EVERY_LAYER, answer, answer_in_eval, features_of, layer_of, tensors_of
from torch import Tensor, nn
from torch.func import functional_call

from escnn_relaxed import RelaxedR2Conv, harden_network

# Means of linear maps are in ``test_relaxed_linear``.
STATIONARY = [form for form in forms.ALL if "translation" not in form and form != "linear"]


@EVERY_LAYER
@pytest.mark.parametrize(("save", "load"), [("train", "eval"), ("eval", "train")])
def test_any_mode_loads_the_state_of_any_mode(form: str, save: str, load: str) -> None:
    layer, other = layer_of(form).train(save == "train"), forms.another_draw(form).train(load == "train")
    answer(layer)  # what is kept, if it were state, would be there now
    expected = answer_in_eval(layer)
    assert relative_error(answer_in_eval(other), expected) > BROKEN
    state = forms.through_a_file(layer.state_dict(), weights_only=True)
    assert list(state) == list(other.state_dict())
    other.load_state_dict(state)
    assert other.training == (load == "train")
    assert torch.equal(answer_in_eval(other), expected)


@EVERY_LAYER
@forms.EVERY_MODE
@pytest.mark.parametrize("how", forms.COPIES)
def test_copies_compute_the_same_and_are_of_their_own(form: str, mode: str, how: str) -> None:
    layer = layer_of(form)
    forms.train_a_step(layer)
    layer.harden("reflection")
    answer(layer.train(mode == "train"))
    other = forms.COPIES[how](layer)
    assert other.training == layer.training
    assert (other.in_type, other.out_type, other.hardened) == (layer.in_type, layer.out_type, layer.hardened)
    assert other.describe() == layer.describe()
    assert not {of.data_ptr() for of in tensors_of(layer)} & {of.data_ptr() for of in tensors_of(other)}
    expected = answer_in_eval(layer)
    shake(layer)
    assert torch.equal(answer_in_eval(other), expected)


@EVERY_LAYER
@pytest.mark.parametrize("subgroups", [(), ("rotation",)], ids=["all", "rotation"])
def test_layer_that_loads_the_state_of_a_hardened_one_is_hardened(form: str, subgroups: tuple[str, ...]) -> None:
    layer, other = layer_of(form), forms.another_draw(form)
    layer.harden(*subgroups)
    other.load_state_dict(forms.through_a_file(layer.state_dict(), weights_only=True))
    assert other.hardened == layer.hardened
    assert torch.equal(answer_in_eval(other), answer_in_eval(layer))
    other.load_state_dict(layer_of(form).state_dict())
    assert other.hardened == ()


@pytest.mark.parametrize("form", STATIONARY)
@pytest.mark.parametrize("subgroups", [(), ("rotation",), ("reflection",), ("rotation", "reflection")])
def test_strict_part_is_the_mean_over_the_group(form: str, subgroups: tuple[str, ...]) -> None:
    layer = layer_of(form)
    softness = check_strict_part(layer, *subgroups)
    is_soft = "strict" not in form and (not subgroups or set(subgroups) & set(layer.relaxed_subgroups))
    assert softness > 1e-3 if is_soft else softness == 0
    assert layer.softness("translation").item() == 0


@EVERY_LAYER
def test_hardened_layer_is_equivariant_and_stays_so_in_training(form: str) -> None:
    layer = layer_of(form)
    features, of_features = features_of(layer), {"elements": lambda space: list(space.fibergroup.elements)}
    error = partial(largest_error, features=features, **(of_features if form == "linear" else {}))
    hardened = harden_network(layer)
    assert hardened.softness().item() == 0
    assert error(hardened) <= ROUNDING
    # What no strict layer can prefer.
    found = hardened(hardened.in_type(features)).tensor
    nn.functional.mse_loss(found, torch.randn_like(found)).backward()
    torch.optim.SGD(hardened.parameters(), lr=0.1).step()
    assert error(hardened) <= ROUNDING
    assert hardened.softness().item() == 0
    # The layer itself is left as it is.
    assert "strict" in form or error(layer) > BROKEN
    assert not {of.data_ptr() for of in tensors_of(layer)} & {of.data_ptr() for of in tensors_of(hardened)}


@forms.EVERY_SOFT_LAYER
def test_hardening_in_place_keeps_parameters_and_state(form: str) -> None:
    """An optimiser that holds them goes on."""
    layer = layer_of(form).eval()
    soft, expected = answer(layer), answer(harden_network(layer))
    parameters, keys = dict(layer.named_parameters()), list(layer.state_dict())
    layer.harden()
    assert relative_error(answer(layer), expected) <= ROUNDING
    assert relative_error(soft, expected) > BROKEN
    assert [key for key in layer.state_dict() if key != "hardened_in"] == keys
    assert all(parameters[name] is parameter for name, parameter in layer.named_parameters())


class Softness(nn.Module):
    """The softness of a layer as the answer of a module."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> Tensor:
        softness: Tensor = self.layer.softness()
        return softness


def small_features(form: str) -> Tensor:
    layer = layer_of(form)
    return features_of(layer, side=9 if "translation" in form else 3, batch=1)


@EVERY_LAYER
def test_gradients_are_those_of_finite_differences(form: str) -> None:
    """torch's gradcheck in float64 (atol 1e-5, rtol 1e-3, its defaults) for the image and every parameter."""
    layer = layer_of(form)
    names = [name for name, _ in layer.named_parameters()]

    def call(values: Tensor, *parameters: Tensor) -> Tensor:
        state = dict(zip(names, parameters, strict=True))
        return functional_call(layer, state, (layer.in_type(values),)).tensor

    parameters = [parameter.detach().clone().requires_grad_() for parameter in layer.parameters()]
    # Random combinations of all entries of a Jacobian: they miss an error with probability 0.
    assert torch.autograd.gradcheck(call, [small_features(form).requires_grad_(), *parameters], fast_mode=True)


@forms.EVERY_SOFT_LAYER
def test_gradients_of_softness_are_those_of_finite_differences(form: str) -> None:
    module = Softness(layer_of(form))
    names = [name for name, _ in module.named_parameters() if name != "layer.bias"]
    parameters = [module.get_parameter(name).detach().clone().requires_grad_() for name in names]

    def call(*values: Tensor) -> Tensor:
        return functional_call(module, dict(zip(names, values, strict=True)), ())

    assert torch.autograd.gradcheck(call, parameters, fast_mode=True)


@EVERY_LAYER
def test_constants_are_exact_whatever_the_dtype_was(form: str) -> None:
    """The same state after a walk through other dtypes is the same layer."""
    layer = layer_of(form)
    expected, state = answer(layer), copy.deepcopy(layer.state_dict())
    for dtype in (torch.float16, torch.float32, torch.bfloat16, torch.float64):
        layer.to(dtype)
    layer.load_state_dict(state)
    assert relative_error(answer(layer), expected) <= FEW_TERMS
    # float32 is as near as its rounding.
    assert relative_error(answer(layer.float()).double(), expected) <= SINGLE_REORDERED


# Input, filter bank and output are rounded once each: some units of the last place, 2^-9 and 2^-12.
PRECISIONS = {torch.bfloat16: 2**-7, torch.float16: 2**-10}


@EVERY_LAYER
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_autocast_rounds_the_convolution_alone(form: str, dtype: torch.dtype) -> None:
    layer = layer_of(form, torch.float32)
    features = features_of(layer)
    expected, gradients, softness = answer(layer), forms.loss_and_gradients(layer, features), layer.softness()
    with torch.autocast("cpu", dtype):
        found, found_gradients = answer(layer), forms.loss_and_gradients(layer, features)
        assert torch.equal(layer.softness(), softness)
        bias = layer.expanded_bias
    assert bias is None or bias.dtype == torch.float32
    assert found.dtype == dtype
    assert relative_error(found.float(), expected) <= PRECISIONS[dtype]
    assert all(gradient.dtype == torch.float32 for gradient in found_gradients)
    # The gradient of a square has the error of the output, and as much of its own. All parameters are in one vector,
    # since the gradients that are small beside the others are differences of larger ones.
    for part in (slice(0, 1), slice(1, 2), slice(2, None)):
        a, b = (torch.cat([value.flatten() for value in values[part]]) for values in (found_gradients, gradients))
        assert relative_error(a, b) <= 4 * PRECISIONS[dtype]


@forms.EVERY_SOFT_LAYER
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_softness_is_known_in_any_precision(form: str, dtype: torch.dtype) -> None:
    layer = layer_of(form)
    exact = layer.softness().item()
    # Weights of order one are rounded: to 8 bits, 1 % of the energy and as much again in ω′.
    assert layer.to(dtype).softness().item() == pytest.approx(exact, rel=1e-4 if dtype == torch.float32 else 0.05)
    layer.harden()
    assert layer.softness().item() == 0


@pytest.mark.parametrize("form", forms.AT_PIXELS)
def test_kernel_at_every_pixel_is_not_exported(form: str) -> None:
    with pytest.raises(RuntimeError, match="has no form on plain tensors"):
        layer_of(form).export()


@forms.EVERY_EXPORTED
@forms.EVERY_MODE
def test_exported_layer_gives_the_same_numbers_and_leaves_the_layer_alone(form: str, mode: str) -> None:
    layer = layer_of(form).train(mode == "train")
    features, expected = features_of(layer), answer_in_eval(layer)
    with forms.left_alone(layer):
        exported = layer.export()
    assert not exported.training
    assert not {of.data_ptr() for of in tensors_of(layer)} & {of.data_ptr() for of in tensors_of(exported)}
    found = exported(features).detach()
    assert relative_error(found, expected) <= ROUNDING
    shake(layer)
    assert torch.equal(exported(features), found)
    layer.harden()
    assert relative_error(layer.export()(features).detach(), answer_in_eval(layer)) <= ROUNDING


@forms.EVERY_EXPORTED
def test_exported_layer_can_be_trained_and_saved(form: str) -> None:
    exported, features = layer_of(form).export(), features_of(layer_of(form))
    other, found = layer_of(form).export(), exported(features)
    found.square().mean().backward()
    with torch.no_grad():
        for parameter in exported.parameters():
            parameter.sub_(0.1 * parameter.grad)
    assert relative_error(exported(features).detach(), found.detach()) > 1e-3  # a step of 0.1; found: 6e-3 and more
    other.load_state_dict(exported.state_dict())
    assert torch.equal(other(features), exported(features))


EVERYTHING = {"rotation": 0.2, "reflection": 0.5, "translation": 0.3}


def layer_soft_in_everything(soft_part: str, **arguments: object) -> RelaxedR2Conv:
    return soft_layer("D4", "regular -> irreps", soft_part=soft_part, padding=1, **{"relax": EVERYTHING, **arguments})


def test_hardened_layer_is_the_layer_without_relaxation() -> None:
    layer, plain = harden_network(layer_soft_in_everything("tied")), layer_soft_in_everything("tied", relax=None)
    assert type(layer) is type(plain)
    assert repr(layer) == repr(plain)
    assert list(layer.state_dict()) == list(plain.state_dict())
    assert set(layer.state_dict()) == {"weights", "bias"}
    assert (layer.domain_frequency, layer.is_stationary, layer.hardened) == ({}, True, ())
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(answer(plain), answer(layer))


@EVERY_KERNEL
def test_hardened_layer_stays_strict_whatever_its_frequency(soft_part: str) -> None:
    layer = harden_network(layer_soft_in_everything(soft_part), ("rotation", "reflection"))
    layer.set_domain_frequency(rotation=0.3, reflection=1.0, translation=0.5)
    assert layer.softness("rotation").item() <= 1e-15
    assert layer.softness("translation").item() > 1e-3
    assert largest_error(layer, small.random_input(layer.in_type, 9, 9)) <= ROUNDING


def test_module_that_appears_twice_is_hardened_once_and_unknown_subgroups_are_named() -> None:
    layer = layer_soft_in_everything("tied")
    hardened = harden_network(torch.nn.ModuleDict({"first": layer, "second": layer}))
    assert hardened["first"] is hardened["second"]
    for call in (layer.softness, layer.harden, lambda *names: harden_network(layer, names)):
        for name in ("rotations", ""):
            with pytest.raises(ValueError, match=rf"\['rotation', 'reflection', 'translation'\], got '{name}'"):
                call("rotation", name)


@pytest.mark.parametrize("subgroup", ["rotation", "translation"])
def test_every_parameter_of_a_hardened_layer_has_a_gradient(subgroup: str) -> None:
    """Distributed training waits for the gradient of each parameter."""
    relax = {"rotation": 0.2, "translation": 0.3}
    layer = soft_layer("C4", "trivial -> regular", relax=relax, soft_part="tied", learn_relaxation=True, **TORUS)
    layer.harden(subgroup)
    layer(layer.in_type(features_of(layer))).tensor.sum().backward()
    assert [name for name, parameter in layer.named_parameters() if parameter.grad is None] == []
