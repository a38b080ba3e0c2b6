"""Layers and tools on a GPU, or on a pretended one: nothing mixes devices, answers are the same, training waits not."""

import copy
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import small
import torch
from baseline_layers import WAYS, baseline
from errors import ROUNDING, SINGLE_REORDERED, relative_error
from pretend_device import DEVICE, PretendDevice, another_device, pretend
from small_networks import EVERY_MODE, FORMS, Network, answer, features_of, layer_of
from torch import Tensor, nn

import escnn_relaxed
from escnn_relaxed import RelaxedR2Conv, harden_network
from escnn_relaxed.baselines import LAYERS
from escnn_relaxed.continuous.kernel import SteeredKernel
from escnn_relaxed.learning import frequency_penalty, parameter_groups
from escnn_relaxed.measure import relaxation_scalars

MAKE: dict[str, Callable[[], nn.Module]] = {
    **{form: lambda form=form: layer_of(form) for form in FORMS},
    **{way: lambda way=way: baseline(way, "C4", "two regular -> regular") for way in WAYS},
}
EVERY_LAYER = pytest.mark.parametrize("layer", MAKE)
# The layers of Network have a fixed ω′, and the penalty is there for where it is computed.
pytestmark = pytest.mark.filterwarnings("ignore:frequency_penalty is a constant:UserWarning")


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False), another_device() as device:
        yield device


@pytest.fixture
def pretended() -> Iterator[PretendDevice]:
    with pretend() as device:
        yield device


def test_pretended_device_is_told_from_the_cpu(pretended: PretendDevice) -> None:
    here, there = torch.ones(3), torch.ones(3, device=DEVICE)
    assert (here.device.type, there.device, (there + 1).device) == ("cpu", DEVICE, DEVICE)
    assert there.cpu().device.type == "cpu"
    with pytest.raises(RuntimeError, match="same device"):
        here + there
    with pytest.raises(RuntimeError, match="same device"):
        torch.stack([there[0], here[0]])
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    pretended.waits.clear()
    assert float(there.sum()) == 3
    assert there[there > 0].tolist() == [1, 1, 1]
    assert pretended.waits == {"__float__": 1, "__getitem__": 1, "tolist": 1}


def pass_through(layer: nn.Module, features: Tensor) -> list[Tensor]:
    """The answer and all gradients."""
    features = features.clone().requires_grad_()
    found = layer(layer.in_type(features)).tensor
    return [found, *torch.autograd.grad(found.square().mean(), [features, *layer.parameters()])]


@EVERY_MODE
@EVERY_LAYER
def test_answers_and_gradients_are_those_of_the_cpu(layer: str, mode: str, gpu: torch.device) -> None:
    here = MAKE[layer]().train(mode == "train")
    there = copy.deepcopy(here).to(gpu)
    features = features_of(here)
    found = pass_through(there, features.to(gpu))
    for expected, tensor in zip(pass_through(here, features), found, strict=True):
        assert tensor.device == gpu
        assert relative_error(tensor.detach().cpu(), expected.detach()) <= ROUNDING
    single = pass_through(there.float(), features.float().to(gpu))
    for expected, tensor in zip(found, single, strict=True):
        # Gradients sum over the batch, the pixels and the taps as well.
        assert relative_error(tensor.detach().double(), expected.detach()) <= 10 * SINGLE_REORDERED


@EVERY_LAYER
def test_training_waits_for_nothing(layer: str, pretended: PretendDevice) -> None:
    there = MAKE[layer]().to(DEVICE)
    features = features_of(there)
    pass_through(there, features)
    pretended.waits.clear()
    pass_through(there, features)
    assert not pretended.waits


@EVERY_LAYER
def test_softness_hardening_and_export_are_those_of_the_cpu(layer: str, gpu: torch.device) -> None:
    here = MAKE[layer]()
    there = copy.deepcopy(here).to(gpu)
    assert repr(there).partition("frequency")[0] == repr(here).partition("frequency")[0]
    softness = there.softness()
    assert softness.device == gpu
    assert softness.item() == pytest.approx(here.softness().item(), rel=1e-9)
    features = features_of(here)
    if here.is_stationary or not isinstance(here.kernel, SteeredKernel):
        assert relative_error(there.export()(features.to(gpu)).detach().cpu(), answer(here.eval())) <= ROUNDING
    hardened = harden_network(there.eval())
    assert relative_error(answer(hardened, features.to(gpu)).cpu(), answer(harden_network(here))) <= ROUNDING


def network(device: torch.device | str) -> Network:
    torch.manual_seed(0)
    made = Network().to(device)
    made.features = made.features.to(device)
    return made.eval()


@pytest.mark.slow
def test_measures_of_a_network_are_those_of_the_cpu(gpu: torch.device) -> None:
    results = []
    for place in ("cpu", gpu):
        made = network(place)
        types = made.first.in_type, made.strict.out_type
        rows = escnn_relaxed.equivariance_error(
            made, data=made.features, in_type=types[0], out_type=types[1], shifts=[(1, 2)]
        ).rows
        summary = escnn_relaxed.relaxation_summary(made, data=made.features)
        classifier = nn.Sequential(made, nn.Flatten())
        labels = torch.zeros(len(made.features), dtype=torch.long)
        robustness = escnn_relaxed.robustness_report(
            classifier, made.features, labels, in_type=types[0], shifts=[(1, 0)]
        )
        results.append(
            [
                *(value for row in rows for value in (row.error, row.resampling)),
                *(value for layer in summary.rows for value in layer.softness.values()),
                harden_network(made)(made.features).square().mean().item(),
                *(row.agreement for row in robustness.rows),
                frequency_penalty(made).item(),
                *relaxation_scalars(made).values(),
            ]
        )
        assert str(summary)
    assert results[1] == pytest.approx(results[0], rel=1e-6, abs=1e-9)


def test_training_with_penalties_waits_for_nothing(pretended: PretendDevice) -> None:
    made = network(DEVICE).train()
    optimiser = torch.optim.Adam(parameter_groups(made, 1e-3), lr=1e-3)
    for step in range(4):
        if step == 1:
            # Whether a fixed ω′ is 0 is read once.
            pretended.waits.clear()
        if step == 3:
            assert not pretended.waits
        optimiser.zero_grad()
        loss = made(made.features).square().mean() + frequency_penalty(made) + made.first.softness()
        loss.backward()
        optimiser.step()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.usefixtures("pretended")
def test_layer_built_on_the_default_device_is_the_one_built_on_the_cpu(name: str) -> None:
    """The seed is the same. A layer of this kind is built elsewhere before, and elsewhere again afterwards."""
    types, layers = small.types("C4", "two regular -> regular"), []
    for place in ("cpu", DEVICE, "cpu"):
        torch.manual_seed(5)
        with torch.device(place):
            layers.append(LAYERS[name](*types, 3, padding=1))
        tensors = [*layers[-1].parameters(), *layers[-1].buffers()]
        assert {tensor.device for tensor in tensors} == {torch.device(place)}
    for layer in layers[1:]:
        state = {name: value.cpu() for name, value in layer.state_dict().items()}
        assert all(torch.equal(state[name], value) for name, value in layers[0].state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [*LAYERS, "continuous"])
def test_layer_built_on_the_meta_device_takes_a_state_later(name: str, dtype: torch.dtype) -> None:
    types = small.types("C4", "two regular -> regular")
    make = partial(
        LAYERS.get(name, RelaxedR2Conv), *types, 3, padding=1, **small.options_of("tied" if name in LAYERS else name)
    )
    layer = make().to(dtype).eval()
    features = types[0](features_of(layer))
    for device in ("meta", "cpu"):
        with torch.device(device):
            empty = make().eval()
        assert all(parameter.device.type == device for parameter in empty.parameters())
        assert type(empty).__name__ in repr(empty)
        empty.load_state_dict(layer.state_dict(), assign=True)
        assert torch.equal(empty(features).tensor, layer(features).tensor)
        assert empty.softness() == layer.softness()
    with torch.device("meta"):
        filled = make().eval()
    filled.to_empty(device="cpu").to(dtype).load_state_dict(layer.state_dict())
    assert torch.equal(filled(features).tensor, layer(features).tensor)
