"""The batch of an update: what one batch shows of a mistake, networks of several arguments and outputs, sharding."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_networks
import torch
from evidence_networks import CLOSED_FORM, Classifier, images
from small import soft_regular_layer
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.functional import dropout
from two_processes import in_two_processes

from escnn_relaxed import SoftnessEvidence


class Returns(nn.Module):
    """A network that takes images and a mask, and returns what it is asked to."""

    def __init__(self, classes: int = 3, wrap: Callable[[Tensor], Any] = lambda logits: {"logits": logits}) -> None:
        super().__init__()
        self.network, self.wrap = Classifier(classes), wrap

    def forward(self, images: Tensor, mask: Tensor) -> Any:
        return self.wrap(self.network(images) * mask)


def mask(count: int) -> Tensor:
    return torch.rand(count, 1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("wrap", "output"),
    [
        (lambda logits: {"logits": logits, "other": None}, lambda returned: returned["logits"]),
        (lambda logits: (None, logits), lambda returned: returned[1]),
    ],
    ids=["dict", "tuple"],
)
def test_output_is_picked_from_what_the_network_returns(
    wrap: Callable[[Tensor], Any], output: Callable[[Any], Tensor]
) -> None:
    network, inputs, labels = Returns(wrap=wrap), (images(20), mask(20)), torch.randint(0, 3, (20,))
    plain = copy.deepcopy(network)
    plain.wrap = lambda logits: logits
    found = []
    for each, pick in ((network, output), (plain, None)):
        evidence = SoftnessEvidence(each, 100, output=pick)
        evidence.check(inputs, labels)
        evidence.update(inputs)
        found.append((evidence.penalty().item(), list(evidence.table()), list(evidence.harden(inputs, labels))))
    assert found[0] == found[1]


CHECKS: dict[str, tuple[type[Exception], str, dict[str, Any], Callable[[], tuple[Any, ...]]]] = {
    "a dict, and no output": (
        TypeError,
        r"network: its output must be .*, got dict: pick a tensor of it by output=lambda returned: …",
        {},
        lambda: ((images(12), mask(12)),),
    ),
    "what output gives": (
        TypeError,
        "output: what it gives must be a tensor or a GeometricTensor, got list",
        {"output": list},
        lambda: ((images(12), mask(12)),),
    ),
    "an argument is missing": (
        TypeError,
        "inputs must be all arguments of the forward of Returns, of several a tuple: missing .*'mask'",
        {"output": dict.popitem},
        lambda: (images(12),),
    ),
    "one logit": (
        ValueError,
        r"'categorical' is of outputs \(batch, classes, …\) with two classes or more, got \(12, 1\)",
        {"classes": 1, "output": lambda returned: returned["logits"]},
        lambda: ((images(12), mask(12)),),
    ),
    "no targets": (
        ValueError,
        "targets must be given where likelihood='gaussian'",
        {"likelihood": "gaussian", "output": lambda returned: returned["logits"]},
        lambda: ((images(12), mask(12)),),
    ),
    "targets that are no tensor": (
        TypeError,
        "targets must be a tensor, got list",
        {"output": lambda returned: returned["logits"]},
        lambda: ((images(12), mask(12)), [0] * 12),
    ),
    "targets of another shape": (
        ValueError,
        r"targets must have the shape of the outputs, \(12, 3\), got \(12, 1\)",
        {"likelihood": "gaussian", "output": lambda returned: returned["logits"]},
        lambda: ((images(12), mask(12)), torch.zeros(12, 1)),
    ),
    "too many": (
        ValueError,
        r"no more than observations .=20., got 21",
        {"output": lambda returned: returned["logits"]},
        lambda: ((images(21), mask(21)),),
    ),
}


@pytest.mark.parametrize("name", CHECKS)
def test_check_raises_what_an_update_raises(name: str) -> None:
    error, message, options, batch = CHECKS[name]
    options = dict(options)
    evidence = SoftnessEvidence(Returns(options.pop("classes", 3)), 20, **options)
    for call in (evidence.check, evidence.update):
        with pytest.raises(error, match=message):
            call(*batch())


def test_output_must_be_a_function() -> None:
    with pytest.raises(TypeError, match="output must be a function, got 'logits'"):
        SoftnessEvidence(Returns(), 20, output="logits")


class Noisy(nn.Module):
    """A network that draws random numbers in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Classifier()

    def forward(self, images: Tensor) -> Tensor:
        return self.network(dropout(images, 0.1))


@pytest.mark.parametrize("count", [1, 20])
def test_check_changes_nothing(count: int) -> None:
    """Not even the numbers that are drawn later."""
    network, inputs = Noisy().train(), images(20)
    other = copy.deepcopy(network)
    checked, plain = SoftnessEvidence(network, 100), SoftnessEvidence(other, 100)
    with small_networks.left_alone(network):
        checked.check(inputs[:count])
    state = torch.get_rng_state()
    checked.check(inputs[:count], torch.zeros(count, dtype=torch.long))
    assert torch.equal(torch.get_rng_state(), state)
    assert checked.penalty() == 0
    for evidence in (checked, plain):
        torch.set_rng_state(state)
        evidence.update(inputs)
    assert list(checked.table()) == list(plain.table())
    before = checked.state_dict()
    checked.check(inputs[:count])
    assert {**checked.state_dict(), "generator": 0} == {**before, "generator": 0}
    assert torch.equal(checked.state_dict()["generator"], before["generator"])


class Frames(nn.Module):
    """A regression on several frames of each input, which go through the layer as a batch of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = soft_regular_layer()

    def forward(self, frames: Tensor) -> Tensor:
        features = self.layer(self.layer.in_type(frames.flatten(0, 1))).tensor.mean((2, 3))
        return features.unflatten(0, frames.shape[:2]).square().mean(1)


def test_residuals_of_frames_are_those_of_their_own_input() -> None:
    """The weight of an output is tr H / tr J, of the gradients along residuals, input by input."""
    network, frames = Frames(), torch.randn(12, 2, 4, 6, 6, dtype=torch.float64)
    weights, targets = network.layer.kernel.modulation.weights, []
    with torch.no_grad():
        start = weights.clone()
        for frame in frames.split(1):
            # Residuals that the weights would explain, so that outputs of an input go together.
            weights.add_(torch.randn_like(weights))
            targets.append(network(frame))
            weights.copy_(start)
    targets = torch.cat(targets)
    evidence = SoftnessEvidence(network, 100, "gaussian")
    evidence.update(frames, targets)
    noise = evidence.state_dict()["noise"]
    generator = torch.Generator().manual_seed(0)
    signs = 2 * torch.randint(2, targets.shape, generator=generator).double() - 1
    squares = torch.zeros(2, dtype=torch.float64)
    for number in range(12):
        output = network(frames[number : number + 1])[0]
        residual = (targets[number] - output).detach() / noise
        for place, along in enumerate((signs[number] / noise**0.5, residual)):
            (slope,) = torch.autograd.grad(output @ along, weights, retain_graph=True)
            squares[place] += slope.square().sum()
    expected = min(1.0, float(squares[0] / squares[1]))
    assert expected < 1
    assert evidence.state_dict()["weight"] == pytest.approx(expected, rel=CLOSED_FORM)


def _update_sharded(rank: int) -> dict[str, Any]:
    torch.manual_seed(0)
    network, inputs, said = Classifier(), images(20), []
    before = SoftnessEvidence(network, 100)
    fully_shard(network.head)
    # A head may be sharded, since only relaxed layers have to be whole.
    evidence = SoftnessEvidence(network, 100)
    evidence.update(inputs)
    fully_shard(network.first)
    wrapped = FullyShardedDataParallel(Classifier(), device_id=torch.device("cpu"))
    calls = [lambda: SoftnessEvidence(network, 100), before.penalty, lambda: before.update(inputs)]
    for call in (*calls, lambda: SoftnessEvidence(wrapped, 100)):
        try:
            call()
        except ValueError as error:
            said.append(str(error))
    return {"determined": evidence.state_dict()["determined"], "said": said}


@pytest.mark.slow
def test_sharded_layers_are_refused_and_other_modules_may_be_sharded(tmp_path: Path) -> None:
    for found in in_two_processes(_update_sharded, tmp_path):
        assert len(found["determined"]) == 6
        assert len(found["said"]) == 4
        assert all("first' are sharded over processes, as by fully_shard" in text for text in found["said"])
