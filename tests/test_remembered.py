"""Results are made once, and anew as soon as a value that they depend on changes."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from operations import CountOperations
from torch import Tensor

from escnn_relaxed.group.remembered import Remembered


class Counted:
    """The cosine of angles, and how often it was taken."""

    def __init__(self) -> None:
        self.remembered = Remembered()
        self.calls = 0

    def __call__(self, angles: Tensor, setting: object = None) -> Tensor:
        def build() -> Tensor:
            self.calls += 1
            return angles.cos()

        return self.remembered.get(setting, build, [angles])


def test_unchanged_constants_are_not_asked_again() -> None:
    counted, angles = Counted(), torch.randn(3)
    assert counted(angles) is counted(angles)
    assert counted.calls == 1


CHANGES = {
    "written to": lambda angles: angles.add_(1),
    "copied into": lambda angles: angles.copy_(torch.zeros(3)),
    "another tensor": lambda angles: angles + 1,
    "cast": torch.Tensor.double,
    "by its data": lambda angles: angles.data.add_(1),
    "by NumPy": lambda angles: torch.from_numpy(np.add(angles.numpy(), 1, out=angles.numpy())),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changed_constants_are_asked_again(change) -> None:
    counted, angles = Counted(), torch.randn(3)
    counted(angles)
    changed = change(angles)
    assert torch.equal(counted(changed), changed.cos())
    assert counted.calls == 2


def test_another_setting_is_another_result() -> None:
    counted, angles = Counted(), torch.randn(3)
    counted(angles, "here")
    counted(angles, "there")
    assert counted.calls == 2


def test_a_gradient_is_never_cut_off() -> None:
    counted, angles = Counted(), torch.randn(3, requires_grad=True)
    for _ in range(2):
        assert counted(angles).requires_grad
    assert counted.calls == 2


def test_what_was_made_in_inference_mode_serves_training() -> None:
    counted, angles = Counted(), torch.randn(3)
    with torch.inference_mode():
        counted(angles)
    weight = torch.ones(3, requires_grad=True)
    (counted(angles) * weight).sum().backward()
    assert torch.equal(weight.grad, angles.cos())
    assert counted.calls == 1


def test_a_tensor_with_the_same_values_is_not_asked_again() -> None:
    counted, angles = Counted(), torch.randn(3)
    assert counted(angles) is counted(angles.clone())


@pytest.fixture
def on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("escnn_relaxed.torch_modes.reads_without_waiting", lambda tensor: False)


@pytest.mark.usefixtures("on_an_accelerator")
def test_training_on_an_accelerator_reads_no_values() -> None:
    counted, angles = Counted(), torch.randn(3)
    first = counted(angles)
    with CountOperations() as count:
        assert counted(angles) is first
    assert not count.operations
    angles.add_(1)
    assert torch.equal(counted(angles), angles.cos())
    assert counted(angles.clone()) is not first


@pytest.mark.usefixtures("on_an_accelerator")
def test_tensors_of_inference_mode_are_asked_again_in_training() -> None:
    """They have no version, and their values must not be read."""
    counted = Counted()
    with torch.inference_mode():
        angles = torch.randn(3)
    for _ in range(2):
        assert torch.equal(counted(angles), angles.cos())
    assert counted.calls == 2


@pytest.mark.usefixtures("on_an_accelerator")
def test_evaluation_on_an_accelerator_waits_once_and_sees_every_change() -> None:
    remembered, tensors = Remembered(), [torch.randn(3), torch.randn(2, 2), torch.arange(2)]

    def total() -> Tensor:
        return remembered.get("total", lambda: sum(tensor.sum() for tensor in tensors), tensors, may_wait=True)

    first = total()
    with CountOperations() as count:
        assert total() is first
    # The values of each dtype are compared as one tensor.
    assert count.waits == {"equal": 2}
    tensors[1].data.add_(1)
    assert total().item() == pytest.approx(first.item() + 4)
    tensors[0] = tensors[0].view(3, 1)
    assert total().item() == pytest.approx(first.item() + 4)


def test_a_dropped_result_stays_where_it_is_if_it_comes_out_the_same() -> None:
    """A captured CUDA graph reads it by its address."""
    counted, angles = Counted(), torch.randn(3)
    first = counted(angles)
    counted.remembered.drop()
    assert counted(angles) is first
    assert counted.calls == 2


@pytest.mark.parametrize("new", [torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.ones(2)])
def test_another_result_takes_the_place_of_a_dropped_one(new: Tensor) -> None:
    remembered = Remembered()
    remembered.get("key", lambda: torch.zeros(2), [])
    remembered.drop()
    assert remembered.get("key", lambda: new, []) is new


def test_results_without_values_are_not_compared() -> None:
    remembered, new = Remembered(), torch.zeros(2, device="meta")
    remembered.get("key", lambda: torch.zeros(2, device="meta"), [])
    remembered.drop()
    assert remembered.get("key", lambda: new, []) is new


def test_the_store_is_bounded_and_keeps_what_was_asked_for_last() -> None:
    counted, angles = Counted(), torch.randn(3)
    for key in range(200):
        counted(angles, key)
    assert len(counted.remembered._entries) == 16
    counted(angles, 199)
    assert counted.calls == 200


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_remember_nothing(duplicate) -> None:
    remembered, angles = Remembered(), torch.randn(3)
    remembered.get("key", lambda: angles.cos(), [angles])
    assert duplicate(remembered).get("key", lambda: "anew", [angles]) == "anew"
