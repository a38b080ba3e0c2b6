"""Constants that are exact in every precision: replaced, copied, and results that are made of them."""

from __future__ import annotations

import pickle

import numpy as np
import torch
from torch import Tensor

from escnn_relaxed.group.exact_constants import ExactConstants


def test_replaced_constant_leaves_no_values_of_another_precision() -> None:
    constants = ExactConstants()
    constants.set_constant("value", np.array([1.0, 2.0]), single=np.array([1.5, 2.5]))
    assert constants.constant("value").tolist() == [1.5, 2.5]
    assert constants.double().constant("value").tolist() == [1.0, 2.0]
    constants.set_constant("value", np.array([3.0]))
    assert constants.float().constant("value").tolist() == [3.0]


def test_copy_holds_each_constant_once() -> None:
    constants = ExactConstants()
    constants.set_constant("value", np.zeros(10_000))
    copied = pickle.loads(saved := pickle.dumps(constants))
    assert len(saved) < 1.2 * 8 * 10_000
    assert torch.equal(copied.constant("value"), torch.zeros(10_000))


def test_results_of_a_few_settings_are_kept() -> None:
    constants, made = ExactConstants(), []

    def result_of(setting: int) -> Tensor:
        def build() -> Tensor:
            made.append(setting)
            return torch.full((1,), float(setting))

        return constants.remembered(setting, build)

    for setting in (*range(100), 99, 98):
        assert result_of(setting).item() == setting
    assert made == list(range(100))
    # The oldest are gone.
    result_of(0)
    assert made[100:] == [0]
