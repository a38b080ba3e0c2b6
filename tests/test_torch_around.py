"""PyTorch around a layer: memory formats, derivatives of all kinds, parametrizations, devices, processes."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import small
import small_networks as forms
import torch
from errors import ROUNDING, relative_error
from escnn.nn import EquivariantModule, R2Conv
from small import EVERY_KIND, SIZES, build, relaxation, volume_layer, volume_type
from small_networks import OnTensors, answer, features_of, layer_of
from torch import Tensor, distributed, nn
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call, grad, jvp, stack_module_state, vjp, vmap
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize
from two_processes import PROCESSES, in_two_processes

from escnn_relaxed import RelaxedR2Conv

# Torch's own, where it first goes forwards.
FORWARDS = pytest.mark.filterwarnings("ignore:`torch.jit.* is deprecated:DeprecationWarning")


@forms.EVERY_FORM
def test_channels_last_and_sliced_images_give_the_same_answer_and_gradients(form: str) -> None:
    layer = layer_of(form).eval()
    features = features_of(layer)
    last = features.contiguous(memory_format=torch.channels_last)
    for a, b in zip(forms.loss_and_gradients(layer, last), forms.loss_and_gradients(layer, features), strict=True):
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


@forms.EVERY_MODE
@forms.A_FEW_FORMS
def test_ensemble_of_layers_is_mapped_over_its_parameters(form: str, mode: str) -> None:
    """``vmap`` of ``functional_call``, and of its gradient, as of any module."""
    layers = [OnTensors(layer_of(form)) for _ in range(3)]
    for seed, layer in enumerate(layers):
        torch.manual_seed(seed)
        forms.train_a_step(layer.fields, torch.optim.SGD(layer.parameters(), lr=0.1 * (seed + 1)))
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
@torch.no_grad()
def test_dual_weights_have_a_slope_where_their_bank_is_kept() -> None:
    """K is linear in the strict weights."""
    layer = layer_of("soft").eval()
    features = features_of(layer)
    weights = layer._parameters.pop("weights").detach()

    def answer_with(given: Tensor) -> Tensor:
        layer.weights = given
        return layer(layer.in_type(features)).tensor

    expected = answer_with(0 * weights).neg() + answer_with(weights)
    with forward_ad.dual_level():
        slope = forward_ad.unpack_dual(answer_with(forward_ad.make_dual(weights, weights))).tangent
    assert relative_error(slope, expected) <= ROUNDING


@FORWARDS
@forms.EVERY_MODE
@forms.A_FEW_FORMS
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


@forms.A_FEW_FORMS
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
    forms.train_a_step(layer)
    for module in modules:
        assert module.parametrizations.weights.original.grad.any()
        parametrize.remove_parametrizations(module, "weights")
    assert layer.state_dict().keys() == doubled.state_dict().keys()


@forms.EVERY_FORM
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


# Forms whose soft part does nothing for a while.
IDLE: dict[str, Callable[[RelaxedR2Conv], None]] = {
    "soft, at zero": lambda layer: layer.set_domain_frequency(rotation=0.0),
    "learned, hardened": RelaxedR2Conv.harden,
}
TRAINED = ("R2Conv", "of volumes", "learned", "soft in translation, continuous", "learned in translation", *IDLE)
STEPS = 3


def start(form: str) -> EquivariantModule:
    """The same layer in every call."""
    torch.manual_seed(1)
    if form == "R2Conv":
        # With a basis of its own, whose cast reaches no other test.
        return R2Conv(*small.types("C4", "regular -> regular"), 3, recompute=True).double()
    if form == "of volumes":
        return volume_layer(volume_type("octahedral"), kernel=None)
    layer = layer_of(form.split(", at")[0].split(", hardened")[0])
    IDLE.get(form, lambda layer: None)(layer)
    return layer


def train_together(model: nn.Module, features: Tensor) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimiser.zero_grad()
        (model(features) - 1).square().mean().backward()
        optimiser.step()


def _train_a_part(rank: int, layers: dict[str, EquivariantModule]) -> dict[str, dict[str, Tensor]]:
    found = {}
    for name, shared in layers.items():
        # torch sends tensors to processes as memory that they share.
        layer = copy.deepcopy(shared)
        model = DistributedDataParallel(OnTensors(layer))
        train_together(model, features_of(layer, batch=2 * PROCESSES).chunk(PROCESSES)[rank])
        found[name] = layer.state_dict()
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    """Return the final states of each process: form → state."""
    layers = {form: start(form) for form in TRAINED}
    return in_two_processes(_train_a_part, tmp_path_factory.mktemp("distributed"), layers)


@pytest.mark.slow
@pytest.mark.parametrize("form", TRAINED)
def test_two_processes_train_to_the_parameters_of_one_with_the_joined_batch(form: str, trained) -> None:
    layer = start(form)
    before = {name: value.detach().clone() for name, value in layer.named_parameters()}
    train_together(OnTensors(layer), features_of(layer, batch=2 * PROCESSES))
    for name, value in layer.state_dict().items():
        assert torch.equal(trained[0][form][name], trained[1][form][name])
        assert (trained[0][form][name].double() - value.double()).abs().max() <= ROUNDING
        is_idle = form in IDLE and name.startswith("kernel.")
        assert name not in before or is_idle or relative_error(value, before[name]) > 1e-3


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("form", ["learned", "learned in translation"])
def test_sharded_layer_has_a_text_and_gradients(form: str) -> None:
    """Each process has a part of ω′, which the text does not read."""
    # FSDP looks for tensors among what a module returns, and finds none in a GeometricTensor.
    sharded_layer, whole = OnTensors(layer_of(form)), OnTensors(layer_of(form))
    fully_shard(sharded_layer, mesh=init_device_mesh("cpu", (1,)))
    assert "'not here'" in repr(sharded_layer)
    for each in (sharded_layer, whole):
        each(features_of(whole.fields)).square().mean().backward()
    for sharded, parameter in zip(sharded_layer.parameters(), whole.parameters(), strict=True):
        assert relative_error(sharded.grad.full_tensor(), parameter.grad) <= ROUNDING
