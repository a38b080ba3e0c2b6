"""``expand_parameters``, which subclasses may override as with ``R2Conv``."""

from __future__ import annotations

from typing import Any

from escnn.nn import EquivariantModule
from torch import Tensor

from ..integral.geometry import Geometry


class ParameterExpansion(EquivariantModule):
    """Base of layers whose filter bank and bias are computed from parameters."""

    geometry: Geometry
    # Whether expand_parameters is a subclass's or the user's own, so that the filter bank need not be K.
    expands_itself = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.expands_itself = cls.expand_parameters is not ParameterExpansion.expand_parameters
        if hasattr(cls, "_build_kernel_basis"):
            raise TypeError(
                f"{cls.__name__} overrides _build_kernel_basis, which layers of this package do not call: shape the "
                f"basis by rings, sigma, frequencies_cutoff and basis_filter, or give a kernel of your own as `kernel`"
            )

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "expand_parameters":
            self.expands_itself = True

    def expand_parameters(self) -> tuple[Tensor, Tensor | None]:
        """Return the filter bank and the bias of each channel, (C_out,), of a stationary layer, as ``R2Conv``.

        The bias is None without trivial irreps in the output, or with ``bias=False``; of a linear map the bank is its
        matrix, (C_out, C_in). A subclass may override this method, and then computes with what it returns;
        :meth:`softness` and :meth:`harden` are about K of the layer's own parameters.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> filter_bank, bias = RelaxedR2Conv(fields, fields, 3).expand_parameters()
            >>> filter_bank.shape, bias.shape
            (torch.Size([4, 4, 3, 3]), torch.Size([4]))
        """
        return self.filter_bank(), self.expanded_bias

    def one_filter_bank(self) -> tuple[Tensor, Tensor | None]:
        """Return the filter bank and the bias of a layer that has one filter bank; else raise a ``ValueError``."""
        if not self.expands_itself:
            return self.filter_bank(), self.expanded_bias
        if not self.is_stationary:
            raise ValueError(
                f"expand_parameters of {type(self).__name__} returns one filter bank, and the layer has one at each "
                f"pixel, since it is soft in translation: override forward, or leave translation out of relax"
            )
        return self.expand_parameters()
