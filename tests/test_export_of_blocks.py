"""``export_network`` of blocks with an ``export()`` of their own: it is used where its result can be called."""

from collections.abc import Callable

import pytest
import small
import small_networks as networks
import torch
from errors import SINGLE, relative_error
from escnn import nn as enn
from escnn.nn import EquivariantModule, GeometricTensor
from small_networks import C4, Block, OnTensors, settled
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv, export_network

pytestmark = networks.WHAT_EXPORTERS_WARN_OF


def assert_same(network: nn.Module, exported: nn.Module) -> None:
    expected, found = networks.answers(network, exported)
    assert relative_error(found, expected) <= SINGLE


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


def test_export_of_a_block_that_cannot_be_called_leaves_its_forward() -> None:
    network = enn.SequentialModule(BlockOfParts(C4, C4), enn.ReLU(C4))
    exported = export_network(network)
    assert not any(isinstance(module, RelaxedR2Conv) for module in exported.modules())
    assert_same(network, exported)


class Body(EquivariantModule):
    """A block that is a sequence of blocks, and exports as such, as escnn's ``SequentialModule.export()`` does."""

    def __init__(self, body: EquivariantModule) -> None:
        super().__init__()
        self.body = body
        self.in_type, self.out_type = body.in_type, body.out_type

    def forward(self, features: GeometricTensor) -> GeometricTensor:
        return self.body(features)

    def evaluate_output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def export(self) -> nn.Module:
        return self.body.export()


def of_export(name: str, export: Callable[[BlockWithExport], object]) -> Callable[[], EquivariantModule]:
    """A block whose ``export()`` gives this."""
    return lambda: type(name, (BlockWithExport,), {"export": export})(C4, C4)


NOT_CALLED = {
    "ModuleDict": of_export("Own", lambda block: nn.ModuleDict({"conv": export_network(block.conv)})),
    "ModuleList": of_export("Own", lambda block: nn.ModuleList([export_network(block.conv)])),
    "dict": of_export("Own", lambda block: {"conv": export_network(block.conv)}),
    "NoneType": of_export("Own", lambda block: None),
    "Own": of_export("Own", lambda block: block),
    "Sequential": lambda: Body(enn.SequentialModule(BlockOfParts(C4, C4), enn.ReLU(C4))),
}


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.filterwarnings("default:export_network keeps the forward:UserWarning")
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "in a sequence"])
@pytest.mark.parametrize("gives", NOT_CALLED)
def test_what_an_export_gives_is_never_handed_over_where_it_cannot_be_called(gives: str, is_alone: bool) -> None:
    block = settled(NOT_CALLED[gives]())
    network = OnTensors(block if is_alone else enn.SequentialModule(block, enn.ELU(C4))).eval()
    said = rf"export\(\) gives a {gives}, .*cannot be called on a tensor: let it return a module whose forward takes"
    with pytest.warns(UserWarning, match=said):
        exported = export_network(network)
    assert not any(isinstance(module, RelaxedR2Conv) for module in exported.modules())
    features = small.random_input(C4, 8, 8, dtype=torch.float32)
    with torch.no_grad():
        assert relative_error(exported(features), network(features)) <= SINGLE
