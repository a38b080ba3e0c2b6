"""Coordinates → hidden values φ → filter bank K; its strict part, its softness and its start.

Public are what a layer's ``kernel`` is made of, and the class to derive a kernel net of one's own from.
"""

from __future__ import annotations

from .continuous_kernel import ContinuousKernel
from .nets import FourierKernel, KernelNet, SirenKernel

__all__ = ["ContinuousKernel", "FourierKernel", "KernelNet", "SirenKernel"]
