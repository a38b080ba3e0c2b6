"""Relaxed training of strict networks: schedules of a gate on softness that end at 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from ..checks import check_choice, check_number

# From the progress of a training in [0, 1] to a gate.
Schedule: TypeAlias = Callable[[float], float]

SCHEDULES: dict[str, Schedule] = {
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "linear": lambda progress: 1 - progress,
    "constant then linear": lambda progress: min(1.0, 2 - 2 * progress),
    # Of Pertigkiozoglou et al. (2024), where their code calls it mix_coef.
    "triangle": lambda progress: 1 - abs(2 * progress - 1),
}


def annealed_gate(progress: float, schedule: str | Schedule = "cosine") -> float:
    """Return the gate g on softness at some progress of a training, which is 0 at its end.

    g falls from 1, but for ``"triangle"``, which rises from 0 to 1 in the first half and falls to 0 in the second, both
    linearly. This is the schedule in the `code <https://github.com/StefanosPert/Equivariant_Optimization_CR>`_ of
    Pertigkiozoglou et al. (2024). The penalties that they add to the loss are not here, and their relaxation adds a
    linear map without symmetry to each layer, where g multiplies K − PK.

    Training at g = 0 is that of a strict network: :func:`~escnn_relaxed.harden_network` then changes nothing but the
    cost::

        for epoch in range(epochs):
            with gate_softness(network, annealed_gate(epoch / (epochs - 1))):
                train_one_epoch(network)
        strict = harden_network(network)

    Args:
        progress: from 0 to 1, for instance epoch / (epochs - 1), so that the last epoch is strict.
        schedule: ``"cosine"``, ``"linear"``, ``"constant then linear"``, which is 1 for the first half, or
            ``"triangle"``; or a function from the progress to g, which is 0 at progress 1.

    Raises:
        TypeError: for a progress that is no number, or a schedule that is neither a name nor a function.
        ValueError: for a progress outside of [0, 1], another name, or a function whose g is not finite.

    Example:
        >>> [round(annealed_gate(epoch / 4), 2) for epoch in range(5)]
        [1.0, 0.85, 0.5, 0.15, 0.0]
        >>> [annealed_gate(epoch / 4, "constant then linear") for epoch in range(5)]
        [1.0, 1.0, 1.0, 0.5, 0.0]
        >>> [annealed_gate(epoch / 4, "triangle") for epoch in range(5)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if not 0 <= check_number("progress", progress) <= 1:
        raise ValueError(f"progress must be from 0 to 1, got {progress!r}")
    if callable(schedule):
        gate = float(schedule(progress))
        if not math.isfinite(gate):
            raise ValueError(f"schedule must return a finite number, got {gate} at progress {progress!r}")
        return gate
    return SCHEDULES[check_choice("schedule", schedule, tuple(SCHEDULES))](progress)
