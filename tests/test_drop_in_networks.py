"""Thirteen kinds of networks, swapped by name: trained, relaxed, hardened, traced, exported, saved, averaged.

The table of docs/how-to/migrate.md has a row for each network and a column for each check, and is held to this file.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import onnxruntime
import pytest
import torch
from drop_in_networks import GALAXY_BASIS, NETWORKS, images
from escnn.nn import R2Conv, R2ConvTransposed
from forms import tensors_of
from layers import shake
from networks_to_export import BATCH, WHAT_EXPORTERS_WARN_OF
from tolerances import ROUNDING, SINGLE, SINGLE_REORDERED, SLIGHTLY_BROKEN
from torch import Tensor, nn
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, export_network, harden_network, relax_network
from escnn_relaxed.network import to_escnn
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

# The others pool over groups or by norms, have gates or vector fields: what escnn gives of these is in float32.
IN_DOUBLE = (
    "segmentation U-Net, D4, upsampling",
    "U-Net, C4, transposed convolutions",
    "ConvLSTM, C4",
    "SO(2), Fourier",
    "circular autoencoder, C4, groups",
    "key points, C4, transform",
)
# to_escnn asks for the arguments that a basis was built with.
BASES = {"galaxies, D8, arguments of the basis": GALAXY_BASIS}

pytestmark = WHAT_EXPORTERS_WARN_OF


Check = Callable[[str], None]


@dataclass(frozen=True)
class Failure:
    """The error with which a check fails for a network."""

    error: type[Exception]
    message: str


# escnn's transform turns images in NumPy: what comes out is constant for those who trace.
_OF_CONCAT = Failure(onnxruntime.capi.onnxruntime_pybind11_state.Fail, "Non concat axis dimensions must match")
FAILURES = {
    ("SO(2), gates and norms", "trace"): Failure(
        ValueError, "TracedModules don't support parameter sharing between modules"
    ),
    ("key points, C4, transform", "trace"): Failure(
        RuntimeError, "Sizes of tensors must match except in dimension 1. Expected size 5 but got size 3"
    ),
    ("key points, C4, transform", "ONNX"): _OF_CONCAT,
    ("key points, C4, transform", "… to ONNX"): _OF_CONCAT,
    ("key points, C4, transform", "… by dynamo"): Failure(
        torch.onnx.OnnxExporterError, r"\.numpy\(\) is not supported for tensor subclasses"
    ),
}
CHECKS: dict[str, Check] = {}


def in_every_network(check: str, *marks: pytest.MarkDecorator) -> Callable[[Check], Check]:
    """A check for each of the thirteen, which must fail where ``FAILURES`` says so."""

    def decorate(test: Check) -> Check:
        CHECKS[check] = test

        @functools.wraps(test)
        def cell(name: str) -> None:
            failure = FAILURES.get((name, check))
            expected = pytest.raises(failure.error, match=failure.message) if failure else contextlib.nullcontext()
            with expected:
                test(name)

        return pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name in NETWORKS])(cell)

    return decorate


def precise(network: nn.Module, name: str) -> nn.Module:
    """In float64, where the network can be."""
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


@functools.cache
def _trained(name: str, is_strict: bool) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = (R2Conv, R2ConvTransposed) if is_strict else (RelaxedR2Conv, RelaxedR2ConvTransposed)
        network = NETWORKS[name](*layers)
        train(network, name)
        return network


def trained(name: str) -> nn.Module:
    """With relaxed layers as they are by default, after two steps."""
    return copy.deepcopy(_trained(name, is_strict=False))


def strict(name: str) -> nn.Module:
    """With escnn's layers, after two steps."""
    return copy.deepcopy(_trained(name, is_strict=True))


@in_every_network("nothing relaxed")
def test_network_of_which_nothing_is_relaxed_is_that_of_escnn(name: str) -> None:
    layers = [functools.partial(layer, relax=None) for layer in (RelaxedR2Conv, RelaxedR2ConvTransposed)]
    swapped = NETWORKS[name](*layers)
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


@in_every_network("defaults")
def test_network_is_soft_by_default_and_learns_all_of_its_parameters(name: str) -> None:
    network = trained(name)
    losses = train(network, name)
    assert all(torch.tensor(losses).isfinite())
    for key, parameter in network.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key
    assert_soft_where_it_can_be(network)


@in_every_network("relaxed, hardened")
def test_trained_network_is_relaxed_and_hardened_to_itself(name: str) -> None:
    original = precise(strict(name), name)
    relaxed = relax_network(original)
    hardened = harden_network(relaxed)
    assert relative_error(answer(relaxed, name), answer(original, name)) <= rounding(name, SINGLE)
    assert relative_error(answer(hardened, name), answer(relaxed, name)) <= rounding(name)
    train(relaxed, name)
    assert_soft_where_it_can_be(relaxed)


@in_every_network("`to_escnn`")
def test_hardened_network_is_escnns_own(name: str) -> None:
    hardened = harden_network(precise(trained(name), name))
    own = to_escnn(hardened, **BASES.get(name, {}))
    assert not list(named_relaxed_layers(own))
    assert relative_error(answer(own, name), answer(hardened, name)) <= rounding(name)


@in_every_network("trace")
def test_trace_is_for_any_batch_size(name: str) -> None:
    network = trained(name).eval()
    with torch.no_grad():
        traced = torch.jit.trace(network, images(name))
    assert relative_error(answer(traced, name, 5), answer(network, name, 5)) <= SINGLE_REORDERED


def answer_of_onnx_runtime(network: nn.Module, name: str, dynamo: bool) -> Tensor:
    """On another batch size than the one exported with."""
    file = io.BytesIO()
    if dynamo:
        shapes = {"dynamic_shapes": ({0: BATCH},), "input_names": ["images"], "verbose": False}
        torch.onnx.export(network, (images(name),), dynamo=True, **shapes).save(file)
    else:
        axes = {"images": {0: "batch"}}
        torch.onnx.export(network, (images(name),), file, dynamo=False, input_names=["images"], dynamic_axes=axes)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"images": images(name, 5).numpy()})
    return torch.from_numpy(found)


@in_every_network("ONNX")
def test_onnx_runtime_computes_the_same(name: str) -> None:
    network = trained(name).eval()
    assert relative_error(answer_of_onnx_runtime(network, name, False), answer(network, name, 5)) <= SINGLE_REORDERED


@in_every_network("`export_network`")
def test_exported_network_computes_the_same(name: str) -> None:
    network = precise(trained(name), name)
    exported = export_network(network)
    assert not list(named_relaxed_layers(exported))
    assert not {t.data_ptr() for t in tensors_of(network)} & {t.data_ptr() for t in tensors_of(exported)}
    assert relative_error(answer(exported, name), answer(network, name)) <= rounding(name)


@in_every_network("… to ONNX")
def test_exported_network_in_onnx_runtime_computes_the_same(name: str) -> None:
    network = trained(name)
    found = answer_of_onnx_runtime(export_network(network), name, False)
    assert relative_error(found, answer(network, name, 5)) <= SINGLE_REORDERED


@in_every_network("… by dynamo", pytest.mark.slow)
def test_exported_network_in_onnx_runtime_by_dynamo_computes_the_same(name: str) -> None:
    network = trained(name)
    found = answer_of_onnx_runtime(export_network(network), name, True)
    assert relative_error(found, answer(network, name, 5)) <= SINGLE_REORDERED


@in_every_network("state")
def test_state_is_saved_in_one_mode_and_loaded_in_the_other(name: str) -> None:
    network = trained(name)
    expected = answer(network, name)
    other = copy.deepcopy(network)
    for mode in (True, False):
        shake(other)
        assert relative_error(answer(other, name), expected) > SLIGHTLY_BROKEN
        file = io.BytesIO()
        torch.save(network.train(mode).state_dict(), file)
        file.seek(0)
        other.train(not mode).load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(answer(other, name), expected)


@in_every_network("copies")
def test_network_is_copied_and_pickled_after_eval(name: str) -> None:
    network = trained(name)
    expected = answer(network, name)
    for copied in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(answer(copied, name), expected)


@in_every_network("averages")
def test_average_of_models_is_the_network_of_the_averages(name: str) -> None:
    network = trained(name)
    averages = torch.optim.swa_utils.AveragedModel(network, use_buffers=True)
    states = []
    for _ in range(2):
        train(network, name, steps=1)
        states.append({key: value.clone() for key, value in network.state_dict().items()})
        averages.update_parameters(network)
        # Kept results of one average do not fit the next.
        answer(averages, name)
    mean = {key: (value + states[1][key]) / 2 for key, value in states[0].items()}
    network.load_state_dict({key: value.to(states[0][key].dtype) for key, value in mean.items()})
    assert relative_error(answer(averages, name), answer(network, name)) <= SINGLE_REORDERED


@pytest.mark.parametrize(("name", "check"), FAILURES)
def test_what_fails_does_so_with_escnns_own_layers(name: str, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "trained", strict)
    failure = FAILURES[name, check]
    with pytest.raises(failure.error, match=failure.message):
        CHECKS[check](name)


@pytest.mark.parametrize("name", NETWORKS)
def test_network_grows_by_a_few_parameters(name: str) -> None:
    """At most 1.3 times; the networks are small, and 1.03 to 1.27 times are found."""
    counts = [sum(p.numel() for p in of(name).parameters() if p.requires_grad) for of in (strict, trained)]
    assert counts[0] < counts[1] <= 1.3 * counts[0]
