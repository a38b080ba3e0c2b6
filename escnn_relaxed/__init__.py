"""Relaxed equivariance for escnn: layers in place of its linear maps that are as equivariant as the data.

The rooms follow in the order in which data meet them. Each imports only from those above it::

    on_escnn/     all that reaches into escnn or patches it
    group/        group elements, fields and points as arrays; the domain of a kernel
    kernel/       K, its mean PK over subgroups, its strict part       (C_out, C_in, T)
    continuous/   the paper's continuous kernel
    integral/     h(x) = Σ_d K(d; x) f(x + d)                          (batch, C_out, …)
    layer/        arguments and state; GeometricTensor in and out
    baselines     the other ways to relax, with the same interface
    network/      whole networks: relax, harden, export, hand back to escnn
    measure/      how soft it is
    learning/     how soft to be
    plots/, models

This module exports what most users need. Each name is listed once: kernels in ``escnn_relaxed.kernel``, kernel nets in
``escnn_relaxed.continuous``, further measures in ``escnn_relaxed.measure``, further tools for learning in
``escnn_relaxed.learning``, and other layers in ``escnn_relaxed.baselines``. Classes of reports can be imported from the
module of the function that returns them. "Equation (2)" and the like refer to docs/concepts/mathematics.md.
"""

import warnings

from ._version import __version__

try:
    with warnings.catch_warnings():
        # escnn does without py3nj, and says so on each import.
        warnings.filterwarnings("ignore", ".*py3nj")
        from . import on_escnn  # noqa: F401 — what it patches is patched before anything is built
    from .continuous import ContinuousKernel
    from .layer.reference_field import ReferenceField
    from .layer.relaxed_linear import RelaxedLinear
    from .layer.relaxed_point_conv import RelaxedR2PointConv, RelaxedR3PointConv
    from .layer.relaxed_r2conv import RelaxedR2Conv, RelaxedR2ConvTransposed
    from .layer.relaxed_r3conv import RelaxedR3Conv, RelaxedR3ConvTransposed
    from .learning import SoftnessEvidence, parameter_groups, which_softness_helps
    from .measure import (
        assert_equivariant,
        equivariance_error,
        pose_test,
        relaxation_scalars,
        relaxation_summary,
        robustness_report,
    )
    from .network.back_to_escnn import to_escnn
    from .network.conversion import harden_network, relax_network
    from .network.export import export_network
    from .network.gate import gate_softness
except ModuleNotFoundError as error:
    # Exported networks load their classes from here where escnn is not installed.
    if error.name not in ("escnn", "lie_learn"):
        raise

__all__ = [
    "ContinuousKernel",
    "ReferenceField",
    "RelaxedLinear",
    "RelaxedR2Conv",
    "RelaxedR2ConvTransposed",
    "RelaxedR2PointConv",
    "RelaxedR3Conv",
    "RelaxedR3ConvTransposed",
    "RelaxedR3PointConv",
    "SoftnessEvidence",
    "__version__",
    "assert_equivariant",
    "equivariance_error",
    "export_network",
    "gate_softness",
    "harden_network",
    "parameter_groups",
    "pose_test",
    "relax_network",
    "relaxation_scalars",
    "relaxation_summary",
    "robustness_report",
    "to_escnn",
    "which_softness_helps",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        raise ImportError(
            f"{name} needs escnn and lie_learn, which are not installed (README.md says what to type); exported "
            "networks need neither"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
