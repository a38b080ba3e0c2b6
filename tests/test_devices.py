"""Layers and tools on a pretended device: nothing mixes devices, training waits for nothing, answers are the same.

Version counters are those of real devices, so that what they do not tell is tested here too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import battery
import pytest
import torch
from baseline_layers import WAYS, baseline
from forms import FORMS, answer, features_of, layer_of
from pretend_device import DEVICE, PretendDevice, pretend
from soft_networks import Network
from tolerances import ROUNDING
from torch import Tensor, nn
from transformations import relative_error

from escnn_relaxed import (
    ContinuousKernel,
    HardeningSchedule,
    RelaxedR2Conv,
    equivariance_error,
    equivariance_penalty,
    export_network,
    harden_network,
    prediction_agreement,
    relaxation_summary,
    softness_ablation,
)
from escnn_relaxed.baselines import LAYERS, free_weight_penalty
from escnn_relaxed.layer.convolution import RelaxedConvolution
from escnn_relaxed.learning import SoftnessBound, parameter_groups
from escnn_relaxed.measure import relaxation_scalars

FUSED = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW, "SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad}


@pytest.fixture
def device() -> Iterator[PretendDevice]:
    with pretend() as device:
        yield device


def test_pretended_device_is_told_from_the_cpu(device: PretendDevice) -> None:
    here, there = torch.ones(3), torch.ones(3, device=DEVICE)
    assert (here.device.type, there.device, (there + 1).device) == ("cpu", DEVICE, DEVICE)
    assert there.cpu().device.type == "cpu"
    with pytest.raises(RuntimeError, match="same device"):
        here + there
    with pytest.raises(RuntimeError, match="same device"):
        torch.stack([there[0], here[0]])
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    device.waits.clear()
    assert float(there.sum()) == 3
    assert there[there > 0].tolist() == [1, 1, 1]
    assert device.waits == {"__float__": 1, "__getitem__": 1, "tolist": 1}


def way(name: str) -> RelaxedConvolution:
    return baseline(name, "C4", "two regular -> regular")


def every_layer() -> dict[str, Callable[[], RelaxedConvolution]]:
    forms = {form: lambda form=form: layer_of(form) for form in FORMS}
    return forms | {name: lambda name=name: way(name) for name in WAYS}


EVERY_LAYER = pytest.mark.parametrize("layer", every_layer())
EVERY_STRICT_KERNEL = pytest.mark.parametrize("kernel", [None, ContinuousKernel()], ids=["steerable", "continuous"])


def pass_through(layer: RelaxedConvolution, features: Tensor) -> list[Tensor]:
    """The answer and all gradients."""
    features = features.clone().requires_grad_()
    found = layer(layer.in_type(features)).tensor
    return [found, *torch.autograd.grad(found.square().mean(), [features, *layer.parameters()])]


@pytest.mark.parametrize("mode", ["train", "eval"])
@EVERY_LAYER
def test_answers_and_gradients_are_those_of_the_cpu(layer: str, mode: str, device: PretendDevice) -> None:
    here = every_layer()[layer]().train(mode == "train")
    there = copy.deepcopy(here).to(DEVICE)
    features = features_of(here)
    pass_through(there, features.to(DEVICE))
    device.waits.clear()
    found = pass_through(there, features.to(DEVICE))
    assert not device.waits
    for expected, tensor in zip(pass_through(here, features), found, strict=True):
        assert tensor.device == DEVICE
        assert relative_error(tensor.detach().cpu(), expected.detach()) <= ROUNDING


@EVERY_LAYER
def test_softness_hardening_and_export_are_those_of_the_cpu(layer: str, device: PretendDevice) -> None:
    here = every_layer()[layer]()
    there = copy.deepcopy(here).to(DEVICE)
    assert repr(there).partition("frequency")[0] == repr(here).partition("frequency")[0]
    softness = there.softness()
    assert softness.device == DEVICE
    assert softness.item() == pytest.approx(here.softness().item(), rel=1e-9)
    features = features_of(here)
    assert relative_error(there.export()(features.to(DEVICE)).detach().cpu(), answer(here.eval())) <= ROUNDING
    for each in (here, there):
        each.harden()
        each.drop_soft_part()
    assert relative_error(answer(there.eval(), features.to(DEVICE)).cpu(), answer(here.eval())) <= ROUNDING


FUSED_STEPS = [("soft", fused) for fused in FUSED]
FUSED_STEPS += [(layer, "Adam") for layer in ("learned in translation", *WAYS)]


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(("layer", "fused"), FUSED_STEPS)
def test_step_of_a_fused_optimiser_is_seen_in_evaluation(
    layer: str, fused: str, mode: str, device: PretendDevice
) -> None:
    """Such steps leave version counters as they are."""
    there = every_layer()[layer]().to(DEVICE)
    features = features_of(there).to(DEVICE)
    versions = [parameter._version for parameter in there.parameters()]
    before = answer(there.eval(), features)
    optimiser = FUSED[fused](there.parameters(), lr=0.05, fused=True)
    there.train(mode == "train")
    there(there.in_type(features)).tensor.square().mean().backward()
    optimiser.step()
    assert versions == [parameter._version for parameter in there.parameters()]
    after = answer(there.eval(), features)
    assert relative_error(after.cpu(), before.cpu()) > 1e-4
    assert torch.equal(after, answer(copy.deepcopy(there), features))


def network(device: torch.device | str) -> Network:
    torch.manual_seed(0)
    made = Network().to(device)
    made.features = made.features.to(device)
    return made.eval()


@pytest.mark.slow
def test_measures_of_a_network_are_those_of_the_cpu(device: PretendDevice) -> None:
    results = []
    for place in ("cpu", DEVICE):
        made = network(place)
        types = made.first.in_type, made.strict.out_type
        rows = equivariance_error(made, data=made.features, in_type=types[0], out_type=types[1], shifts=[(1, 2)]).rows
        summary = relaxation_summary(made, data=made.features)
        ablation = softness_ablation(made, lambda net, x=made.features: net(x).square().mean())
        results.append(
            [
                *(row.error for row in rows),
                *(row.resampling for row in rows),
                *(value for layer in summary.rows for value in layer.softness.values()),
                *(row.value for row in ablation),
                equivariance_penalty(made).item(),
                *relaxation_scalars(made).values(),
            ]
        )
        assert str(summary)
        assert (
            0
            <= prediction_agreement(
                nn.Sequential(made, nn.Flatten()), made.features, in_type=made.first.in_type, shifts=[(1, 0)]
            ).orbit
            <= 1
        )
    assert results[1] == pytest.approx(results[0], rel=1e-6, abs=1e-9)


def test_exported_and_hardened_networks_are_there_too(device: PretendDevice) -> None:
    made = network(DEVICE)
    with torch.no_grad():
        exported = export_network(made.body)(made.features)
        assert relative_error(exported.cpu(), made.body(made.first.in_type(made.features)).tensor.cpu()) <= ROUNDING
        assert harden_network(made)(made.features).device == DEVICE


def test_training_with_penalties_waits_for_nothing(device: PretendDevice) -> None:
    made = network(DEVICE).train()
    schedule, bound = HardeningSchedule(made, steps=4), SoftnessBound(made, 0.01)
    optimiser = torch.optim.Adam(parameter_groups(made, 1e-3), lr=1e-3)
    for step in range(4):
        if step == 1:
            # What is made once is made now.
            device.waits.clear()
        if step == 3:
            assert not device.waits
        optimiser.zero_grad()
        loss = made(made.features).square().mean() + schedule.penalty() + bound.penalty()
        loss.backward()
        optimiser.step()
        schedule.step()
        bound.step()
    assert schedule.is_hardened
    assert all(multiplier >= 0 for multiplier in bound.multipliers.values())
    bound.load_state_dict(bound.state_dict())
    assert bound.penalty().device == DEVICE


def test_penalty_on_free_weights_is_there_too(device: PretendDevice) -> None:
    assert free_weight_penalty(way("residual").to(DEVICE)).device == DEVICE


@EVERY_STRICT_KERNEL
@pytest.mark.parametrize("name", LAYERS)
def test_layer_built_on_the_default_device_is_the_one_built_on_the_cpu(
    name: str, kernel: ContinuousKernel | None, device: PretendDevice
) -> None:
    """The seed is the same. A layer of this kind is built elsewhere before, and elsewhere again afterwards."""
    in_type, out_type = battery.types("C4", "two regular -> regular")
    layers = []
    for place in ("cpu", DEVICE, "cpu"):
        torch.manual_seed(5)
        with torch.device(place):
            layer = LAYERS[name](in_type, out_type, 3, padding=1, kernel=kernel)
        tensors = [*layer.parameters(), *layer.buffers()]
        assert {tensor.device for tensor in tensors} == {torch.device(place)}
        layers.append(layer)
    for layer in layers[1:]:
        state = {name: value.cpu() for name, value in layer.state_dict().items()}
        assert all(torch.equal(state[name], value) for name, value in layers[0].state_dict().items())


@pytest.mark.parametrize("layer", ["soft", "learned", "soft in translation", *WAYS])
def test_layer_trains_under_the_default_device(layer: str, device: PretendDevice) -> None:
    there = every_layer()[layer]()
    train_on = features_of(there).to(DEVICE)
    with torch.device(DEVICE):
        there.to(DEVICE)
        there(there.in_type(train_on)).tensor.square().mean().backward()
        assert all(parameter.grad.device == DEVICE for parameter in there.parameters())
        assert there.softness().device == DEVICE
        there.set_domain_frequency(rotation=0.1) if isinstance(there, RelaxedR2Conv) else there.make_strict()
        assert answer(there.eval(), train_on).device == DEVICE


@EVERY_STRICT_KERNEL
@pytest.mark.parametrize("name", LAYERS)
def test_layer_built_on_the_meta_device_takes_a_state_later(name: str, kernel: ContinuousKernel | None) -> None:
    in_type, out_type = battery.types("C4", "two regular -> regular")
    arguments = {"kernel_size": 3, "padding": 1, "kernel": kernel}
    layer = LAYERS[name](in_type, out_type, **arguments)
    with torch.device("meta"):
        empty = LAYERS[name](in_type, out_type, **arguments)
    assert all(parameter.is_meta for parameter in empty.parameters())
    assert type(empty).__name__ in repr(empty)
    empty.to_empty(device="cpu").load_state_dict(layer.state_dict())
    features = in_type(features_of(layer))
    assert torch.equal(empty(features).tensor, layer(features).tensor)
