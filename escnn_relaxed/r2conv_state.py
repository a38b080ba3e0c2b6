"""State dicts of ``escnn.nn.R2Conv`` → state of a relaxed layer."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from torch import Tensor

__all__ = ["adopt_r2conv_state"]

# What R2Conv saves besides its parameters; all of it follows from them.
_DERIVED = ("filter", "expanded_bias", "bias_expansion", "_basisexpansion.")


def adopt_r2conv_state(state: MutableMapping[str, Tensor], prefix: str, own: Mapping[str, Tensor]) -> None:
    """If ``state`` was saved by an ``R2Conv``, make it a state of the layer that takes its place.

    The strict weights are those of the ``R2Conv``. The output weights of a soft part become 0, so that the
    layer computes what the ``R2Conv`` computed; the rest of the soft part stays as it is.

    Args:
        state: the state dict that is being loaded, changed in place.
        prefix: where the layer's entries start.
        own: the layer's own state dict.
    """
    derived = [key for key in state if key.startswith(tuple(prefix + name for name in _DERIVED))]
    if not derived:
        return
    for key in derived:
        del state[key]
    for name, value in own.items():
        is_output_weight = name.startswith("bank.steered_average.") and name.endswith(".weights")
        state.setdefault(prefix + name, value * 0 if is_output_weight else value)
