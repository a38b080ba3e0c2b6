"""Measures of softness: the equivariance error of a network, its loss when hardened, tables and logs.

A wrong argument raises a ``TypeError`` or a ``ValueError`` that names it.
"""

from .equivariance import equivariance_error
from .monitoring import RelaxationMonitor, relaxation_scalars
from .poses import PoseReport, PoseRow, pose_test
from .reports import AblationReport, AblationRow, EquivarianceReport, ErrorRow
from .robustness import RobustnessOfSubgroup, RobustnessReport, RobustnessRow, robustness_report
from .summary import LayerSummary, RelaxationSummary, relaxation_summary, softness_ablation
from .symmetry_profile import ProfileRow, SymmetryProfile, symmetry_profile
from .symmetry_verdict import SymmetryVerdict, VerdictRow, symmetry_verdict

__all__ = [
    "AblationReport",
    "AblationRow",
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
    "SymmetryVerdict",
    "VerdictRow",
    "equivariance_error",
    "pose_test",
    "relaxation_scalars",
    "relaxation_summary",
    "robustness_report",
    "softness_ablation",
    "symmetry_profile",
    "symmetry_verdict",
]
