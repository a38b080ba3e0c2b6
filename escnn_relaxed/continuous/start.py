"""The start of a continuous kernel: its softness and the units of its weights (docs/results/soft-part.md)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from ..checks import SUBGROUPS
from .nets import KernelNet
from .steered_average import SteeredAverage

__all__ = ["in_double_precision", "start_weights"]

# Makes the features (J + 1, M, P, R, T) of a net, as means over some subgroups.
Features = Callable[[KernelNet, Sequence[str]], Tensor]

_TINY = 1e-12
# With domain weights above this, the kernel would change faster over the group than ω′ says.
_MOST_SCALE = 3.0


@contextlib.contextmanager
def in_double_precision(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Put a module into float64 for a ``with`` block, so that no rounding is scaled up to a kernel."""
    module.double()
    try:
        yield
    finally:
        module.to(dtype)


def start_weights(
    average: SteeredAverage,
    net: KernelNet,
    new_net: Callable[[], KernelNet],
    features: Features,
    softness: float | None,
) -> None:
    """Fix the softness at the start and the units of the weights of a continuous kernel, and draw the weights."""
    ranks = average.count_directions(features(_reference_net(new_net), ()))
    if softness is not None and net.domain_weight is not None:
        _soften(average, net, net.domain_weight, features, ranks, softness)
    average.initialize(features(net, ()), ranks)


def _reference_net(new_net: Callable[[], KernelNet]) -> KernelNet:
    """Return a net on which directions are counted: the same for every seed and default dtype of torch."""
    default = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float32)
        try:
            return new_net().double()
        finally:
            torch.set_default_dtype(default)


def _soften(
    average: SteeredAverage,
    net: KernelNet,
    domain_weight: nn.Parameter,
    features: Features,
    ranks: list[int | None],
    wanted: float,
) -> None:
    """Scale the domain weights of the kernel net until the expected softness is the wanted one."""
    # Small domain weights start a layer nearly strict while ω′ keeps its meaning (docs/results/soft-part.md).
    scale = 0.1
    domain_weight.mul_(scale)
    for _ in range(6):
        softness = _expected_softness(average, features(net, ()), features(net, SUBGROUPS), ranks)
        if softness < _TINY:
            return
        # Softness grows as the square of small weights.
        step = min(max(math.sqrt(wanted / softness), 0.1), 10.0, _MOST_SCALE / scale)
        domain_weight.mul_(step)
        scale *= step


def _expected_softness(average: SteeredAverage, features: Tensor, mean: Tensor, ranks: list[int | None]) -> float:
    """Return E‖K − PK‖² / E‖K‖² over the draw of the output weights, given the features of K and of PK."""
    mean = mean.expand_as(features)
    units = [pair.units_of(features, rank) for pair, rank in zip(average.block_pairs, ranks, strict=True)]
    soft = total = 0.0
    for pair, unit, variance in zip(average.block_pairs, units, average.weight_variances(units), strict=True):
        energy = math.prod(pair.counts) * variance
        steered, strict = pair.steering(features), pair.steering(mean)
        total += energy * float((unit @ steered.flatten(1)).square().sum())
        soft += energy * float((unit @ (steered - strict).flatten(1)).square().sum())
    return soft / total if total else 0.0
