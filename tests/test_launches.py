"""Few operations and no waiting in a step: on a GPU small layers take the time of their launches."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from escnn import gspaces
from escnn.group import Representation
from escnn.gspaces import GSpace2D
from escnn.nn import FieldType
from operations import CountOperations, count_evaluation, count_training
from torch import Tensor, nn

from benchmarks.speed import calls
from benchmarks.speed.sides import OnTensors
from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
from escnn_relaxed.baselines import LAYERS

# A gspace and representations, and how often these come.
FIELDS: dict[str, tuple[GSpace2D, Callable[[GSpace2D], list[Representation]], int]] = {
    "regular": (gspaces.rot2dOnR2(8), lambda g: [g.regular_repr], 8),
    "irreps": (gspaces.rot2dOnR2(-1), lambda g: [g.irrep(frequency) for frequency in range(3)], 4),
    "mixed": (
        gspaces.flipRot2dOnR2(4),
        lambda g: [g.regular_repr, g.trivial_repr, g.irrep(1, 1), g.quotient_repr((None, 2))],
        2,
    ),
    "plane": (gspaces.trivialOnR2(), lambda g: [g.trivial_repr], 64),
}
BOTH = {"translation": 0.25, "rotation": 0.25}
# Fields, arguments, and the numbers of operations with torch 2.13: of a step of training, and of a call in evaluation.
RELAXED: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "strict": ("regular", {"relax": None}, 8, 4),
    "soft rotation": ("regular", {}, 17, 6),
    "soft rotation, continuous": ("regular", {"kernel": ContinuousKernel()}, 40, 25),
    "soft rotation, learned": ("regular", {"learn_relaxation": True}, 40, 14),
    "soft rotation, irreps of SO(2)": ("irreps", {}, 49, 21),
    "soft rotation, mixed fields of D4": ("mixed", {}, 63, 28),
    "strict, mixed fields of D4": ("mixed", {"relax": None}, 41, 20),
    "soft translation": ("plane", {"relax": {"translation": 0.25}}, 18, 6),
    "soft translation and rotation": ("regular", {"relax": BOTH}, 29, 9),
}
RELAXED |= {"partial": ("regular", {}, 41, 19), "residual": ("regular", {}, 11, 5), "weighted": ("regular", {}, 27, 11)}
SLACK = 3  # other versions of torch count a few more


def layer_of(name: str) -> nn.Module:
    fields, arguments, *_ = RELAXED[name]
    gspace, representations, count = FIELDS[fields]
    types = [FieldType(gspace, representations(gspace) * count)] * 2
    return OnTensors(LAYERS.get(name, RelaxedR2Conv)(*types, 7, padding=3, **arguments))


def images_for(module: nn.Module) -> Tensor:
    return torch.randn(2, module.layer.in_type.size, 16, 16)


@pytest.fixture(autouse=True)
def on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations are counted as on an accelerator, where reading values would wait."""
    monkeypatch.setattr("escnn_relaxed.torch_modes.reads_without_waiting", lambda *tensors: False)


@pytest.mark.parametrize("name", RELAXED)
def test_training_and_evaluation_have_few_operations_and_wait_for_nothing(name: str) -> None:
    """Evaluation makes the kernel anew."""
    module = layer_of(name)
    for count_calls, most in zip((count_training, count_evaluation), RELAXED[name][2:], strict=True):
        count = count_calls(module, images_for(module))
        assert count.operations.total() <= most + SLACK, count.operations
        assert not count.waits


# The most calls of the package's own functions, and the most that are within each other, with Python 3.11.
MOST_CALLS = {
    "training forward": (20, 5),
    "softness()": (21, 5),
    "forward in evaluation": (21, 5),
    "export()": (31, 7),
    "update of the evidence of two layers": (506, 13),
}


def test_what_is_called_most_is_read_in_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of the code follows them, and Python takes its time for each."""
    # In evaluation on the CPU, where the filter bank is kept.
    monkeypatch.undo()
    found = calls.counts()
    assert found.keys() == MOST_CALLS.keys()
    for name, (count, depth) in MOST_CALLS.items():
        assert found[name].count <= count, name
        assert found[name].depth <= depth, name


def test_exported_factors_wait_for_nothing() -> None:
    module = layer_of("soft translation")
    assert not count_evaluation(module.layer.export(), images_for(module)).waits


def test_a_count_sees_reads_and_tensors_made_of_numbers() -> None:
    values = torch.arange(3.0)
    with CountOperations() as count:
        values.view(3, 1).detach() + values
        values.sum().item()
        torch.tensor([1.0, 2.0])
        torch.equal(values, values)
    assert set(count.waits) == {"_local_scalar_dense", "equal", "lift_fresh"}
    assert count.operations == {"add": 1, "sum": 1, "_local_scalar_dense": 1, "equal": 1}
