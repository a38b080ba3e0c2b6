"""Whole networks: relaxed, hardened, exported, made escnn's own."""

try:
    from .escnn_modules import to_escnn
except ModuleNotFoundError as error:
    # Exported networks load their classes from here where escnn is not installed.
    if error.name not in ("escnn", "lie_learn"):
        raise

__all__ = ["to_escnn"]
