"""A layer that is soft in translation as a plain module; nothing here needs escnn."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from .filter_bank import ContinuousFilterBank
from .integral_operator import ConvolutionGeometry
from .positional_kernel import PositionalKernel
from .soft_translation import integrate_soft_translation

__all__ = ["SoftTranslationConvolution"]


class SoftTranslationConvolution(nn.Module):
    """h(x) = Σ_d K(d; y) f(y) on plain tensors, for images of any size.

    Args:
        bank: the continuous kernel, which becomes this module's own.
        strict: a stationary kernel that is added to it, (C_out, C_in/groups, k, k), or None.
        bias: (C_out,) or None.
        frequency: ω′ of each subgroup.
        hardened: subgroups on which the kernel is projected.
        geometry: where taps and pixels meet.
        domain: κ sees the position of the ``"input"`` or of the ``"output"``.

    Shape:
        (batch, C_in, H, W) → (batch, C_out, H_out, W_out).
    """

    strict: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        bank: ContinuousFilterBank,
        strict: Tensor | None,
        bias: Tensor | None,
        frequency: Mapping[str, Tensor],
        hardened: tuple[str, ...],
        geometry: ConvolutionGeometry,
        domain: str,
    ) -> None:
        super().__init__()
        self.bank = bank
        self.hardened = hardened
        self.geometry = geometry
        self.domain = domain
        self._subgroups = tuple(frequency)
        for name, value in frequency.items():
            self.register_buffer(f"frequency_{name}", value)
        self.strict = None if strict is None else nn.Parameter(strict)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C_in, H, W) → (batch, C_out, H_out, W_out)."""
        frequency = {name: getattr(self, f"frequency_{name}") for name in self._subgroups}
        kernel = PositionalKernel(self.bank, self.strict, frequency, self.hardened, self.geometry, self.domain)
        return integrate_soft_translation(features, kernel, self.bias)
