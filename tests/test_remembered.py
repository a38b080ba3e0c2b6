"""What is made of constants is made once, and anew as soon as one of them changes."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

from escnn_relaxed.group.remembered import Remembered


class Counted:
    """The cosine of angles, and how often it was taken."""

    def __init__(self) -> None:
        self.remembered = Remembered()
        self.calls = 0

    def __call__(self, angles: Tensor, setting: object = None) -> Tensor:
        def build() -> tuple[Tensor]:
            self.calls += 1
            return (angles.cos(),)

        (result,) = self.remembered.get(build, [angles], setting)
        return result


def test_unchanged_constants_are_not_asked_again() -> None:
    counted, angles = Counted(), torch.randn(3)
    assert counted(angles) is counted(angles)
    assert counted.calls == 1


CHANGES = {
    "written to": lambda angles: angles.add_(1),
    "copied into": lambda angles: angles.copy_(torch.zeros(3)),
    "another tensor": torch.clone,
    "cast": torch.Tensor.double,
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


def test_writing_past_the_counter_of_versions_needs_a_word() -> None:
    counted, angles = Counted(), torch.randn(3)
    counted(angles)
    angles.data.add_(1)
    counted.remembered.forget()
    assert torch.equal(counted(angles), angles.cos())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_remember_nothing(duplicate) -> None:
    remembered, angles = Remembered(), torch.randn(3)
    remembered.get(lambda: (angles.cos(),), [angles])
    assert duplicate(remembered).get(lambda: ("anew",), [angles]) == ("anew",)
