"""Pictures of how soft a network is (the extra ``plots``, matplotlib).

Every function draws into the axes it is given, or into new ones of the width of a column, and returns them. A wrong
argument raises a ``TypeError`` or a ``ValueError`` that names it.
"""

try:
    from .charts import plot_equivariance_error
    from .filters import plot_filter_over_positions, plot_filters_over_rotations
    from .softness import plot_softness, plot_softness_sweep
    from .symmetry import plot_robustness, plot_symmetry_profile
except ModuleNotFoundError as error:
    if error.name != "matplotlib":
        raise
    raise ModuleNotFoundError(
        "escnn_relaxed.plots needs matplotlib, the extra `plots`, which is not installed: pip install matplotlib",
        name="matplotlib",
    ) from None

__all__ = [
    "plot_equivariance_error",
    "plot_filter_over_positions",
    "plot_filters_over_rotations",
    "plot_robustness",
    "plot_softness",
    "plot_softness_sweep",
    "plot_symmetry_profile",
]
