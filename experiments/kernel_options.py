"""The kernel of a configuration: the paper's, with some of its options replaced."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from escnn_relaxed import ContinuousKernel
from escnn_relaxed.checks import check_choice, check_integer
from escnn_relaxed.continuous import FourierKernel, KernelNet, SirenKernel
from escnn_relaxed.models import KERNEL

__all__ = ["DEFAULT_KERNEL", "read_kernel"]

# In place of options: the kernel that layers have by default, which is not the paper's.
DEFAULT_KERNEL = "default"

NETS: dict[str, type[KernelNet]] = {"siren": SirenKernel, "fourier": FourierKernel}
OPTIONS = ("features", *(entry.name for entry in dataclasses.fields(ContinuousKernel)))


def read_kernel(options: Mapping[str, Any] | str) -> ContinuousKernel | None:
    """The ``kernel`` of a network.

    Args:
        options: of :class:`~escnn_relaxed.ContinuousKernel`, in place of the paper's, its ``net`` as ``"siren"`` or
            ``"fourier"``, and ``features``, the number D of random projections of ``"fourier"``; or ``"default"``.

    Returns:
        None for the kernel that layers have by default.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for an unknown option, or a value that has no meaning.

    Example:
        >>> read_kernel({"net": "fourier", "filter_frequency": 0.5}).filter_frequency
        0.5
    """
    if options == DEFAULT_KERNEL:
        return None
    if not isinstance(options, Mapping):
        raise TypeError(f"kernel must be options, as kernel.net='fourier', or {DEFAULT_KERNEL!r}; got {options!r}")
    for name in options:
        if name not in OPTIONS:
            raise ValueError(f"an option of the kernel must be one of {', '.join(OPTIONS)}; got {name!r}")
    changes = dict(options)
    features = changes.pop("features", None)
    if "net" in changes:
        changes["net"] = NETS[check_choice("kernel.net", changes["net"], tuple(NETS))]
    if features is not None:
        if changes.get("net") is not FourierKernel:
            raise ValueError("kernel.features is the number of random projections, which kernel.net='fourier' has")
        changes["net"] = _fourier_kernel(check_integer("kernel.features", features, 1))
    return dataclasses.replace(KERNEL, **changes)


@functools.cache
def _fourier_kernel(count: int) -> type[FourierKernel]:
    """Return the class of Fourier kernels with so many projections."""

    class Fourier(FourierKernel):
        def __init__(self, filter_dimension: int, domain_dimension: int, hidden_size: int) -> None:
            super().__init__(filter_dimension, domain_dimension, hidden_size, features=count)

    return Fourier
