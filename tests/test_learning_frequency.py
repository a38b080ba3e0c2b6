"""The grounds of learning ω′: a task pulls it up, also from 0, and the penalty down."""

import pytest
import small
import torch
from escnn.nn import R2Conv
from small import EVERY_KERNEL, soft_regular_layer

from escnn_relaxed import RelaxedR2Conv, parameter_groups, relax_network
from escnn_relaxed.learning import frequency_penalty


def learning_layer(soft_part: str, start: float) -> RelaxedR2Conv:
    return soft_regular_layer(soft_part, relax={"rotation": start}, learn_relaxation=True)


def learned_frequency(layer: RelaxedR2Conv, penalty: float, task: bool, steps: int = 40) -> float:
    """The task is the answer of another layer, which is soft."""
    optimiser = torch.optim.Adam(parameter_groups(layer, 3e-2), lr=3e-2)
    torch.manual_seed(5)
    target, features = soft_regular_layer(initial_softness=0.5), small.random_input(layer.in_type, 5, 5, batch=4)
    wanted = target(features := layer.in_type(features)).tensor.detach()
    for _ in range(steps):
        optimiser.zero_grad()
        loss = penalty * frequency_penalty(layer)
        (loss + (layer(features).tensor - wanted).square().mean() if task else loss).backward()
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


def test_layer_that_is_strict_at_first_can_learn_its_frequency() -> None:
    image, hidden = small.field_type("C4", "trivial"), small.field_type("C4", "regular")
    trained, options = R2Conv(image, hidden, 3), {"relax": {"rotation": 0.0}, "learn_relaxation": True}
    loaded = RelaxedR2Conv(image, hidden, 3, **options)
    loaded.load_state_dict(trained.state_dict())
    for layer in (loaded, relax_network(trained, **options)):
        assert layer.softness() == 0
        layer(image(torch.randn(2, 1, 5, 5))).tensor.square().sum().backward()
        assert layer.domain_frequency["rotation"].grad.abs() > 0  # 0 where the soft weights are 0, too
