"""Networks of R3Conv by the name of another class: swapped, relaxed, hardened, exported, compiled and trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from errors import BROKEN, SINGLE_REORDERED, relative_error
from escnn import nn as enn
from small import shake
from small_networks import NETWORKS, WHAT_EXPORTERS_WARN_OF, volumes_for
from torch import nn

from escnn_relaxed import RelaxedR3Conv, export_network, harden_network, relax_network
from escnn_relaxed.network import to_escnn

EVERY_NETWORK = pytest.mark.parametrize("name", NETWORKS)
pytestmark = WHAT_EXPORTERS_WARN_OF


def built(name: str, convolution: Any = RelaxedR3Conv) -> nn.Module:
    torch.manual_seed(0)
    network: nn.Module = NETWORKS[name][0](convolution)
    shake(network)
    network(volumes_for(name))  # statistics of batch norm
    return network.eval()


def answer(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        output: torch.Tensor = network(images)
    return output


@EVERY_NETWORK
def test_swap_by_name_trains_and_loads_the_state_of_r3conv(name: str) -> None:
    theirs, ours, images = built(name, enn.R3Conv), built(name), volumes_for(name)
    assert relative_error(answer(ours, images), answer(theirs, images)) > BROKEN
    ours.load_state_dict(theirs.state_dict())
    assert relative_error(answer(ours, images), answer(theirs, images)) <= SINGLE_REORDERED
    optimizer = torch.optim.Adam(ours.parameters(), 0.01)
    losses = []
    for _ in range(5):
        loss = ours.train()(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@EVERY_NETWORK
def test_relaxed_network_hardens_to_the_last_bit_and_goes_back_to_escnn(name: str) -> None:
    theirs, images = built(name, enn.R3Conv), volumes_for(name)
    relaxed = relax_network(theirs)
    assert relative_error(answer(relaxed, images), answer(theirs, images)) <= SINGLE_REORDERED
    before = answer(harden_network(relaxed), images)
    shake(relaxed)
    with torch.no_grad():
        for own, other in zip(strict_weights(relaxed), strict_weights(theirs), strict=True):
            own.copy_(other)
        relaxed.load_state_dict({**relaxed.state_dict(), **beside_convolutions(theirs)})
    assert relative_error(answer(relaxed, images), before) > 1e-4
    hardened = harden_network(relaxed)
    assert torch.equal(answer(hardened, images), before)
    again = to_escnn(hardened)
    assert not any(isinstance(module, RelaxedR3Conv) for module in again.modules())
    assert relative_error(answer(again, images), answer(theirs, images)) <= SINGLE_REORDERED


def strict_weights(network: nn.Module) -> list[torch.Tensor]:
    return [m.weights for m in network.modules() if isinstance(m, (RelaxedR3Conv, enn.R3Conv))]


def beside_convolutions(network: nn.Module) -> dict[str, torch.Tensor]:
    """The state of a network but that of bases and filters, which follow from the weights."""
    derived = ("basisexpansion", "filter", "expanded_bias", "bias_expansion", ".weights")
    return {name: value for name, value in network.state_dict().items() if not any(part in name for part in derived)}


@EVERY_NETWORK
def test_exported_network_gives_the_same_numbers(name: str) -> None:
    network, images = built(name), volumes_for(name)
    exported = export_network(network)
    assert any(isinstance(module, nn.Conv3d) for module in exported.modules())
    assert not any(isinstance(module, RelaxedR3Conv) for module in exported.modules())
    assert relative_error(answer(exported, images), answer(network, images)) <= SINGLE_REORDERED
    traced = torch.jit.trace(exported, images, check_trace=False)
    assert relative_error(answer(traced, images), answer(network, images)) <= SINGLE_REORDERED


def test_onnx_gives_the_same_numbers(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    network, images = export_network(built("segmentation U-Net").down), volumes_for("segmentation U-Net")
    file = tmp_path / "network.onnx"
    torch.onnx.export(network, (images,), str(file), dynamo=False)
    session = runtime.InferenceSession(str(file))
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    assert relative_error(torch.from_numpy(found), answer(network, images)) <= SINGLE_REORDERED
