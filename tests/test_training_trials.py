"""Which softness helps, by training further: the order of trials, equal trainings, what is copied, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import small
import torch
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.learning import which_softness_helps
from escnn_relaxed.network.relaxed_layers import relaxed_layers


def network() -> RelaxedR2Conv:
    image = small.field_type("D4", "trivial")
    return RelaxedR2Conv(image, image, 5, relax=("rotation", "reflection"), initial_softness=0.1)


def losses_of(costs: dict[frozenset[str], float], spread: float = 0.0) -> Callable[[nn.Module], Tensor]:
    """Losses of a hundred inputs whose mean is known for each set of subgroups in which a network is strict."""

    def losses(copy: nn.Module) -> Tensor:
        assert not copy.training
        (layer,) = relaxed_layers(copy).values()
        # Numbers of mean 0 and variance 1, so that errors are spread / 10.
        numbers = torch.tensor([-1.0, 1.0]).repeat(50)
        return costs[frozenset(layer.hardened)] + numbers * (spread if layer.hardened else 0.0)

    return losses


NOTHING: frozenset[str] = frozenset()
ROTATION, REFLECTION, BOTH = frozenset({"rotation"}), frozenset({"reflection"}), frozenset({"rotation", "reflection"})


@pytest.mark.parametrize(
    ("costs", "helps", "hardened", "trainings"),
    [
        ({NOTHING: 1, ROTATION: 2, REFLECTION: 1, BOTH: 2}, {"rotation": True, "reflection": False}, REFLECTION, 4),
        ({NOTHING: 1, ROTATION: 1, REFLECTION: 2, BOTH: 2}, {"rotation": False, "reflection": True}, ROTATION, 4),
        ({NOTHING: 1, ROTATION: 2, REFLECTION: 3}, {"rotation": True, "reflection": True}, NOTHING, 3),
        ({NOTHING: 1, ROTATION: 1, REFLECTION: 1, BOTH: 1}, {"rotation": False, "reflection": False}, BOTH, 4),
        # Either can do the work of the other: one of them has to stay soft.
        ({NOTHING: 1, ROTATION: 0.9, REFLECTION: 1, BOTH: 2}, {"rotation": False, "reflection": True}, ROTATION, 4),
    ],
)
def test_what_is_missed_least_becomes_strict_first(
    costs: dict[frozenset[str], float], helps: dict[str, bool], hardened: frozenset[str], trainings: int
) -> None:
    trained: list[nn.Module] = []
    found = which_softness_helps(network(), trained.append, losses_of(costs))
    assert found.helps == helps
    assert found.trainings == len(trained) == trainings
    (layer,) = relaxed_layers(found.network).values()
    assert set(layer.hardened) == hardened
    assert any(found.network is copy for copy in trained)


@pytest.mark.parametrize(
    ("rise", "spread", "options", "helps"),
    [
        # Above a few errors, of 0.1 each.
        *[(0.29, 1.0, {"errors": 3.0}, False), (0.31, 1.0, {"errors": 3.0}, True), (0.21, 1.0, {"errors": 2.0}, True)],
        # Certain and small: a hundred inputs have to make softness 20 times as likely, 0.03 each.
        *[(0.02, 0.01, {"odds": 20.0}, False), (0.04, 0.01, {"odds": 20.0}, True)],
        *[(0.04, 0.01, {"odds": 100.0}, False), (0.02, 0.01, {"odds": 2.0}, True)],
    ],
)
def test_a_rise_helps_where_it_is_above_a_few_errors_and_large(
    rise: float, spread: float, options: dict[str, float], helps: bool
) -> None:
    losses = losses_of({NOTHING: 1, ROTATION: 1 + rise}, spread)
    found = which_softness_helps(network(), lambda copy: None, losses, subgroups=("rotation",), **options)
    (row,) = found.rows
    assert (row.rise, row.error) == pytest.approx((rise, spread / 10), rel=1e-4)  # single precision
    assert found.helps == {"rotation": helps} == {"rotation": row.helps}
    assert str(found).splitlines()[1].split()[0] == "rotation"


def test_trainings_are_alike_and_leave_the_network_and_the_generator() -> None:
    layer, drawn = network(), []
    before = {key: value.clone() for key, value in layer.state_dict().items()}

    def train(copy: nn.Module) -> None:
        assert copy.training
        drawn.append(torch.rand(3).tolist())
        with torch.no_grad():
            for parameter in copy.parameters():
                parameter.add_(1)

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    costs = {NOTHING: 1.0, ROTATION: 1.0, REFLECTION: 1.0, BOTH: 1.0}
    found = which_softness_helps(layer, train, losses_of(costs), seed=3)
    assert torch.equal(torch.rand(1), expected)
    assert drawn == [drawn[0]] * 4
    assert layer.hardened == ()
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    # The last one was trained from the start, not from the one before.
    weights = next(iter(relaxed_layers(found.network).values())).weights
    torch.testing.assert_close(weights, before["weights"] + 1)


STRICT = RelaxedR2Conv(*[small.field_type("C4", "trivial")] * 2, 3, relax=None)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"network": STRICT}, ValueError, "network must be soft"),
        ({"losses": lambda copy: 1.0}, TypeError, "losses must return a tensor"),
        ({"losses": lambda copy: torch.tensor([1.0, torch.nan])}, ValueError, "finite"),
        ({"subgroups": ("turn",)}, ValueError, "subgroups must be of"),
        ({"errors": 0}, ValueError, "errors must be"),
        ({"odds": 1}, ValueError, "odds must be above 1"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        which_softness_helps(**{"network": network(), "train": print, "losses": losses_of({NOTHING: 1.0}), **arguments})
