"""Filter banks are built in full precision, whatever autocast makes of the convolution; runs without escnn."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

__all__ = ["full_precision"]


def full_precision(like: Tensor) -> AbstractContextManager[Any]:
    """Within it nothing on the device of ``like`` is cast by ``torch.autocast``."""
    # The device of shapes alone knows no autocast.
    return contextlib.nullcontext() if like.is_meta else torch.autocast(like.device.type, enabled=False)
