"""Relaxed equivariance for escnn: a layer in place of ``R2Conv`` that is as equivariant as the data.

The pipeline, a file a stage, M sampled group elements, T taps in the support, J hidden values::

    group elements, taps, positions   coordinates.py            (M, 2, 2), (T, 2), (P, 2)
    → coordinates ω ⊙ α, ω′ ⊙ α       coordinate_grid.py        (M, R, T, F), (M, P, D)
    → hidden values φ                 kernel.py                 (J, M, R, T, P)
    → steered features → K            steering.py, filter_bank.py  (C_out, C_in, T)
    + strict part in R2Conv's basis   steerable_basis.py        (C_out, C_in, k, k)
    → h = Σ_d K(d; y) f(y)            integral_operator.py      (batch, C_out, H, W)
    → GeometricTensor                 planar_convolution.py, relaxed_convolution.py, relaxed_r2conv.py

What is done with layers once they exist: their strict part and softness (strict_part.py), networks relaxed and hardened
(conversion.py), plain PyTorch without escnn (export.py, exported.py), what is lost without softness (ablation.py),
which layer is how soft (summary.py), learning it (learning.py, parameter_groups.py, sharing.py), a bound on the
equivariance error (error_bound.py) and how fast it may grow with ω′ (lipschitz.py), the error measured
(equivariance.py, invariance.py) and logged in training (monitoring.py).

Other ways to relax behind the same interface are in ``escnn_relaxed.baselines``, the paper's network in
``escnn_relaxed.models``. Equations, "equation (2)", are those of docs/mathematics.md.
"""

from ._version import __version__

try:
    from .ablation import AblationRow, ablation_table, softness_ablation
    from .conversion import harden_network, relax_network
    from .equivariance import EquivarianceReport, ErrorRow, equivariance_error
    from .error_bound import BoundRow, equivariance_error_bound, soft_part_norm
    from .export import export_network
    from .invariance import AgreementReport, AgreementRow, prediction_agreement
    from .learning import HardeningSchedule, SoftnessBound, equivariance_penalty
    from .lipschitz import lipschitz_constants
    from .monitoring import RelaxationMonitor, TensorBoardHook, relaxation_scalars
    from .parameter_groups import parameter_groups
    from .relaxed_r2conv import RelaxedR2Conv
    from .sharing import share_domain_frequency
    from .summary import LayerSummary, RelaxationSummary, relaxation_summary
except ModuleNotFoundError as error:
    # Exported networks load their classes from here where escnn is not installed.
    if error.name not in ("escnn", "lie_learn"):
        raise

__all__ = [
    "AblationRow",
    "AgreementReport",
    "AgreementRow",
    "BoundRow",
    "EquivarianceReport",
    "ErrorRow",
    "HardeningSchedule",
    "LayerSummary",
    "RelaxationMonitor",
    "RelaxationSummary",
    "RelaxedR2Conv",
    "SoftnessBound",
    "TensorBoardHook",
    "__version__",
    "ablation_table",
    "equivariance_error",
    "equivariance_error_bound",
    "equivariance_penalty",
    "export_network",
    "harden_network",
    "lipschitz_constants",
    "parameter_groups",
    "prediction_agreement",
    "relax_network",
    "relaxation_scalars",
    "relaxation_summary",
    "share_domain_frequency",
    "soft_part_norm",
    "softness_ablation",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        raise ImportError(f"{name} needs escnn and lie_learn, which are not installed; exported networks do not")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
