"""The paper's continuous kernel κ, and what only it needs.

The public names are its options, and the nets that make its hidden values: ``KernelNet`` is the base of one's own.
Coordinates go through a net to hidden values (``coordinates``, ``nets``), which are steered over the group
(``steering``) and combined to the filter bank (``steered_average``, in whose ``units`` weights are trained).
``kernel`` holds them together; ``start`` and ``calibration`` draw its weights.
"""

from __future__ import annotations

from .kernel import ContinuousKernel
from .nets import FourierKernel, KernelNet, SirenKernel

__all__ = ["ContinuousKernel", "FourierKernel", "KernelNet", "SirenKernel"]
