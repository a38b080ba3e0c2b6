"""Low precision beyond the battery: strict layers, exported ones, and deep networks beside those of R2Conv."""

from __future__ import annotations

import pickle

import numpy as np
import small
import torch
from errors import relative_error
from escnn.nn import EquivariantModule, FieldType, InnerBatchNorm, R2Conv, ReLU, SequentialModule
from small_networks import answer, features_of
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.group.exact_constants import ExactConstants

# Units of the last place, of an input, a filter bank and an output that are rounded once each.
PRECISIONS = {torch.bfloat16: 2**-7, torch.float16: 2**-10}


DEPTH = 10


def deep(make: type[EquivariantModule], image: FieldType, fields: FieldType, **arguments: object) -> SequentialModule:
    """Ten layers from images to fields, the same weights for each class."""
    torch.manual_seed(2)
    layers: list[EquivariantModule] = []
    for depth in range(DEPTH):
        layer = make(fields if depth else image, fields, 3, padding=1, **arguments)
        layers += [layer, InnerBatchNorm(fields), ReLU(fields)]
    return SequentialModule(*layers)


def test_autocast_of_a_deep_network_errs_no_more_than_that_of_r2conv() -> None:
    """With equal weights: R2Conv's filter is rounded where it is computed, ours once."""
    image, fields = small.types("D4", "trivial -> two regular")
    plain = deep(R2Conv, image, fields)
    strict, soft = (deep(RelaxedR2Conv, image, fields, **of) for of in ({"relax": None}, {"initial_softness": 0.1}))
    strict.load_state_dict(plain.state_dict())
    with torch.no_grad():
        for ours, theirs in zip(soft, plain, strict=True):
            if isinstance(theirs, R2Conv):
                ours.weights.copy_(theirs.weights)
    features = features_of(plain, side=16, batch=4)
    errors = []
    for network in (plain, strict, soft):
        expected = answer(network, features)
        with torch.autocast("cpu", torch.bfloat16):
            errors.append(relative_error(answer(network, features).float(), expected))
    # Roundings of ten layers add up at random: found 0.013 to 0.017 of R2Conv, 0.010 to 0.016 of ours.
    assert max(errors[1:]) <= 1.25 * errors[0]
    assert errors[0] <= DEPTH * PRECISIONS[torch.bfloat16]


# --- constants --------------------------------------------------------------------------------------------------------


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
