"""State dicts: the description of a layer beside its tensors, and the states of ``escnn.nn.R2Conv``.

The description is in the metadata of the state dict, not among its keys. So all values are tensors.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, MutableMapping
from itertools import groupby
from typing import Any

from escnn.nn import FieldType
from torch import Tensor, nn

__all__ = ["FORMAT_VERSION", "DescribedState", "adopt_r2conv_state", "describe_fields", "differences"]

FORMAT_VERSION = 2

# The entries of a description that a layer takes over from a state.
_ADOPTED = ("hardened",)

# Numbers of two bases differ by more, those of one basis by less.
_SAME = 1e-4

# The keys that R2Conv saves besides its parameters. Their values follow from the parameters.
_DERIVED = ("filter", "expanded_bias", "bias_expansion", "_basisexpansion.")


class DescribedState(nn.Module):
    """A module that describes itself in the metadata of its state dict, and refuses the state of another layer."""

    _version = FORMAT_VERSION
    hardened: tuple[str, ...]

    def __init__(self) -> None:
        super().__init__()
        self._register_state_dict_hook(_describe)

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the facts that decide which function the tensors stand for."""

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *arguments: Any
    ) -> None:
        saved = local_metadata.get("layer", {})
        found = differences(saved, self.describe(), local_metadata.get("version"))
        if found:
            *_, error_messages = arguments
            error_messages.append(
                f"the state of {prefix.rstrip('.') or 'this layer'!r} does not fit: {'; '.join(found)}"
            )
        self.hardened = tuple(saved.get("hardened", self.hardened))
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *arguments)


def _describe(layer: DescribedState, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
    metadata["layer"] = layer.describe()


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
        is_output_weight = name.startswith("bank.") and name.endswith(".weights")
        state.setdefault(prefix + name, value * 0 if is_output_weight else value)


def differences(saved: Mapping[str, Any], own: Mapping[str, Any], version: int | None) -> list[str]:
    """Return in words why a saved state does not fit a layer; nothing where the state has no description.

    Args:
        saved: description of the layer that was saved, empty if the state has none.
        own: description of the layer that loads the state.
        version: format version of the state, None if it has none.
    """
    found = []
    if version is not None and version > FORMAT_VERSION:
        found.append(f"its format version is {version}, newer than {FORMAT_VERSION}: update escnn_relaxed")
    if "translation" in saved.get("soft in", ()) and "regions" not in saved:
        found.append("it was saved when soft translation had a kernel for every pixel of the input: train it again")
    if saved.get("strict kernel", "steerable") == own.get("strict kernel") == "steerable":
        if own.get("soft part") == "tied" and "kernel net" in saved:
            found.append(
                "its soft part is a continuous kernel of its own: build the layer with kernel=ContinuousKernel()"
            )
        if saved.get("soft part") == "tied" and "kernel net" in own:
            found.append("its soft part is tied to the strict part: build the layer without kernel")
    for name, value in own.items():
        # Numbers that follow from the facts before them say nothing where these differ.
        is_known = name in _ADOPTED or (_is_of_numbers(value) and bool(found))
        if not is_known and not _agree(saved.get(name, value), value):
            found.append(f"{name} is {saved[name]}, here {value}")
    return found


def _agree(saved: Any, own: Any) -> bool:
    """Whether two facts are the same; numbers of another machine differ by rounding."""
    if _is_of_numbers(saved) and _is_of_numbers(own):
        return len(saved) == len(own) and all(abs(a - b) < _SAME for a, b in zip(saved, own, strict=True))
    return bool(saved == own)


def _is_of_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, float) for part in value)


def describe_fields(field_type: FieldType) -> str:
    """Return the fields of a type in words, with equal neighbours counted."""
    runs = [(name, len(list(run))) for name, run in groupby(field.name for field in field_type.representations)]
    return " + ".join(f"{count} {name}" for name, count in runs)
