"""State dicts: the description of a layer beside its tensors, and states of ``R2Conv``.

The description is in the metadata of the state dict, not among its keys. So all values are tensors. Subgroups to which
a layer is hardened are among the keys, since a plain dict of tensors has no metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from itertools import groupby
from typing import Any

import torch
from escnn.nn import FieldType
from torch import Tensor

from ..checks import ALL_SUBGROUPS, SUBGROUPS
from ..integral.geometry import TransposedGeometry

FORMAT_VERSION = 4

# Numbers that describe a basis and its samples in float32 differ by less, those of two bases by more.
_SAME = 1e-4
# The keys that R2Conv, Linear or R2PointConv saves besides its parameters. Their values follow from the parameters.
_DERIVED = ("filter", "matrix", "expanded_bias", "bias_expansion", "_basisexpansion.", "_basissampler.")
# The key of a hardened layer: whether it is hardened in each subgroup.
_HARDENED = "hardened_in"


def describe(layer: Any) -> dict[str, Any]:
    """Return the settings under which the tensors of a layer's state define the layer."""
    geometry = layer.geometry
    operator = "transposed convolution" if isinstance(geometry, TransposedGeometry) else "convolution"
    return {
        "operator": operator if geometry.padding else "linear map",
        "kernel size": geometry.kernel_size,
        "group": layer.space.name,
        "input": describe_fields(layer.in_type),
        "output": describe_fields(layer.out_type),
        "number of groups": geometry.groups,
        **layer.kernel.describe(),
    }


def save_description(layer: Any, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    """Hook: add the hardened subgroups to the state of a layer, and a description to its metadata."""
    metadata["layer"] = layer.describe()
    if layer.hardened:
        state[prefix + _HARDENED] = torch.tensor([name in layer.hardened for name in _flagged(layer)])


def _flagged(layer: Any) -> tuple[str, ...]:
    """Return the subgroups that a layer may be hardened in, each of which has a flag in its state."""
    return ALL_SUBGROUPS if layer.domain.is_abstract else SUBGROUPS


def convert_state(layer: Any, state: dict[str, Any], prefix: str, metadata: Mapping[str, Any]) -> list[str]:
    """Convert a state to one that a layer can load, set its hardened subgroups, and return the mismatches as text."""
    errors = load_hardened(layer, state, prefix, metadata)
    if layer.kernel.basis is not None:
        errors += convert_weights(state, prefix, layer.kernel.basis)
        _adopt_r2conv_state(state, prefix, layer)
    return errors


def load_hardened(layer: Any, state: dict[str, Any], prefix: str, metadata: Mapping[str, Any]) -> list[str]:
    """Set the hardened subgroups of a layer or a reference field from a state; return the mismatches as text."""
    errors = []
    found = differences(metadata.get("layer", {}), layer.describe(), metadata.get("version"))
    if found:
        errors.append(f"the state of {prefix.rstrip('.') or 'this layer'!r} does not fit: {'; '.join(found)}")
    flags, names = state.pop(prefix + _HARDENED, None), _flagged(layer)
    if flags is not None and flags.shape != (len(names),):
        errors.append(
            f"{prefix}{_HARDENED} must have a flag for each of {list(names)}, got a tensor of shape "
            f"{tuple(flags.shape)}"
        )
    # A layer stays as it is where a state is refused.
    elif flags is not None and not found:
        layer.hardened = tuple(name for name, flag in zip(names, flags, strict=True) if flag)
    elif not found and all(prefix + key in state for key in layer.state_dict() if key != _HARDENED):
        # A part of a state, and one of R2Conv, say nothing of what is hardened.
        layer.hardened = ()
    return errors


def _adopt_r2conv_state(state: MutableMapping[str, Tensor], prefix: str, layer: Any) -> None:
    """Convert a state of ``R2Conv`` to one of the layer, with soft weights 0."""
    derived = [key for key in state if key.startswith(tuple(prefix + name for name in _DERIVED))]
    if not derived:
        return
    for key in derived:
        del state[key]
    strict = {f"kernel.{name}": value for name, value in layer.kernel.strict_state().items()}
    for name, value in {**layer.state_dict(), **strict}.items():
        if name != _HARDENED:
            state.setdefault(prefix + name, value)


def differences(saved: Mapping[str, Any], own: Mapping[str, Any], version: int | None) -> list[str]:
    """Return as text why a saved state does not fit a layer; nothing if the state has no description."""
    mismatches = []
    if version is not None and version > FORMAT_VERSION:
        mismatches.append(f"its format version is {version}, newer than {FORMAT_VERSION}: update escnn_relaxed")
    if version is not None and version < FORMAT_VERSION and saved.get("soft in"):
        mismatches.append("it is of version 0.1, whose soft weights are in another order")
    for name, value in own.items():
        # Numbers that follow from the facts before them say nothing where these differ.
        is_known = _is_of_numbers(value) and bool(mismatches)
        if not is_known and not _agree(saved.get(name, value), value):
            is_strict = name == "soft in" and not saved[name] and not mismatches
            remedy = ", as after harden_network: load it into harden_network(…) of this network" if is_strict else ""
            mismatches.append(f"{name} is {saved[name]}, here {value}{remedy}")
    return mismatches


def _agree(saved: Any, own: Any) -> bool:
    """Return whether two settings are equal; numbers may differ by rounding."""
    if _is_of_numbers(saved) and _is_of_numbers(own):
        return len(saved) == len(own) and all(abs(a - b) < _SAME for a, b in zip(saved, own, strict=True))
    return bool(saved == own)


def _is_of_numbers(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(part, float) for part in value)


def describe_fields(field_type: FieldType) -> str:
    """Return the fields of a type as text, with equal neighbours counted."""
    runs = [(name, len(list(run))) for name, run in groupby(field.name for field in field_type.representations)]
    return " + ".join(f"{count} {name}" for name, count in runs)


def convert_weights(state: MutableMapping[str, Tensor], prefix: str, basis: Any) -> list[str]:
    """Express weights that escnn saved with another basis in the layer's; return the mismatches as text."""
    mismatches: list[str] = []
    weights = state.get(f"{prefix}weights")
    if weights is None or len(weights) != basis.dimension:
        return mismatches  # torch says so
    converted = weights.clone()
    for (names, numbers, own), (*_, single) in zip(basis.by_pair("exact"), basis.by_pair("single"), strict=True):
        saved = basis.saved_samples(state, prefix, names)
        if saved is None or saved.is_meta:
            continue
        theirs, is_alike = saved.to(own).flatten(1), saved.shape == own.shape
        # Taps that are far apart have samples that are off the exact basis, and R2Conv computes with them.
        known = [single.to(own).flatten(1), own.flatten(1)]
        near = max(_SAME, torch.finfo(saved.dtype).eps * float(own.abs().max()))  # a state may be in half precision
        if is_alike and any((theirs - each).abs().max() < near for each in known):
            continue
        changes = [change_of_basis(theirs, each, near) for each in reversed(known)] if is_alike else []
        change = next((each for each in changes if each is not None), None)
        if change is None:
            mismatches.append(
                f"the steerable basis of {prefix.rstrip('.') or 'this layer'!r} from {names[0]} to {names[1]} "
                f"holds other kernels than the one here"
            )
        else:
            part = weights[numbers].view(-1, len(own))
            converted[numbers] = (part.to(change) @ change).flatten().to(weights)
            state[f"{prefix}weights"] = converted
    return mismatches


def change_of_basis(theirs: Tensor, own: Tensor, near: float = _SAME) -> Tensor | None:
    """Return T with ``theirs = T own``, or None where the rows do not span the same kernels."""
    change: Tensor = torch.linalg.lstsq(own.T, theirs.T).solution.T
    spans = (change @ own - theirs).abs().max() < near and torch.linalg.matrix_rank(change) == len(own)
    return change if bool(spans) else None
