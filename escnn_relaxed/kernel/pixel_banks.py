"""The filter banks of a kernel at the pixels of an image, the same when they are made again in the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..torch_modes import full_precision, has_no_values
from .kernel import Kernel, Names


class BanksAtPixels:
    """K, which has no weights of the layer, at the pixels of an image, averaged over subgroups.

    The backward pass calls it again. It then has the parameters, the samples of the group and the ω′ of the forward,
    whatever the kernel has by then. Parameters that were changed in place are refused, as autograd refuses them.
    """

    def __init__(self, kernel: Kernel, size: tuple[int, ...], averaged: Names) -> None:
        self._kernel, self._made = kernel, _Made(kernel, size, tuple(averaged))
        self._settings = kernel.settings()
        self._parameters: dict[str, Tensor] = dict(self._made.named_parameters())
        self._versions = [] if has_no_values() else [value._version for value in self._parameters.values()]
        # Numbers that one pixel takes while its bank is made.
        self.values = kernel.values_at_a_pixel()

    def __call__(self, start: int, end: int) -> Tensor:
        """Return the banks of some pixels, (pixels, C_out, C_in, k, …), in full precision."""
        if has_no_values() or not torch.is_grad_enabled():
            return self._made(start, end)
        if self._versions != [value._version for value in self._parameters.values()]:
            raise RuntimeError(
                "a parameter of a ContinuousKernel that is soft in translation was changed in place between the "
                "forward and the backward pass, which makes its filter banks again: step the optimiser afterwards"
            )
        now = self._kernel.settings()
        self._kernel.restore(self._settings)
        try:
            made: Tensor = functional_call(self._made, self._parameters, (start, end))
        finally:
            self._kernel.restore(now)
        return made


class _Made(nn.Module):
    def __init__(self, kernel: Kernel, size: tuple[int, ...], averaged: tuple[str, ...]) -> None:
        super().__init__()
        self.kernel, self._place = kernel, (size, averaged)

    def forward(self, start: int, end: int) -> Tensor:
        with full_precision(next(self.kernel.parameters())):
            return self.kernel.at_pixels(None, *self._place, start, end)
