"""Relaxed training of strict networks: a gate from 1 to 0, in a plain loop."""

import pytest
import torch
from errors import BROKEN, ROUNDING, relative_error
from small import soft_regular_layer
from small_networks import answer, train_a_step

from escnn_relaxed import gate_softness, harden_network
from escnn_relaxed.learning import annealed_gate
from escnn_relaxed.learning.annealing import SCHEDULES


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "triangle"])
def test_schedules_fall_from_one_to_zero(schedule: str) -> None:
    gates = [annealed_gate(step / 20, schedule) for step in range(21)]
    assert (gates[0], gates[-1]) == (1, 0)
    assert gates == sorted(gates, reverse=True)
    assert annealed_gate(0.5, schedule) == pytest.approx(1.0 if "constant" in schedule else 0.5)


def test_triangle_is_the_schedule_of_pertigkiozoglou_and_others() -> None:
    """By the lines of their training code, of 20 epochs."""
    for epoch in range(20):
        theirs = 2 * epoch / 20 if epoch <= 20 / 2 else 1 - 2 * (epoch - 20 / 2) / 20
        assert annealed_gate(epoch / 20, "triangle") == pytest.approx(theirs, abs=1e-15)
    assert annealed_gate(1.0, "triangle") == 0


def test_a_function_is_a_schedule_and_others_are_refused() -> None:
    assert annealed_gate(0.5, lambda progress: (1 - progress) ** 2) == 0.25
    with pytest.raises(ValueError, match=r"progress must be from 0 to 1, got 1.5"):
        annealed_gate(1.5)
    with pytest.raises(ValueError, match=r"progress must be from 0 to 1, got -0.5"):
        annealed_gate(-0.5)
    # Functions of NumPy or torch return numbers of theirs.
    assert type(annealed_gate(0.5, lambda progress: torch.tensor(progress))) is float
    with pytest.raises(ValueError, match=r"schedule must be one of \['cosine', 'linear', .*\], got 'exponential'"):
        annealed_gate(0.5, "exponential")


def test_a_loop_over_the_schedule_ends_at_a_strict_network() -> None:
    layer = soft_regular_layer()
    for epoch in range(5):
        with gate_softness(layer, annealed_gate(epoch / 4)):
            train_a_step(layer)
            found, strict = answer(layer), answer(harden_network(layer))
    assert relative_error(found, strict) <= ROUNDING
    assert relative_error(answer(layer), strict) > BROKEN
