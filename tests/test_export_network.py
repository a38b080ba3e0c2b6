"""``export_network``: whole networks as plain PyTorch, with the same numbers, that run where escnn is not installed."""

from __future__ import annotations

import re

import pytest
import torch
from errors import SINGLE, relative_error
from escnn import nn as enn
from escnn.nn import EquivariantModule, GeometricTensor
from small_networks import C4, EVERY_MODE, Block, answers, left_alone, mixed_network, settled, tensors_of
from small_networks import layer_to_export as soft_layer
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv, export_network


def assert_same(network: nn.Module, exported: nn.Module) -> None:
    expected, found = answers(network, exported)
    assert relative_error(found, expected) <= SINGLE


@EVERY_MODE
def test_network_that_mixes_strict_and_soft_layers_is_exported_and_left_as_it_was(mode: str) -> None:
    network = settled(mixed_network()).train(mode == "train")
    network[1][0].train(mode != "train")
    with left_alone(network, but="filter"):  # which R2Conv builds when the mode changes
        exported = export_network(network)
    assert not any(module.training or isinstance(module, EquivariantModule) for module in exported.modules())
    assert not {t.data_ptr() for t in tensors_of(network)} & {t.data_ptr() for t in tensors_of(exported)}
    assert_same(network, exported)
    assert [name for name, _ in exported.named_children()] == [name for name, _ in network.named_children()]


def test_export_of_a_sequential_module_itself_takes_our_layers_too() -> None:
    """escnn's own container calls each module's ``export()``."""
    network = settled(enn.SequentialModule(soft_layer(C4), enn.ReLU(C4), soft_layer(C4, soft_translation=True)))
    assert_same(network, network.export())


class Leave(nn.Module):
    def forward(self, features: Tensor | GeometricTensor) -> Tensor:
        return getattr(features, "tensor", features).mean((2, 3))


def doubled(module: nn.Module, *inputs: object) -> object:
    return inputs[-1] * 2.0 if len(inputs) > 1 else None


@EVERY_MODE
def test_plain_modules_behind_the_fields_are_copied_with_their_hooks(mode: str) -> None:
    head = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 5), nn.Dropout(0.5))
    head[1].register_forward_hook(doubled)
    network = settled(nn.Sequential(enn.SequentialModule(soft_layer(C4), enn.GroupPooling(C4)), Leave(), head))
    network.in_type = C4
    network.train(mode == "train")
    exported = export_network(network)
    assert_same(network, exported)
    assert not any(module.training for module in exported.modules())
    assert head.training == (mode == "train")
    with torch.no_grad():
        head[1].weight.zero_()
    _, again = answers(network, exported)
    assert not torch.allclose(again, again[:1].expand_as(again))


def test_module_that_appears_twice_is_applied_twice_and_stays_one() -> None:
    shared = soft_layer(C4)
    network = enn.SequentialModule(shared, enn.ReLU(C4), shared)
    exported = export_network(network)
    assert len(exported) == 3
    assert exported[0] is exported[2]
    assert_same(network, exported)


class PlainResidual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, features: Tensor) -> Tensor:
        return features + self.body(features)


class BlockWithExport(Block):
    def forward(self, features: GeometricTensor) -> GeometricTensor:
        return features + self.conv(features)

    def export(self) -> nn.Module:
        return PlainResidual(export_network(self.conv))


def test_block_with_an_export_of_its_own_is_exported_by_it() -> None:
    network = enn.SequentialModule(BlockWithExport(C4, C4), enn.ReLU(C4))
    exported = export_network(network)
    assert network.training
    assert isinstance(exported[0], PlainResidual)
    assert_same(network, exported)


class BlockOfParts(BlockWithExport):
    """As the blocks of ReDet, whose forward the exported parts lack."""

    def export(self) -> nn.Module:
        return nn.ModuleDict({"conv": export_network(self.conv)})


class PlainNetwork(nn.Module):
    """No module of escnn's, with an export() of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.in_type, self.block = C4, BlockOfParts(C4, C4)

    def forward(self, features: GeometricTensor) -> Tensor:
        return self.block(features).tensor

    def export(self) -> nn.Module:
        return nn.ModuleList([self.block.export()])


@pytest.mark.filterwarnings("ignore:export_network keeps the forward:UserWarning")
@pytest.mark.parametrize("is_sequence", [True, False])
def test_export_of_a_block_that_cannot_be_called_leaves_its_forward(is_sequence: bool) -> None:
    network = enn.SequentialModule(BlockOfParts(C4, C4), enn.ReLU(C4)) if is_sequence else PlainNetwork()
    exported = export_network(network)
    assert not any(isinstance(module, RelaxedR2Conv) for module in exported.modules())
    expected, found = answers(network, exported if is_sequence else lambda features: exported(C4(features)))
    assert relative_error(found, expected) <= SINGLE


REGISTER = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook")
PLACES = {
    "network": lambda network: network,
    "1.2": lambda network: network[1][2],
    "3": lambda network: network[3],
    "1.0.batch_norm_[4]": lambda network: network[1][0].get_submodule("batch_norm_[4]"),
}


@pytest.mark.parametrize("register", REGISTER)
@pytest.mark.parametrize("place", PLACES)
def test_hooks_that_would_be_lost_are_refused_by_name(place: str, register: str) -> None:
    network = settled(mixed_network())
    handle = getattr(PLACES[place](network), register)(doubled)
    kind = register.removeprefix("register_").replace("full_", "")
    with pytest.raises(ValueError, match=rf"^{re.escape(place)} has {kind}s, which would be lost: remove them"):
        export_network(network)
    handle.remove()
    export_network(network)


def reachable(module: nn.Module) -> list[Tensor]:
    """Every tensor in the attributes of modules, however deep in lists and dicts."""
    found: list[Tensor] = []
    # The float64 originals of constants, of which the buffers are made anew for each dtype, stay in main memory.
    originals = ("_masters", "_singles")
    waiting: list[object] = [v for part in module.modules() for k, v in vars(part).items() if k not in originals]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
        elif not isinstance(value, nn.Module) and type(value).__module__.startswith("escnn_relaxed"):
            waiting.append(vars(value))
    return found


def devices(module: nn.Module) -> set[str]:
    return {tensor.device.type for tensor in reachable(module)}


def test_every_tensor_of_what_is_exported_moves_with_it_and_indices_are_where_the_network_is() -> None:
    exported = export_network(settled(enn.SequentialModule(mixed_network()[:-1], enn.NormPool(C4))))
    assert (devices(exported), devices(exported.to("meta"))) == ({"cpu"}, {"meta"})
    # A NormPool has no tensor that would say where.
    network = enn.SequentialModule(enn.InnerBatchNorm(C4), enn.NormPool(C4)).to("meta")
    assert devices(export_network(network)) == {"meta"}


def test_count_of_batches_is_exported() -> None:
    """On it the average rests where a batch norm without momentum goes on learning."""
    norm = enn.InnerBatchNorm(C4, momentum=None).train()
    for _ in range(3):
        norm(C4(torch.randn(2, C4.size, 4, 4)))
    (plain,) = export_network(enn.SequentialModule(norm))
    assert plain.num_batches_tracked == 3
