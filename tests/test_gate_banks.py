"""How many filter banks a gated layer convolves with: a number adds those that have the same factors at the pixels."""

from typing import Any

import pytest
import small
import torch
from errors import ROUNDING, relative_error
from small_networks import answer, features_of
from test_own_kernels import OwnKernel
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from escnn_relaxed import RelaxedR2Conv, gate_softness, harden_network

BOTH = {"rotation": 0.2, "translation": 0.3}


class RecordWeights(TorchDispatchMode):
    """Within its context: the output channels of each convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.channels: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.overloadpacket is torch.ops.aten.convolution:
            self.channels.append(len(args[1]))
        return function(*args, **(kwargs or {}))


def banks_of(layer: RelaxedR2Conv, features: Tensor) -> float:
    with RecordWeights() as record:
        answer(layer, features)
    (channels,) = record.channels
    return channels / layer.out_type.size


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    ("relax", "subgroups", "expected"),
    [
        ("rotation", (), 1),
        ("translation", (), 1),
        (BOTH, ("rotation",), 1),
        (BOTH, ("translation",), 1),
        # g F(x) B + (1 − g) C with another bank C: no single bank times factors is this sum.
        (BOTH, (), 2),
    ],
)
def test_a_number_takes_the_banks_of_the_layer_where_one_product_is_the_sum(
    relax: Any, subgroups: tuple[str, ...], expected: int, mode: str
) -> None:
    layer = small.soft_layer("C4", "two regular -> two regular", padding=1, relax=relax).train(mode == "train")
    features = features_of(layer)
    whole, strict = answer(layer, features), answer(harden_network(layer, subgroups), features)
    for gate in (0.3, torch.tensor(0.3, dtype=torch.float64)):
        with gate_softness(layer, gate, *subgroups):
            assert banks_of(layer, features) == expected
            assert relative_error(answer(layer, features), strict + 0.3 * (whole - strict)) <= ROUNDING


class SoftInBoth(OwnKernel):
    """K_strict · (1 + gain) · F(x); F of the mean over the rotations is that of K, or ``slope`` times as steep."""

    slope = 1.0
    relaxed_subgroups = ("rotation", "translation")

    def __init__(self, config) -> None:
        super().__init__(config)
        self.kept: dict[tuple[float, int], Tensor] = {}

    @torch.no_grad()
    def start(self, weights: Tensor | None, softness: float) -> None:
        self.gains.normal_(0, 0.3)

    def varies(self, averaged=()) -> bool:
        return "translation" not in averaged

    def filters(self, weights: Tensor | None, size: tuple[int, ...], averaged=()) -> tuple[Tensor, Tensor | None]:
        bank = self(weights, averaged)
        if not self.varies(averaged):
            return bank, None
        slope = self.slope if "rotation" in averaged else 1.0
        columns = torch.linspace(-1, 1, size[1]).to(bank).expand(1, len(bank), *size)
        return bank[None], self.kept.setdefault((slope, size[1]), 1 + slope * columns)


@torch.no_grad()
@pytest.mark.parametrize(("slope", "expected"), [(1.0, 1), (0.5, 2)])
def test_kernels_of_users_keep_a_bank_for_each_of_the_factors_that_differ(slope: float, expected: int) -> None:
    types = small.types("C4", "regular -> regular")
    kernel = type("Steep", (SoftInBoth,), {"slope": slope})
    arguments: dict[str, Any] = {"relax": ("rotation", "translation"), "padding": 1}
    layer = RelaxedR2Conv(*types, 3, kernel=kernel, **arguments).double()
    features = features_of(layer)
    whole = answer(layer, features)
    for subgroups, banks in ((("rotation",), expected), (("translation",), 2), ((), 2)):
        strict = answer(harden_network(layer, subgroups), features)
        with gate_softness(layer, 0.3, *subgroups):
            assert banks_of(layer, features) == banks
            assert relative_error(answer(layer, features), strict + 0.3 * (whole - strict)) <= ROUNDING
        gates = torch.tensor([0.3, -0.7], dtype=torch.float64)[: len(features)]
        with gate_softness(layer, gates, *subgroups):
            found = answer(layer, features)
        assert relative_error(found, strict + gates.view(-1, 1, 1, 1) * (whole - strict)) <= ROUNDING


@pytest.mark.parametrize("relax", ["rotation", "translation", BOTH])
@pytest.mark.parametrize(
    "gate", [0.3, torch.tensor([0.3, -0.7], dtype=torch.float64)], ids=["number", "for each input"]
)
def test_the_strict_kernel_of_all_means_is_made_once(relax: Any, gate: Any) -> None:
    layer = small.soft_layer("C4", "two regular -> two regular", padding=1, relax=relax)
    calls: list[Any] = []
    layer.kernel.basis.register_forward_hook(lambda *_: calls.append(None))
    features = features_of(layer)
    with gate_softness(layer, gate):
        answer(layer, features)
    assert len(calls) == 1
