"""Functions on whole networks: relax, harden, gate, export, return to escnn."""

try:
    from .back_to_escnn import to_escnn as to_escnn  # listed at the top level
    from .gate import write_gate
    from .gated_export import export_with_gate
except ModuleNotFoundError as error:
    # Exported networks load their classes from here where escnn is not installed.
    if error.name not in ("escnn", "lie_learn"):
        raise

__all__ = ["export_with_gate", "write_gate"]
