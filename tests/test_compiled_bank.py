"""Filter banks in training are built within one graph of the compiler, which fuses what is elementwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from errors import SINGLE, relative_error
from escnn import gspaces
from escnn.nn import FieldType
from small import options_of
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv

pytestmark = pytest.mark.skipif(
    torch.__version__.startswith("2.6."), reason="this compiler knows neither tuple.count nor dicts with other keys"
)

BANKS: dict[str, tuple[dict[str, object], Callable[[RelaxedR2Conv], Tensor]]] = {
    "soft rotation": ({}, lambda layer: layer.filter_bank()),
    "continuous": (options_of("continuous"), lambda layer: layer.filter_bank()),
    "learned": ({"learn_relaxation": True}, lambda layer: layer.filter_bank()),
    "translation": ({"relax": {"translation": 0.25}}, lambda layer: layer.filter_banks((4, 3))),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("learned", "translation"))) for name in BANKS]
)
def test_filter_bank_is_one_graph(name: str) -> None:
    torch.compiler.reset()
    gspace = gspaces.rot2dOnR2(8)
    fields = FieldType(gspace, [gspace.regular_repr] * 2)
    arguments, bank_of = BANKS[name]
    layer = RelaxedR2Conv(fields, fields, 3, initial_softness=0.3, bias=False, **arguments)
    parameters = list(layer.parameters())
    compiled = torch.compile(lambda: bank_of(layer), fullgraph=True, backend="eager")
    found, expected = compiled(), bank_of(layer)
    assert relative_error(found.detach(), expected.detach()) <= SINGLE
    direction = torch.randn_like(expected)
    gradients = (torch.autograd.grad(bank, parameters, direction) for bank in (found, expected))
    for found_gradient, gradient in zip(*gradients, strict=True):
        assert relative_error(found_gradient, gradient) <= 10 * SINGLE


def _irreps() -> FieldType:
    gspace = gspaces.rot2dOnR2(-1)
    return FieldType(gspace, [gspace.trivial_repr, gspace.irrep(1), gspace.irrep(2)] * 4)


def _regular() -> FieldType:
    gspace = gspaces.rot2dOnR2(8)
    return FieldType(gspace, [gspace.regular_repr] * 2)


# Fields, and operations of the graph of a filter bank.
OPERATIONS: dict[str, tuple[Callable[[], FieldType], int]] = {"regular": (_regular, 74), "irreps": (_irreps, 185)}


@pytest.mark.parametrize("name", OPERATIONS)
def test_graph_holds_no_constants_and_no_parser_of_patterns(name: str) -> None:
    """Each operation is traced four times, forward and backward; einops reads its patterns anew in each trace."""
    torch.compiler.reset()
    fields, most = OPERATIONS[name][0](), OPERATIONS[name][1]
    layer = RelaxedR2Conv(fields, fields, 3, bias=False)
    nodes: list[torch.fx.Node] = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        nodes.extend(node for node in graph.graph.nodes if node.op.startswith("call"))
        return graph.forward

    torch.compile(layer.filter_bank, fullgraph=True, backend=count)()
    assert 0 < len(nodes) <= most
    assert not any("einops" in (node.stack_trace or "") for node in nodes)
