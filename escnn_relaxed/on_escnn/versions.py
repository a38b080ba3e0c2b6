"""Checks on import for unsupported versions of other packages."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import torch

# torch.compiler.set_stance; before 2.3 there is no torch.compiler.is_compiling either.
_LEAST_TORCH = (2, 6)


def check_torch(version: str) -> None:
    """Raise an ``ImportError``, which says what to type, for a torch that is too old."""
    major, minor, *_ = version.split(".")
    if (int(major), int(minor)) < _LEAST_TORCH:
        least = ".".join(map(str, _LEAST_TORCH))
        raise ImportError(
            f"escnn_relaxed needs torch {least} or newer, and this environment has {version}: "
            f'pip install "torch>={least}"'
        )


def check_lie_learn() -> None:
    """Raise an ``ImportError`` for a lie_learn whose compiled parts are missing, or are made for another NumPy."""
    try:
        import_module("lie_learn.representations.SO3.wigner_d")
    except (ImportError, ValueError) as error:  # a ValueError where arrays have another size in memory
        raise ImportError(
            "escnn needs lie_learn, which does not import here: its compiled parts are missing, or made for another "
            "NumPy. A stand-in lies in the folder of escnn_relaxed. Type there: pip install ./compat"
        ) from error


# Exported networks run without escnn and lie_learn.
if find_spec("escnn") is not None and find_spec("lie_learn") is not None:
    check_torch(torch.__version__)
    check_lie_learn()
