"""A layer's filter bank in evaluation: built once, and anew as soon as anything that it is made of has changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor, nn

from ..torch_modes import has_no_values, has_tangents, is_traced, untraced

__all__ = ["FilterBankCache", "changing_tensors"]


class FilterBankCache:
    """Holds one filter bank with what it was built from. It is not state: copies and pickles of it are empty.

    On the CPU the tensors behind the bank are compared value by value, which no way of changing them escapes. On other
    devices that would wait for the device, and their version counters are compared. Fused optimisers and writing to
    ``parameter.data`` leave these as they are; so the bank is dropped as well by a forward pass with gradients, and by
    a layer that changes its mode, its device or dtype, or loads a state.
    """

    def __init__(self) -> None:
        # One tuple, replaced whole: threads see the old entry or the new one.
        self._entry: tuple[Hashable, list[Tensor], Tensor] | None = None

    def get(
        self, layer: nn.Module, build: Callable[[], Tensor], setting: Hashable, forget: Callable[[], None]
    ) -> Tensor:
        """The bank that ``build`` gives; in eval mode the last one, unless a gradient is wanted or something changed.

        A trace of a layer in eval mode holds the bank as a constant, as one of ``R2Conv`` does, and has no gradient
        for what the bank is made of.

        Args:
            layer: the layer that the bank is of.
            build: builds it, or several banks.
            setting: what they depend on beside the tensors of the layer.
            forget: called before a bank is built to be kept: drops what else is kept of tensors.
        """
        if layer.training:
            self.drop()
            return build()
        if has_no_values() or has_tangents():
            return build()
        if is_traced():
            with untraced(), torch.no_grad():
                return self.get(layer, build, setting, forget)
        sources = changing_tensors(layer)
        if torch.is_grad_enabled() and any(source.requires_grad for source in sources):
            self.drop()
            return build()
        key = (setting, *(_identity(source) for source in sources))
        entry = self._entry
        if entry is not None and entry[0] == key and _are_equal(entry[1], sources):
            return entry[2]
        # A normal tensor, even where inference_mode is on: it may be used outside of it later.
        forget()
        with torch.inference_mode(False), torch.no_grad():
            copies = [source if _counts_versions(source) else source.detach().clone() for source in sources]
            bank = build()
        self._entry = (key, copies, bank)
        return bank

    def drop(self) -> None:
        """Forget the bank."""
        self._entry = None

    def __reduce__(self) -> tuple[type[FilterBankCache], tuple[()]]:
        return FilterBankCache, ()


def _identity(source: Tensor) -> Hashable:
    version = (id(source), source.data_ptr(), source._version) if _counts_versions(source) else None
    return source.dtype, source.device, tuple(source.shape), version


def _counts_versions(source: Tensor) -> bool:
    """Whether the version of a tensor is compared, not its values; tensors of inference mode have none."""
    return source.device.type != "cpu" and not source.is_inference()


def _are_equal(copies: Sequence[Tensor], sources: Sequence[Tensor]) -> bool:
    pairs = zip(copies, sources, strict=True)
    return all(copy is source or torch.equal(copy, source) for copy, source in pairs)


def changing_tensors(layer: nn.Module) -> list[Tensor]:
    """All that a filter bank is made of and that can change, also where tensors have taken the place of parameters."""
    tensors = []
    for module in layer.modules():
        constant = module._non_persistent_buffers_set
        buffers = [buffer for name, buffer in module._buffers.items() if name not in constant]
        values = (*module._parameters.values(), *buffers, *vars(module).values())
        tensors += [value for value in values if isinstance(value, Tensor)]
    return tensors
