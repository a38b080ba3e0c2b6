"""Filter banks in training are built within one graph of the compiler, which fuses what is elementwise."""

from collections.abc import Callable

import pytest
import small
import torch
from errors import SINGLE, relative_error
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
    arguments, bank_of = BANKS[name]
    layer = RelaxedR2Conv(
        *small.types("C8", "two regular -> two regular"), 3, initial_softness=0.3, bias=False, **arguments
    )
    parameters = list(layer.parameters())
    compiled = torch.compile(lambda: bank_of(layer), fullgraph=True, backend="eager")
    found, expected = compiled(), bank_of(layer)
    assert relative_error(found.detach(), expected.detach()) <= SINGLE
    direction = torch.randn_like(expected)
    gradients = (torch.autograd.grad(bank, parameters, direction) for bank in (found, expected))
    for found_gradient, gradient in zip(*gradients, strict=True):
        assert relative_error(found_gradient, gradient) <= 10 * SINGLE


# Fields, and operations of the graph of a filter bank.
@pytest.mark.parametrize(("space", "fields", "most"), [("C8", "two regular", 74), ("SO(2)", "irreps", 185)])
def test_graph_holds_no_constants_and_no_parser_of_patterns(space: str, fields: str, most: int) -> None:
    """Each operation is traced four times, forward and backward; einops reads its patterns anew in each trace."""
    torch.compiler.reset()
    layer = RelaxedR2Conv(*[small.field_type(space, fields)] * 2, 3, bias=False)
    nodes: list[torch.fx.Node] = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        nodes.extend(node for node in graph.graph.nodes if node.op.startswith("call"))
        return graph.forward

    torch.compile(layer.filter_bank, fullgraph=True, backend=count)()
    assert 0 < len(nodes) <= most
    assert not any("einops" in (node.stack_trace or "") for node in nodes)
