"""Counts of the operations of a call that are not views, each a launch on a GPU, and of its waits for a device."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

# Views by another name, and memory that nothing is written to.
NOT_LAUNCHED = {"detach", "_unsafe_view", "empty", "lift_fresh"}
# The host reads a value, or a shape that depends on values; or Python's numbers are sent to the device as a tensor.
WAITS = {"_local_scalar_dense", "equal", "is_nonzero", "item", "lift_fresh", "masked_select", "nonzero", "_unique2"}


class CountOperations(TorchDispatchMode):
    """Within its context: how often each operation was called that is not a view, and each that waits for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if not (function.is_view or name in NOT_LAUNCHED):
            self.operations[name] += 1
        if name in WAITS:
            self.waits[name] += 1
        return function(*args, **(kwargs or {}))


def count_training(module: nn.Module, features: Tensor) -> CountOperations:
    """Forward and backward from a given gradient of the answer, after steps that do not count."""
    module.train()
    features = features.clone().requires_grad_()
    direction = torch.ones_like(module(features))

    def step() -> None:
        for tensor in (features, *module.parameters()):
            tensor.grad = None
        module(features).backward(direction)

    return _third_call(step)


def count_evaluation(module: nn.Module, features: Tensor) -> CountOperations:
    """Forward in eval mode without gradients, after calls that do not count."""
    module.eval()
    with torch.no_grad():
        return _third_call(lambda: module(features))


def _third_call(call: Callable[[], object]) -> CountOperations:
    # Constants that are made once are not counted.
    for _ in range(2):
        call()
    with CountOperations() as count:
        call()
    return count
