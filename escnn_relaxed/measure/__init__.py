"""Measures of softness: the equivariance error of a network, its loss when hardened, tables and logs.

A wrong argument raises a ``TypeError`` or a ``ValueError`` that names it.
"""

from .equivariance import equivariance_error
from .monitoring import RelaxationMonitor, relaxation_scalars
from .poses import PoseReport, PoseRow, pose_test, symmetry_verdict
from .reports import AblationReport, AblationRow, EquivarianceReport, ErrorRow
from .robustness import RobustnessOfSubgroup, RobustnessReport, RobustnessRow, robustness_report
from .summary import (
    AxisSoftness,
    LayerSummary,
    RelaxationSummary,
    relaxation_summary,
    softness_ablation,
    softness_by_axis,
)
from .symmetry_profile import ProfileRow, SymmetryProfile, symmetry_profile

__all__ = [
    "AblationReport",
    "AblationRow",
    "AxisSoftness",
    "EquivarianceReport",
    "ErrorRow",
    "LayerSummary",
    "PoseReport",
    "PoseRow",
    "ProfileRow",
    "RelaxationMonitor",
    "RelaxationSummary",
    "RobustnessOfSubgroup",
    "RobustnessReport",
    "RobustnessRow",
    "SymmetryProfile",
    "equivariance_error",
    "pose_test",
    "relaxation_scalars",
    "relaxation_summary",
    "robustness_report",
    "softness_ablation",
    "softness_by_axis",
    "symmetry_profile",
    "symmetry_verdict",
]
