"""Coordinates → hidden values φ → filter bank K; its strict part, its softness and its start.

The public names are the parts of a layer's ``kernel`` and ``KernelNet``, the base class of a kernel net of one's own.
"""

from __future__ import annotations

from .continuous_kernel import ContinuousKernel
from .nets import FourierKernel, KernelNet, SirenKernel

__all__ = ["ContinuousKernel", "FourierKernel", "KernelNet", "SirenKernel"]
