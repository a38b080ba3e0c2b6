"""Coordinates → hidden values φ → filter bank K; its strict part, its softness and its start.

The public names are the parts of a layer's ``kernel`` and ``KernelNet``, the base class of a kernel net of one's
own, with the ``DomainMeans`` that it may take.
"""

from __future__ import annotations

from .continuous_kernel import ContinuousKernel
from .domain_means import DomainMeans
from .nets import FourierKernel, KernelNet, SirenKernel

__all__ = ["ContinuousKernel", "DomainMeans", "FourierKernel", "KernelNet", "SirenKernel"]
