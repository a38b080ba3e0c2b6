"""Packages that only experiments need: imported when used, with an error that says what to install."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["require"]


def require(module: str) -> ModuleType:
    """Import a module of ``experiments/requirements.txt``.

    Raises:
        ModuleNotFoundError: where it is not installed.

    Example:
        >>> require("json").dumps([1])
        '[1]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise ModuleNotFoundError(
            f"experiments need {package!r}, which is not installed; in a clone: "
            "pip install -c constraints.txt -r experiments/requirements.txt",
            name=error.name,
        ) from error
