"""A bound on the softness of each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..checks import check_mapping, check_number, check_positive
from ..network.relaxed_layers import relaxed_layers

__all__ = ["SoftnessBound"]


class SoftnessBound:
    """Minimise the loss subject to s ≤ ε in each layer, by dual ascent on one multiplier a layer.

    Constrained learning in place of a weight λ that has to be found, after Manolache, Chamon and Niepert, "Learning
    (Approximately) Equivariant Networks via Constrained Optimization" (2025). In a training loop::

        bound = SoftnessBound(network, 0.01)
        for images, labels in batches:
            loss = cross_entropy(network(images), labels) + bound.penalty()
            ...
            optimiser.step()
            bound.step()

    Multipliers say which layer wants to be soft: they are the rate at which the loss would fall if ε grew.

    Args:
        network: the network.
        bound: ε, one for all layers or a dict from the name of a layer to its own.
        rate: step size of the multipliers.

    Raises:
        TypeError: for a network that is no module, or a bound or rate that is no number.
        ValueError: for a bound outside of [0, 1], an unknown layer, or a network without a relaxed layer.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> network = nn.SequentialModule(RelaxedR2Conv(fields, fields, 3, initial_softness=0.04))
        >>> bound = SoftnessBound(network, 0.01)
        >>> _ = bound.penalty()
        >>> bound.step()
        >>> round(bound.multipliers["0"], 3)  # s − ε
        0.03
    """

    def __init__(self, network: nn.Module, bound: float | Mapping[str, float], rate: float = 1.0) -> None:
        self._layers = relaxed_layers(network)
        self._bounds = dict(bound) if isinstance(bound, Mapping) else dict.fromkeys(self._layers, bound)
        if not self._bounds:
            raise ValueError(f"bound: no layer is bounded; relaxed layers are {list(self._layers)}")
        unknown = self._bounds.keys() - self._layers.keys()
        if unknown:
            raise ValueError(f"bound: {sorted(unknown)} are not relaxed layers; those are {list(self._layers)}")
        for name, value in self._bounds.items():
            if not 0 <= check_number(f"bound of {name!r}", value) <= 1:
                raise ValueError(f"bound: the softness of {name!r} must be bounded by a number in [0, 1], got {value}")
        self._rate = check_positive("rate", rate)
        self._limits = torch.tensor([float(limit) for limit in self._bounds.values()], dtype=torch.float64)
        self._multipliers = torch.zeros_like(self._limits)
        self._excess: Tensor | None = None

    @property
    def multipliers(self) -> dict[str, float]:
        """Name of each layer → its multiplier. Reading them waits for a device."""
        return dict(zip(self._bounds, self._multipliers.tolist(), strict=True))

    def penalty(self) -> Tensor:
        """Σ μ (s − ε), the constraints' part of the Lagrangian; nothing here or in :meth:`step` waits for a device."""
        softness = torch.stack([self._layers[name].softness() for name in self._bounds])
        self._limits, self._multipliers = self._limits.to(softness), self._multipliers.to(softness)
        excess = softness - self._limits
        self._excess = excess.detach()
        return (self._multipliers * excess).sum()

    def step(self) -> None:
        """μ ← max(0, μ + rate · (s − ε)), with s as of the last :meth:`penalty`."""
        if self._excess is not None:
            self._multipliers = (self._multipliers + self._rate * self._excess).clamp_min(0)

    def state_dict(self) -> dict[str, float]:
        """Return the multipliers, for :meth:`load_state_dict`."""
        return self.multipliers

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from saved multipliers.

        Raises:
            TypeError: for multipliers that are no numbers.
            ValueError: if they belong to other layers, or are not finite and >= 0.
        """
        check_mapping("state", state, "multipliers by layer")
        if state.keys() != self.multipliers.keys():
            raise ValueError(f"state: multipliers are of {list(self.multipliers)}, got {list(state)}")
        values = [check_number(f"state: the multiplier of {name!r}", state[name]) for name in self._bounds]
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise ValueError(f"state: multipliers must be finite and >= 0, got {dict(state)}")
        self._multipliers = torch.tensor(values, dtype=torch.float64)
