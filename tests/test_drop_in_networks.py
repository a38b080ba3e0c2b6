"""Two networks, swapped by name: trained, relaxed, hardened, traced, exported, saved."""

import copy
import functools
import io
import pickle

import pytest
import torch
from drop_in_networks import NETWORKS, images
from errors import ROUNDING, SINGLE, SINGLE_REORDERED, relative_error
from escnn.nn import R2Conv, R2ConvTransposed
from small_networks import WHAT_EXPORTERS_WARN_OF, of_onnx_runtime, tensors_of
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, export_network, harden_network, relax_network
from escnn_relaxed.network import to_escnn
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

# The other pools by norms and has gates: what escnn gives of these is in float32.
IN_DOUBLE = ("U-Net, D4",)
# Its modules share parameters, which torch.jit.trace refuses, of escnn's own layers too.
NOT_TRACED = "irreps, O(2) and SO(2)"

pytestmark = WHAT_EXPORTERS_WARN_OF
EVERY_NETWORK = pytest.mark.parametrize("name", NETWORKS)


def precise(network: nn.Module, name: str) -> nn.Module:
    return network.double() if name in IN_DOUBLE else network


def rounding(name: str, in_double: float = ROUNDING) -> float:
    return in_double if name in IN_DOUBLE else SINGLE_REORDERED


def train(network: nn.Module, name: str, steps: int = 2) -> list[float]:
    """Adam towards noise, which is not equivariant; the loss of each step."""
    parameters = [parameter for parameter in network.train().parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr=0.01)
    features = images(name).to(parameters[0].dtype)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        found = network(features)
        noise = torch.randn(found.shape, generator=torch.Generator().manual_seed(5)).to(found.dtype)
        loss = (found - noise).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def answer(network: nn.Module, name: str, batch: int = 3) -> Tensor:
    """In eval mode, in the network's dtype."""
    features = images(name, batch).to(next(network.parameters()).dtype)
    return network.eval()(features)


def parameters_of(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


@functools.cache
def _trained(name: str, is_strict: bool) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = (R2Conv, R2ConvTransposed) if is_strict else (RelaxedR2Conv, RelaxedR2ConvTransposed)
        network = NETWORKS[name][0](*layers)
        train(network, name)
        return network


def trained(name: str) -> nn.Module:
    """With relaxed layers as they are by default, after two steps."""
    return copy.deepcopy(_trained(name, is_strict=False))


def strict(name: str) -> nn.Module:
    """With escnn's layers, after two steps."""
    return copy.deepcopy(_trained(name, is_strict=True))


@EVERY_NETWORK
def test_network_of_which_nothing_is_relaxed_is_that_of_escnn(name: str) -> None:
    layers = [functools.partial(layer, relax=None) for layer in (RelaxedR2Conv, RelaxedR2ConvTransposed)]
    swapped = NETWORKS[name][0](*layers)
    swapped.load_state_dict(strict(name).state_dict())
    networks = precise(swapped, name), precise(strict(name), name)
    close = rounding(name, SINGLE)
    assert relative_error(*(answer(network, name) for network in networks)) <= close
    losses, expected = (train(network, name) for network in networks)
    assert losses == pytest.approx(expected, rel=close)


def assert_soft_where_it_can_be(network: nn.Module) -> None:
    """Each layer is soft but those that cannot be, as 1×1 kernels between trivial fields."""
    layers = [layer for _, layer in named_relaxed_layers(network)]
    assert all((layer.softness().item() > 0) != bool(layer.cannot_be_soft) for layer in layers)
    assert any(layer.softness().item() > 0 for layer in layers)


@EVERY_NETWORK
def test_network_is_soft_by_default_and_learns_all_of_its_few_more_parameters(name: str) -> None:
    network = trained(name)
    losses = train(network, name)
    assert all(torch.tensor(losses).isfinite())
    for key, parameter in network.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key
    assert_soft_where_it_can_be(network)
    # The networks are small; 1.08 to 1.23 times are found.
    assert parameters_of(strict(name)) < parameters_of(network) <= 1.3 * parameters_of(strict(name))


@EVERY_NETWORK
def test_trained_network_is_relaxed_and_hardened_to_itself_and_later_to_escnns_own(name: str) -> None:
    original = precise(strict(name), name)
    relaxed = relax_network(original)
    assert relative_error(answer(relaxed, name), answer(original, name)) <= rounding(name, SINGLE)
    assert relative_error(answer(harden_network(relaxed), name), answer(relaxed, name)) <= rounding(name)
    train(relaxed, name)
    assert_soft_where_it_can_be(relaxed)
    hardened = harden_network(relaxed)
    own = to_escnn(hardened)
    assert not list(named_relaxed_layers(own))
    assert relative_error(answer(own, name), answer(hardened, name)) <= rounding(name)


@EVERY_NETWORK
def test_exported_network_computes_the_same_and_is_saved_with_its_class(name: str) -> None:
    network = precise(trained(name), name)
    exported = export_network(network)
    assert network.training
    assert not any(module.training for module in exported.modules())
    assert not list(named_relaxed_layers(exported))
    assert not {t.data_ptr() for t in tensors_of(network)} & {t.data_ptr() for t in tensors_of(exported)}
    for each in (exported, pickle.loads(pickle.dumps(exported))):
        assert relative_error(answer(each, name), answer(network, name)) <= rounding(name)


def answer_of_onnx_runtime(network: nn.Module, name: str) -> Tensor:
    """On another batch size than the one exported with."""
    file, axes = io.BytesIO(), {"images": {0: "batch"}}
    torch.onnx.export(network, (images(name),), file, dynamo=False, input_names=["images"], dynamic_axes=axes)
    return of_onnx_runtime(file, images(name, 5))


@EVERY_NETWORK
@torch.no_grad()
def test_trace_and_onnx_runtime_compute_the_same_for_any_batch_size(name: str) -> None:
    network = trained(name).eval()
    expected = answer(network, name, 5)
    for each in (network, export_network(network)):
        assert relative_error(answer_of_onnx_runtime(each, name), expected) <= SINGLE_REORDERED
    for each in (network, strict(name).eval()):
        if name == NOT_TRACED:
            with pytest.raises(ValueError, match="TracedModules don't support parameter sharing between modules"):
                torch.jit.trace(each, images(name))
        else:
            traced = torch.jit.trace(each, images(name))
            assert relative_error(answer(traced, name, 5), answer(each, name, 5)) <= SINGLE_REORDERED
