"""Checks of clouds: their nodes, coordinates and edges. Every error names argument, value and what is right."""

from __future__ import annotations

from typing import Any

import torch
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor

from ..torch_modes import has_values, reads_without_waiting
from .arguments import check_dtype, check_on_fields

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_cloud(x: Any, in_type: FieldType, like: Tensor) -> Tensor:
    """Return the coordinates (n, d) of a cloud, a GeometricTensor (n, C_in) of a layer's input type."""
    if not isinstance(x, GeometricTensor) or (x.type is not in_type and x.type != in_type):
        check_on_fields(x, in_type)
        raise TypeError(f"x must be of type {in_type}, got {x.type}")
    features, coordinates, axes = x.tensor, x.coords, in_type.gspace.dimensionality
    if coordinates is None:
        raise ValueError(
            f"x must have coordinates (nodes, {axes}), got a GeometricTensor {tuple(features.shape)} without: "
            f"GeometricTensor(features, in_type, coords=coordinates)"
        )
    if not features.is_floating_point():
        raise TypeError(f"x must be a real floating-point tensor, got {features.dtype}")
    check_dtype(features, like)
    # A GeometricTensor may have been changed since it was built.
    if features.dim() != 2 or features.shape[1] != in_type.size:
        raise ValueError(f"x must be (nodes, {in_type.size}), got {tuple(features.shape)}")
    check_vectors("x.coords", coordinates, len(features), "nodes", axes, features)
    return coordinates


def check_vectors(name: str, value: Any, count: int, what: str, axes: int, like: Tensor) -> None:
    """Raise unless this is a vector for each node or edge, (count, d), of a dtype and on a device."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor ({what}, {axes}), got {type(value).__name__}")
    if value.shape != (count, axes):
        raise ValueError(f"{name} must be ({what}, {axes}), here {(count, axes)}, got {tuple(value.shape)}")
    if value.dtype != like.dtype and not torch.is_autocast_enabled(like.device.type):
        raise TypeError(f"{name} must be of the dtype of the features, {like.dtype}, got {value.dtype}")
    if value.device != like.device:
        raise ValueError(f"{name} must be on the device of the features, {like.device}, got {value.device}")


def checked_edges(edge_index: Any, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the source and the target of each edge, (E,) each, numbers of nodes of which there are ``count``."""
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"edge_index must be a tensor of integers (2, edges), got {type(edge_index).__name__}")
    if edge_index.dtype not in _INTEGERS:
        raise TypeError(f"edge_index must be of integers, torch.int64, got {edge_index.dtype}")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        right = " (its transpose is)" if edge_index.dim() == 2 and edge_index.shape[1] == 2 else ""
        raise ValueError(f"edge_index must be (2, edges), got {tuple(edge_index.shape)}{right}")
    if edge_index.device != device:
        raise ValueError(f"edge_index must be on the device of the features, {device}, got {edge_index.device}")
    # Reading a value in the memory of an accelerator would wait; there torch refuses such numbers itself.
    if edge_index.numel() and has_values(edge_index) and reads_without_waiting(edge_index):
        least, most = (int(value) for value in edge_index.aminmax())
        if least < 0 or most >= count:
            raise ValueError(
                f"edge_index must have numbers of nodes, 0 to {count - 1}, got {least if least < 0 else most}"
            )
    source, target = edge_index.long()
    return source, target
