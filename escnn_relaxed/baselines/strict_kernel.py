"""What the baselines share: a strict kernel that is relaxed afterwards, and a convolution that stays stationary."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..integral_operator import PositionalBank, as_convolution
from ..planar_convolution import PlanarConvolution
from ..relaxed_r2conv import RelaxedR2Conv

__all__ = ["BaselineConvolution", "StrictKernel"]

# Arguments of RelaxedR2Conv that shape its strict part.
STRICT_OPTIONS = (
    "sigma",
    "frequencies_cutoff",
    "rings",
    "maximum_offset",
    "recompute",
    "basis_filter",
    "initialize",
    "strict_kernel",
    "samples",
    "rotation_coordinates",
    "filter_frequency",
    "kernel_net",
    "hidden_size",
    "support",
)


class StrictKernel(nn.Module):
    """The kernel of a strict layer: its weights → its filter bank.

    Args:
        layer: a layer of which nothing is relaxed; its parts become those of the kernel.
    """

    source: nn.Module

    def __init__(self, layer: RelaxedR2Conv) -> None:
        super().__init__()
        # Either a basis, of which these are the weights, or a continuous filter bank, which holds its own.
        (self.source,) = [part for part in (layer.steerable_basis, layer.bank) if part is not None]
        self.register_parameter("weights", layer.weights)

    def forward(self) -> Tensor:
        """(C_out, C_in/groups, k, k)."""
        bank: Tensor = self.source({} if self.weights is None else self.weights)
        return bank


class BaselineConvolution(PlanarConvolution):
    """A convolution that relaxes strict kernels; a subclass says how."""

    def _strict_kernel(self, options: Mapping[str, Any]) -> StrictKernel:
        """A strict kernel of this layer's shape, newly drawn.

        Args:
            options: those of ``STRICT_OPTIONS`` that are not default.

        Raises:
            TypeError: for another option.
        """
        unknown = [name for name in options if name not in STRICT_OPTIONS]
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no argument {unknown[0]!r} (={options[unknown[0]]!r}); beside its own it "
                f"takes those of RelaxedR2Conv that shape a strict kernel: {', '.join(STRICT_OPTIONS)}"
            )
        geometry = self.geometry
        layer = RelaxedR2Conv(
            self.in_type,
            self.out_type,
            geometry.kernel_size,
            dilation=geometry.dilation,
            groups=geometry.groups,
            bias=False,
            relax=None,
            **options,
        )
        return StrictKernel(layer)

    @abstractmethod
    def make_strict(self) -> None:
        """Set in place what relaxes the layer to where it does not; training may relax it again."""

    @property
    def is_stationary(self) -> bool:
        """True: these ways relax rotations and reflections, and translations stay exact."""
        return True

    def positional_bank(self, height: int, width: int) -> tuple[list[int], PositionalBank]:
        """Not for a stationary layer, see :meth:`filter_bank`."""
        raise RuntimeError("positional_bank: this layer is stationary, use filter_bank")

    @torch.no_grad()
    def export(self) -> nn.Conv2d:
        """This layer as a plain ``Conv2d``, without escnn, sharing no memory with it.

        Shape:
            of the result: (batch, C_in, H, W) → (batch, C_out, H_out, W_out).
        """
        return as_convolution(self.filter_bank(), self.expanded_bias(), self.geometry)
