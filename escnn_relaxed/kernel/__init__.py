"""Kernels: K, its mean PK over subgroups, and its strict part.

The public names are the base class of a kernel of one's own, the configuration that it is built from, and the default.
"""

from __future__ import annotations

from .config import KernelConfig, WeightGroup
from .kernel import Kernel
from .strict import StrictKernel
from .tied import TiedKernel

__all__ = ["Kernel", "KernelConfig", "StrictKernel", "TiedKernel", "WeightGroup"]
