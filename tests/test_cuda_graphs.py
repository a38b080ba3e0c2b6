"""Steps of training as CUDA graphs: the same numbers as without."""

import copy

import pytest
import small
import torch
from errors import SINGLE_REORDERED, relative_error
from small_networks import OnTensors, network_of
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

SOFT = {"rotation": {"rotation": 0.25}, "translation": {"rotation": 0.25, "translation": 0.25}}
EVERY_SOFTNESS = pytest.mark.parametrize("soft", SOFT)
SIDE = 18


@pytest.fixture(autouse=True)
def full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def network(soft: str) -> nn.Module:
    """Soft layers; no batch norm and no pooling of escnn's, which read numbers that they keep in tensors."""
    pairs = ("trivial -> two regular", "two regular -> two regular", "two regular -> trivial")
    options = {"padding": 1, "relax": SOFT[soft], "initial_softness": 0.3}
    fields = network_of(*(RelaxedR2Conv(*small.types("C4", pair), 3, **options) for pair in pairs))
    return OnTensors(fields).cuda()


def step(module: nn.Module, images: Tensor) -> Tensor:
    """Gradients are set, of memory that stays, and the loss is given."""
    loss = module(images).square().mean()
    loss.backward()
    return loss


def capture(module: nn.Module, images: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A step as a graph, and the loss that it writes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            module.zero_grad(set_to_none=True)
            step(module, images)
    torch.cuda.current_stream().wait_stream(stream)
    module.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(module, images)
    return graph, loss


def assert_replay_is_eager(graph: torch.cuda.CUDAGraph, loss: Tensor, module: nn.Module, images: Tensor) -> None:
    """On images that the graph has not seen."""
    eager = copy.deepcopy(module)
    eager.zero_grad(set_to_none=True)
    images.copy_(torch.randn_like(images))
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    expected = step(eager, images)
    graph.replay()
    assert relative_error(loss.detach(), expected.detach()) <= SINGLE_REORDERED
    for found, known in zip(module.parameters(), eager.parameters(), strict=True):
        assert (found.grad is None) == (known.grad is None)
        if found.grad is not None:
            assert relative_error(found.grad, known.grad) <= 10 * SINGLE_REORDERED


@EVERY_SOFTNESS
def test_replay_of_a_captured_step_is_eager_after_changes_and_evaluation_too(soft: str) -> None:
    """Evaluation forgets constants that the graph reads by their address, and others could take their place."""
    module, images = network(soft), torch.randn(4, 1, SIDE, SIDE, device="cuda")
    graph, loss = capture(module, images)
    assert_replay_is_eager(graph, loss, module, images)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.1)
    module.eval()
    with torch.no_grad():
        module(images)
    module.train()
    step(module, images)
    filled = [torch.full((1 << size,), torch.nan, device="cuda") for size in range(4, 16) for _ in range(20)]
    assert_replay_is_eager(graph, loss, module, images)
    assert filled


@EVERY_SOFTNESS
def test_trained_step_by_the_compiler_with_graphs_is_eager(soft: str) -> None:
    torch.compiler.reset()
    module = network(soft)
    eager, compiled = copy.deepcopy(module), torch.compile(module, mode="reduce-overhead")
    for _ in range(4):
        images = torch.randn(4, 1, SIDE, SIDE, device="cuda")
        for each in (module, eager):
            each.zero_grad(set_to_none=True)
        torch.compiler.cudagraph_mark_step_begin()
        found, expected = (step(each, images).detach() for each in (compiled, eager))
        assert relative_error(found, expected) <= SINGLE_REORDERED
        for found, known in zip(module.parameters(), eager.parameters(), strict=True):
            assert relative_error(found.grad, known.grad) <= 10 * SINGLE_REORDERED
