"""Few operations and no waiting in a step: on a GPU small layers take the time of their launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from escnn import gspaces
from escnn.nn import FieldType
from operations import CountOperations, count_evaluation, count_training
from torch import Tensor, nn

from benchmarks.speed import calls
from benchmarks.speed.sides import OnTensors
from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
from escnn_relaxed.baselines import LAYERS


def _regular() -> FieldType:
    gspace = gspaces.rot2dOnR2(8)
    return FieldType(gspace, [gspace.regular_repr] * 8)


def _irreps() -> FieldType:
    gspace = gspaces.rot2dOnR2(-1)
    return FieldType(gspace, [gspace.irrep(frequency) for frequency in range(3)] * 4)


def _mixed() -> FieldType:
    gspace = gspaces.flipRot2dOnR2(4)
    return FieldType(
        gspace, [gspace.regular_repr, gspace.trivial_repr, gspace.irrep(1, 1), gspace.quotient_repr((None, 2))] * 2
    )


def _plane() -> FieldType:
    gspace = gspaces.trivialOnR2()
    return FieldType(gspace, [gspace.trivial_repr] * 64)


BOTH = {"translation": 0.25, "rotation": 0.25}
# Fields, arguments, and the numbers of operations with torch 2.13: of a step of training, and of a call in evaluation.
RELAXED: dict[str, tuple[Callable[[], FieldType], dict[str, Any], int, int]] = {
    "strict": (_regular, {"relax": None}, 8, 4),
    "soft rotation": (_regular, {}, 17, 6),
    "soft rotation, continuous": (_regular, {"kernel": ContinuousKernel()}, 40, 25),
    "soft rotation, learned": (_regular, {"learn_relaxation": True}, 40, 14),
    "soft rotation, irreps of SO(2)": (_irreps, {}, 49, 21),
    "soft rotation, mixed fields of D4": (_mixed, {}, 63, 28),
    "strict, mixed fields of D4": (_mixed, {"relax": None}, 41, 20),
    "soft translation": (_plane, {"relax": {"translation": 0.25}}, 18, 6),
    "soft translation and rotation": (_regular, {"relax": BOTH}, 29, 9),
}
BASELINES = {"partial": (41, 19), "residual": (11, 5), "weighted": (27, 11)}
# Other versions of torch count a few more.
SLACK = 3


def layer_of(name: str) -> nn.Module:
    if name in BASELINES:
        fields = _regular()
        return OnTensors(LAYERS[name](fields, fields, 7, padding=3))
    fields_of, arguments, *_ = RELAXED[name]
    fields = fields_of()
    return OnTensors(RelaxedR2Conv(fields, fields, 7, padding=3, **arguments))


def operations_of(name: str) -> tuple[int, int]:
    return BASELINES[name] if name in BASELINES else RELAXED[name][2:]


def images_for(module: nn.Module, size: int = 16) -> Tensor:
    return torch.randn(2, module.layer.in_type.size, size, size)


def total(count: CountOperations) -> int:
    return count.operations.total()


@pytest.fixture(autouse=True)
def on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations are counted as on an accelerator, where reading values would wait."""
    monkeypatch.setattr("escnn_relaxed.torch_modes.reads_without_waiting", lambda *tensors: False)


EVERY_LAYER = pytest.mark.parametrize("name", [*RELAXED, *BASELINES])


@EVERY_LAYER
def test_step_of_training_has_few_operations_and_waits_for_nothing(name: str) -> None:
    module = layer_of(name)
    count = count_training(module, images_for(module))
    assert total(count) <= operations_of(name)[0] + SLACK, count.operations
    assert not count.waits


@EVERY_LAYER
def test_evaluation_makes_the_kernel_anew_and_waits_for_nothing(name: str) -> None:
    module = layer_of(name)
    count = count_evaluation(module, images_for(module))
    assert total(count) <= operations_of(name)[1] + SLACK, count.operations
    assert not count.waits


def test_default_layer_is_read_in_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the package's own functions: a reader of the code follows them, and Python takes its time for each."""
    layer = RelaxedR2Conv(_regular(), _regular(), 5, padding=2)
    features = layer.in_type(torch.randn(1, layer.in_type.size, 16, 16))
    layer(features)
    training = calls.count_calls(lambda: layer(features))
    assert training.count <= 36
    assert training.depth <= 7
    # In evaluation on the CPU, where the filter bank is kept.
    monkeypatch.undo()
    layer.eval()
    with torch.no_grad():
        layer(features)
        assert calls.count_calls(lambda: layer(features)).count <= 30


def test_exported_factors_wait_for_nothing() -> None:
    module = layer_of("soft translation")
    exported, features = module.layer.export(), images_for(module, 18)
    assert not count_evaluation(exported, features).waits


def test_a_plain_convolution_is_two_operations() -> None:
    assert total(count_training(nn.Conv2d(64, 64, 7, padding=3), torch.randn(2, 64, 16, 16))) == 2


def test_a_count_sees_reads_and_tensors_made_of_numbers() -> None:
    values = torch.arange(3.0)
    with CountOperations() as count:
        values.view(3, 1).detach() + values
        values.sum().item()
        torch.tensor([1.0, 2.0])
        torch.equal(values, values)
    assert set(count.waits) == {"_local_scalar_dense", "equal", "lift_fresh"}
    assert count.operations == {"add": 1, "sum": 1, "_local_scalar_dense": 1, "equal": 1}
