"""Penalties that make layers only as soft as the task needs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..checks import check_choice
from ..network.relaxed_layers import frequency_energy, relaxed_layers

__all__ = ["equivariance_penalty"]


def equivariance_penalty(network: nn.Module, kind: str = "softness") -> Tensor:
    """Return the penalty that, times λ and added to the loss, keeps layers only as soft as the task needs.

    The default, ``"softness"``, is Σ √s over layers, s the layers'
    :meth:`~escnn_relaxed.RelaxedR2Conv.softness`: it sees the kernel itself and can reach exactly 0, because its slope
    does not vanish there (docs/concepts/mathematics.md). ``"frequency"`` is the paper's Σ‖ω′‖² over layers (paper,
    "Learning equivariance"); it moves learned ω′ alone, and can be evaded: the kernel stays as soft if ω′ falls and
    weights rise.
    A penalty decides where softness sits; whether it is needed, the hardening ablation says.

    Args:
        network: any module; layers that cannot be soft count 0.
        kind: ``"softness"`` or ``"frequency"``.

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
        >>> layer = RelaxedR2Conv(
        ...     fields, fields, 3, relax={"rotation": 0.25}, initial_softness=0.04
        ... )
        >>> (
        ...     round(equivariance_penalty(layer).item(), 4),
        ...     round(equivariance_penalty(layer, "frequency").item(), 4),
        ... )
        (0.2, 0.0625)
    """
    check_choice("kind", kind, ("frequency", "softness"))
    layers = relaxed_layers(network)
    if kind == "softness":
        return torch.stack([_root(layer.softness()) for layer in layers.values()]).sum()
    for name, layer in layers.items():
        if layer.relaxed_by:
            raise ValueError(
                f"kind='frequency' weighs ω′, which {name or 'network'!r}, a {type(layer).__name__}, does not have: "
                f"take kind='softness'"
            )
    return frequency_energy(layers.values())


def _root(softness: Tensor) -> Tensor:
    """√s with the slope 0 at s = 0, where it has none."""
    positive = softness > torch.finfo(softness.dtype).tiny
    return torch.where(positive, torch.where(positive, softness, 1).sqrt(), 0)
