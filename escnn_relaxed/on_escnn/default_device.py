"""Construction on the CPU: a complete layer moves to torch's default device afterwards."""

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
    """Return an ``__init__`` that runs on the CPU and then moves its module to the default ``torch.device``."""

    # escnn keeps its results for all layers of a kind on the device where the first of them is built. And so the same
    # seed draws the same weights for every device.
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
