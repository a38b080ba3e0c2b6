"""A schedule of softness that ends strict."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..checks import check_bool, check_integer, check_mapping, check_number
from ..network.relaxed_layers import relaxed_layers
from .penalty import equivariance_penalty

__all__ = ["HardeningSchedule"]


class HardeningSchedule:
    """Relaxed in training, strict at the end: a rising penalty, then hardening, then strict training to the end.

    After Pertigkiozoglou, Chatzipantazis, Trivedi and Daniilidis, "Improving Equivariant Model Training via Constraint
    Relaxation" (NeurIPS 2024). In a training loop of ``steps`` steps::

        schedule = HardeningSchedule(network, steps)
        for images, labels in batches:
            loss = cross_entropy(network(images), labels) + schedule.penalty()
            ...
            optimiser.step()
            schedule.step()

    Batch norm estimates its statistics anew in the strict steps; where ``harden_at`` is 1 call
    :func:`torch.optim.swa_utils.update_bn` after training.

    Args:
        network: the network, hardened in place.
        steps: number of training steps.
        harden_at: part of the steps after which the layers become their strict parts, in (0, 1].
        largest_penalty: λ of Σ √s at that step; it rises linearly from 0.

    Attributes:
        is_hardened: whether it has happened.

    Raises:
        TypeError: for a network that is no module, or a value that is no number.
        ValueError: for values outside of their range, or a network without a relaxed layer.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = RelaxedR2Conv(
        ...     fields, fields, 3, relax={"rotation": 0.25}, initial_softness=0.04
        ... )
        >>> schedule = HardeningSchedule(layer, steps=4, harden_at=0.5, largest_penalty=0.3)
        >>> for _ in range(3):
        ...     print(f"penalty {schedule.penalty().item():.2f}, s {layer.softness().item():.2f}")
        ...     schedule.step()
        penalty 0.00, s 0.04
        penalty 0.03, s 0.04
        penalty 0.00, s 0.00
    """

    def __init__(self, network: nn.Module, steps: int, harden_at: float = 2 / 3, largest_penalty: float = 0.0) -> None:
        check_integer("steps", steps, 1)
        if not 0 < check_number("harden_at", harden_at) <= 1:
            raise ValueError(f"harden_at must be in (0, 1], got {harden_at}")
        if not (math.isfinite(check_number("largest_penalty", largest_penalty)) and largest_penalty >= 0):
            raise ValueError(f"largest_penalty must be finite and >= 0, got {largest_penalty}")
        self.network = network
        self._layers = relaxed_layers(network)
        self._harden_at = max(1, round(steps * harden_at))
        self._largest_penalty = largest_penalty
        self._step = 0
        self.is_hardened = False

    def penalty(self) -> Tensor:
        """Return λ Σ √s at the present step."""
        if self.is_hardened or self._largest_penalty == 0:
            return torch.zeros(())
        weight = self._largest_penalty * self._step / self._harden_at
        return weight * equivariance_penalty(self.network)

    def step(self) -> None:
        """Count a training step, and harden the network at the step chosen for it."""
        self._step += 1
        if self._step >= self._harden_at and not self.is_hardened:
            self._harden()

    def state_dict(self) -> dict[str, float]:
        """Return the step and whether the network is hardened."""
        return {"step": self._step, "is_hardened": self.is_hardened}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from a saved step; a network that was hardened by then is hardened.

        Raises:
            TypeError: for a state that is no mapping, or with values of the wrong type.
            ValueError: for other keys.
        """
        if check_mapping("state", state, "what state_dict gave").keys() != self.state_dict().keys():
            raise ValueError(f"state must have {list(self.state_dict())}, got {list(state)}")
        self._step = check_integer("state: step", state["step"], 0)
        if check_bool("state: is_hardened", state["is_hardened"]):
            self._harden()

    @property
    def was_hardened_last(self) -> bool:
        """Whether the last step was the one that hardened."""
        return self.is_hardened and self._step <= self._harden_at

    def _harden(self) -> None:
        for layer in self._layers.values():
            layer.harden()
        self.is_hardened = True
