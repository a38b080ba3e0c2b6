"""Versions of other packages with which nothing works, and with errors that name something else: refused on import."""

from __future__ import annotations

from importlib.util import find_spec

import torch

__all__ = ["check_versions"]

# torch.compiler.set_stance; before 2.3 there is no torch.compiler.is_compiling either.
_LEAST_TORCH = (2, 6)


def check_versions(numpy_version: str, torch_version: str) -> None:
    """Refuse versions of NumPy and torch that do not work.

    Raises:
        ImportError: which says what to type.

    Example:
        >>> check_versions("1.26.4", "2.13.0+cpu")
        >>> check_versions("2.1.0", "2.13.0")
        Traceback (most recent call last):
        ImportError: escnn_relaxed needs NumPy below 2, ... has 2.1.0: pip install "numpy<2"
    """
    if _release(numpy_version)[0] >= 2:
        raise ImportError(
            f"escnn_relaxed needs NumPy below 2, for which lie_learn, a part of escnn, is compiled, and this "
            f'environment has {numpy_version}: pip install "numpy<2"'
        )
    if _release(torch_version) < _LEAST_TORCH:
        least = ".".join(map(str, _LEAST_TORCH))
        raise ImportError(
            f"escnn_relaxed needs torch {least} or newer, and this environment has {torch_version}: "
            f'pip install "torch>={least}"'
        )


def _release(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


# Exported networks run without escnn, with any NumPy.
if find_spec("escnn") is not None:
    import numpy

    check_versions(numpy.__version__, torch.__version__)
