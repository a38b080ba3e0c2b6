"""Layers are built on the CPU, and go to torch's default device once they are complete."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import nn

__all__ = ["built_on_the_cpu"]

_Layer = TypeVar("_Layer", bound=nn.Module)
_Arguments = ParamSpec("_Arguments")


def built_on_the_cpu(
    build: Callable[Concatenate[_Layer, _Arguments], None],
) -> Callable[Concatenate[_Layer, _Arguments], None]:
    """Make an ``__init__`` run on the CPU, whatever ``torch.device`` is in force, and move what it built there.

    Escnn keeps what it computes for all layers of a kind, wherever the first of them is built. And the same seed
    draws the same weights for every device.

    Args:
        build: the ``__init__`` of a module.

    Example:
        >>> class Ones(nn.Module):
        ...     @built_on_the_cpu
        ...     def __init__(self) -> None:
        ...         super().__init__()
        ...         self.register_buffer("ones", torch.ones(2))
        ...         assert self.ones.device.type == "cpu"
        >>> with torch.device("meta"):
        ...     Ones().ones.device
        device(type='meta')
    """

    @functools.wraps(build)
    def build_and_move(layer: _Layer, /, *arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> None:
        device = torch.get_default_device()
        if device.type == "cpu":
            build(layer, *arguments, **keywords)
            return
        with torch.device("cpu"):
            build(layer, *arguments, **keywords)
        layer.to(device)

    return build_and_move
