"""Relaxed equivariance for escnn: layers in place of ``R2Conv`` and ``R3Conv`` that are as equivariant as the data.

The folders follow in the order in which data meet them. Each imports only from those above it. M counts sampled group
elements, T taps in the support, P positions, J hidden values::

    group/        group elements, grid points, field types as arrays   (M, d, d), (T, d), (P, d)
                  → coordinates ω ⊙ α, ω′ ⊙ α                          (M, R, T, F), (M, P, D)
    kernel/       → hidden values φ                                    (J, M, R, T, P)
                  → filter bank K, strict part and soft part           (P, C_out, C_in, k, …)
    integral/     → h(x) = Σ_d K(d; x) f(x + d)                        (batch, C_out, …)
    layer/        arguments and state; GeometricTensor in and out
    baselines     other ways to relax, with the same face
    network/      whole networks: relax, harden, export, hand back to escnn
    measure/      how soft it is
    learning/     how soft to be
    plots/, models, tutorials

This module exports what most users need. Kernel nets are in ``escnn_relaxed.kernel``, reports and logs in
``escnn_relaxed.measure``, further tools for learning in ``escnn_relaxed.learning``, other layers in
``escnn_relaxed.baselines``, and the way back to escnn in ``escnn_relaxed.network``. "Equation (2)" and the like refer
to docs/concepts/mathematics.md.
"""

from ._version import __version__

try:
    from .on_escnn import versions  # noqa: F401 — before all that fails with other versions
    from .kernel import ContinuousKernel
    from .layer.relaxed_r2conv import RelaxedR2Conv
    from .layer.relaxed_r2conv_transposed import RelaxedR2ConvTransposed
    from .layer.relaxed_r3conv import RelaxedR3Conv
    from .learning import HardeningSchedule, SoftnessBound, equivariance_penalty, parameter_groups
    from .measure import equivariance_error, prediction_agreement, relaxation_summary, softness_ablation
    from .network.conversion import harden_network, relax_network
    from .network.export import export_network
except ModuleNotFoundError as error:
    # Exported networks load their classes from here where escnn is not installed.
    if error.name not in ("escnn", "lie_learn"):
        raise

__all__ = [
    "ContinuousKernel",
    "HardeningSchedule",
    "RelaxedR2Conv",
    "RelaxedR2ConvTransposed",
    "RelaxedR3Conv",
    "SoftnessBound",
    "__version__",
    "equivariance_error",
    "equivariance_penalty",
    "export_network",
    "harden_network",
    "parameter_groups",
    "prediction_agreement",
    "relax_network",
    "relaxation_summary",
    "softness_ablation",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        raise ImportError(f"{name} needs escnn and lie_learn, which are not installed; exported networks need neither")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
