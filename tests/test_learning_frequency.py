"""The grounds of learning ω′: ω′ = 0 is no trap, Σ‖ω′‖² can be evaded and Σ√s cannot."""

from __future__ import annotations

import pytest
import small
import torch
from small import EVERY_KERNEL, soft_regular_layer

from escnn_relaxed import RelaxedR2Conv, equivariance_error, frequency_penalty, parameter_groups


def learning_layer(soft_part: str, start: float, **arguments: float) -> RelaxedR2Conv:
    return soft_regular_layer(soft_part, relax={"rotation": start}, learn_relaxation=True, **arguments)


def soft_loss(layer: RelaxedR2Conv) -> torch.Tensor:
    """The distance to the answer of another layer, which is soft."""
    torch.manual_seed(5)
    target = soft_regular_layer(initial_softness=0.5)
    features = layer.in_type(small.random_input(layer.in_type, 5, 5, batch=4))
    return (layer(features).tensor - target(features).tensor.detach()).square().mean()


def learned_frequency(layer: RelaxedR2Conv, penalty: float, task: bool, steps: int = 40) -> float:
    optimiser = torch.optim.Adam(parameter_groups(layer, 3e-2), lr=3e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = penalty * frequency_penalty(layer)
        (loss + soft_loss(layer) if task else loss).backward()
        optimiser.step()
    return abs(layer.domain_frequency["rotation"].item())


@pytest.mark.slow
@EVERY_KERNEL
@pytest.mark.parametrize("start", [0.0, 0.05])
def test_a_task_that_needs_softness_pulls_the_frequency_up(start: float, soft_part: str) -> None:
    layer = learning_layer(soft_part, start)
    # Long enough for one that goes down first: −ω′ is as good as ω′.
    assert learned_frequency(layer, penalty=1e-3, task=True, steps=80) > start + 0.01
    assert layer.softness().item() > 1e-3


def test_the_penalty_pulls_the_frequency_to_zero_where_no_task_does() -> None:
    assert learned_frequency(learning_layer("tied", 0.25), penalty=1.0, task=False) < 0.05


def test_the_sum_of_squares_can_be_evaded_and_softness_not() -> None:
    """A small ω′ enters the kernel only as a product with the weights: one falls, the others rise."""
    layer = learning_layer("tied", 0.01, initial_softness=0.2)
    before, softness = layer.filter_bank(), layer.softness().item()
    error = equivariance_error(layer, 9).exact[0].error
    penalty = frequency_penalty(layer).item()
    with torch.no_grad():
        layer.domain_frequency["rotation"].div_(10)
        layer.kernel.scale_soft_part(10.0)
    change = (layer.filter_bank() - before).norm() / before.norm()
    # Terms of second order in 2πω′ ~ 0.06 of the soft part, which is √0.2 of the kernel.
    assert change.item() < 0.003
    assert frequency_penalty(layer).item() == pytest.approx(penalty / 100, rel=1e-6)
    assert layer.softness().item() == pytest.approx(softness, rel=0.05)
    assert equivariance_error(layer, 9).exact[0].error == pytest.approx(error, rel=0.05)
