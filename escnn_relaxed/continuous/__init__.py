"""The paper's continuous kernel κ, and what only it needs.

Coordinates (``coordinates``) of elements (``domain``) and taps go through a net (``nets``) to hidden values, which are
steered over the group and combined to the filter bank (``steering``). ``kernel`` holds them together. ``start`` draws
its weights and finds the units in which they are trained.
"""

from __future__ import annotations

from .kernel import ContinuousKernel as ContinuousKernel  # listed at the top level
from .kernel import draw_samples
from .nets import FourierKernel, KernelNet, SirenKernel

__all__ = ["FourierKernel", "KernelNet", "SirenKernel", "draw_samples"]
