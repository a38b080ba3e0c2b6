"""DistributedDataParallel: two processes train to the parameters of one that sees both their batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from errors import ROUNDING, relative_error
from small_networks import OnTensors, features_of, layer_of
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


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
