"""Learning how soft to be: penalties, a schedule that ends strict, and a bound on the softness of each layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from .checks import check_choice
from .conversion import named_relaxed_layers
from .planar_convolution import PlanarConvolution

__all__ = ["HardeningSchedule", "SoftnessBound", "equivariance_penalty", "frequency_energy"]


def equivariance_penalty(network: nn.Module, kind: str = "frequency") -> Tensor:
    """What to add to the loss, times λ, so that layers are only as soft as the task needs.

    ``"softness"``, the one to take, is Σ √s over layers, s the layers'
    :meth:`~escnn_relaxed.RelaxedR2Conv.softness`: it sees the kernel itself and can reach exactly 0, because its slope
    does not vanish there (docs/strict-part.md). ``"frequency"`` is the paper's Σ‖ω′‖² over layers (paper, "Learning
    equivariance"); it moves learned ω′ alone, and can be evaded: the kernel stays as soft if ω′ falls and weights rise.
    A penalty decides where softness sits; whether it is needed, the hardening ablation says.

    Args:
        network: any module; layers that cannot be soft count 0.
        kind: ``"frequency"`` or ``"softness"``.

    Returns:
        A tensor without dimensions; its gradient is finite everywhere, 0 for a layer at s = 0.

    Raises:
        ValueError: for another kind, a network without a relaxed layer, or ``"frequency"`` of a layer that something
            else than ω′ relaxes (``escnn_relaxed.baselines``).

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25}, initial_softness=0.04)
        >>> round(equivariance_penalty(layer).item(), 4), round(equivariance_penalty(layer, "softness").item(), 4)
        (0.0625, 0.2)
    """
    check_choice("kind", kind, ("frequency", "softness"))
    layers = _layers(network)
    if kind == "softness":
        return torch.stack([_root(layer.softness()) for layer in layers.values()]).sum()
    for name, layer in layers.items():
        if layer.relaxed_by:
            raise ValueError(
                f"kind='frequency' weighs ω′, which {name or 'network'!r}, a {type(layer).__name__}, does not have: "
                f"take kind='softness'"
            )
    return frequency_energy(layers.values())


def frequency_energy(layers: Iterable[PlanarConvolution]) -> Tensor:
    """Σ‖ω′‖² over layers; those without an ω′ count 0."""
    terms = [value.square().sum() for layer in layers for value in layer.domain_frequency.values()]
    return torch.stack(terms).sum() if terms else torch.zeros(())


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
        ValueError: for values outside of their range, or a network without a relaxed layer.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25}, initial_softness=0.04)
        >>> schedule = HardeningSchedule(layer, steps=4, harden_at=0.5, largest_penalty=0.3)
        >>> for _ in range(3):
        ...     print(f"penalty {schedule.penalty().item():.2f}, s {layer.softness().item():.2f}")
        ...     schedule.step()
        penalty 0.00, s 0.04
        penalty 0.03, s 0.04
        penalty 0.00, s 0.00
    """

    def __init__(self, network: nn.Module, steps: int, harden_at: float = 2 / 3, largest_penalty: float = 0.0) -> None:
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        if not 0 < harden_at <= 1:
            raise ValueError(f"harden_at must be in (0, 1], got {harden_at}")
        if not (math.isfinite(largest_penalty) and largest_penalty >= 0):
            raise ValueError(f"largest_penalty must be finite and >= 0, got {largest_penalty}")
        self.network = network
        self._layers = _layers(network)
        self._harden_at = max(1, round(steps * harden_at))
        self._largest_penalty = largest_penalty
        self._step = 0
        self.is_hardened = False

    def penalty(self) -> Tensor:
        """λ Σ √s at the present step."""
        if self.is_hardened or self._largest_penalty == 0:
            return torch.zeros(())
        weight = self._largest_penalty * self._step / self._harden_at
        return weight * equivariance_penalty(self.network, "softness")

    def step(self) -> None:
        """Count a training step, and harden when its time has come."""
        self._step += 1
        if self._step >= self._harden_at and not self.is_hardened:
            self._harden()

    def state_dict(self) -> dict[str, float]:
        """The step, to go on from."""
        return {"step": self._step, "is_hardened": self.is_hardened}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from a saved step; a network that was hardened by then is hardened."""
        self._step = int(state["step"])
        if state["is_hardened"]:
            self._harden()

    @property
    def was_hardened_last(self) -> bool:
        """Whether no step has followed on the one that hardened."""
        return self.is_hardened and self._step <= self._harden_at

    def _harden(self) -> None:
        for layer in self._layers.values():
            layer.harden()
        self.is_hardened = True


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

    Attributes:
        multipliers: name of each layer → its multiplier, ≥ 0, 0 at the start.

    Raises:
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
        self._layers = _layers(network)
        self._bounds = dict(bound) if isinstance(bound, Mapping) else dict.fromkeys(self._layers, bound)
        if not self._bounds:
            raise ValueError(f"bound: no layer is bounded; relaxed layers are {list(self._layers)}")
        unknown = self._bounds.keys() - self._layers.keys()
        if unknown:
            raise ValueError(f"bound: {sorted(unknown)} are not relaxed layers; those are {list(self._layers)}")
        for name, value in self._bounds.items():
            if not 0 <= value <= 1:
                raise ValueError(f"bound: the softness of {name!r} must be bounded by a number in [0, 1], got {value}")
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"rate must be finite and > 0, got {rate}")
        self._rate = rate
        self.multipliers = dict.fromkeys(self._bounds, 0.0)
        self._excess: dict[str, float] = {}

    def penalty(self) -> Tensor:
        """Σ μ (s − ε), the constraints' part of the Lagrangian."""
        terms = []
        for name, bound in self._bounds.items():
            excess = self._layers[name].softness() - bound
            self._excess[name] = float(excess.detach())
            terms.append(self.multipliers[name] * excess)
        return torch.stack(terms).sum()

    def step(self) -> None:
        """μ ← max(0, μ + rate · (s − ε)), with s as of the last :meth:`penalty`."""
        for name, excess in self._excess.items():
            self.multipliers[name] = max(0.0, self.multipliers[name] + self._rate * excess)

    def state_dict(self) -> dict[str, float]:
        """The multipliers, to go on from."""
        return dict(self.multipliers)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from saved multipliers.

        Raises:
            ValueError: if they belong to other layers.
        """
        if state.keys() != self.multipliers.keys():
            raise ValueError(f"state: multipliers are of {list(self.multipliers)}, got {list(state)}")
        self.multipliers = dict(state)


def _layers(network: nn.Module) -> dict[str, PlanarConvolution]:
    layers = dict(named_relaxed_layers(network))
    if not layers:
        raise ValueError("network has no RelaxedR2Conv")
    return layers


def _root(softness: Tensor) -> Tensor:
    """√s with the slope 0 at s = 0, where it has none."""
    positive = softness > torch.finfo(softness.dtype).tiny
    return torch.where(positive, torch.where(positive, softness, 1).sqrt(), 0)
