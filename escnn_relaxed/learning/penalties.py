"""Penalties that make layers only as soft as the task needs: Σ√s and a bound of s."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..checks import check_choice, check_mapping, check_number, check_positive
from ..network.relaxed_layers import frequency_energy, relaxed_layers


def equivariance_penalty(network: nn.Module, kind: str = "softness") -> Tensor:
    """Return a penalty to add to the loss, times λ, so that layers are only as soft as the task needs.

    The default, ``"softness"``, is Σ √s over layers, s the layers'
    :meth:`~escnn_relaxed.RelaxedR2Conv.softness`: it sees the kernel itself and can reach exactly 0, because its slope
    does not vanish there (docs/concepts/mathematics.md). ``"frequency"`` is Σ‖ω′‖² over layers (paper, "Learning
    equivariance"); it moves learned ω′ alone, and can be evaded: the kernel stays as soft if ω′ falls and weights rise.
    A penalty decides where softness sits; whether it is needed, the hardening ablation says. The gradient is finite
    everywhere, 0 for a layer at s = 0.

    Args:
        network: any module; layers that cannot be soft count 0.
        kind: ``"softness"`` or ``"frequency"``.

    Raises:
        ValueError: for another kind, a network without a relaxed layer, or ``"frequency"`` of a layer that something
            else than ω′ relaxes (``escnn_relaxed.baselines``).

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = RelaxedR2Conv(fields, fields, 3, initial_softness=0.04)
        >>> round(equivariance_penalty(layer).item(), 4)
        0.2
    """
    check_choice("kind", kind, ("frequency", "softness"))
    layers = relaxed_layers(network)
    if kind == "softness":
        softness = torch.stack([layer.softness() for layer in layers.values()])
        # The slope of √s is taken as 0 at 0.
        positive = softness > torch.finfo(softness.dtype).tiny
        return torch.where(positive, torch.where(positive, softness, 1).sqrt(), 0).sum()
    for name, layer in layers.items():
        if layer.relaxed_by:
            raise ValueError(
                f"kind='frequency' weighs ω′, which {name or 'network'!r}, a {type(layer).__name__}, does not have: "
                f"take kind='softness'"
            )
    return frequency_energy(layers.values())


class SoftnessBound:
    """Minimise the loss subject to s ≤ ε in each layer, by dual ascent on one multiplier a layer.

    Constrained learning in place of a weight λ that has to be found, after Manolache, Chamon and Niepert, "Learning
    (Approximately) Equivariant Networks via Constrained Optimization" (2025). In each training step add :meth:`penalty`
    to the loss, and call :meth:`step` after that of the optimiser.

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
        unknown = self._bounds.keys() - self._layers.keys()
        if unknown or not self._bounds:
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
        """Continue from saved multipliers."""
        if check_mapping("state", state, "multipliers by layer").keys() != self._bounds.keys():
            raise ValueError(f"state: multipliers are of {list(self._bounds)}, got {list(state)}")
        self._multipliers = torch.tensor([state[name] for name in self._bounds], dtype=torch.float64)
