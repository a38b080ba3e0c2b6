"""DistributedDataParallel: two processes train to the parameters of one that sees both their batches."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import small
import torch
from errors import ROUNDING, relative_error
from escnn.nn import EquivariantModule, R2Conv
from small import volume_layer, volume_type
from small_networks import OnTensors, features_of, layer_of
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from escnn_relaxed import RelaxedR2Conv

# Forms whose soft part does nothing for a while, beside those of :mod:`forms`.
IDLE: dict[str, Callable[[RelaxedR2Conv], None]] = {
    "soft, at zero": lambda layer: layer.set_domain_frequency(rotation=0.0),
    "learned, hardened": RelaxedR2Conv.harden,
}
FORMS = ("R2Conv", "of volumes", "learned", "soft in translation, continuous", "learned in translation", *IDLE)
PROCESSES = 2
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


def train(model: nn.Module, features: Tensor) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimiser.zero_grad()
        (model(features) - 1).square().mean().backward()
        optimiser.step()


def _train_a_part(rank: int, layers: dict[str, EquivariantModule], folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=PROCESSES)
    found = {}
    for name, shared in layers.items():
        # torch sends tensors to processes as memory that they share.
        layer = copy.deepcopy(shared)
        model = DistributedDataParallel(OnTensors(layer))
        train(model, features_of(layer, batch=2 * PROCESSES).chunk(PROCESSES)[rank])
        found[name] = layer.state_dict()
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    """Return the final states of each process: form → state."""
    folder = tmp_path_factory.mktemp("distributed")
    layers = {form: start(form) for form in FORMS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        torch.multiprocessing.spawn(_train_a_part, args=(layers, str(folder)), nprocs=PROCESSES)
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(PROCESSES)]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_two_processes_train_to_the_parameters_of_one_with_the_joined_batch(form: str, trained) -> None:
    layer = start(form)
    before = {name: value.detach().clone() for name, value in layer.named_parameters()}
    train(OnTensors(layer), features_of(layer, batch=2 * PROCESSES))
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
