"""How soft a network is, how equivariant, and whether images come in all poses alike."""

from .assertion import assert_equivariant
from .equivariance import equivariance_error
from .poses import PoseReport, PoseRow, pose_test
from .reports import EquivarianceReport, ErrorRow
from .robustness import RobustnessReport, RobustnessRow, robustness_report
from .softness_sweep import SoftnessSweep, SweepRow, softness_sweep
from .summary import LayerSummary, RelaxationSummary, relaxation_scalars, relaxation_summary
from .symmetry_profile import ProfileRow, SymmetryProfile, symmetry_profile

__all__ = [
    "EquivarianceReport",
    "ErrorRow",
    "LayerSummary",
    "PoseReport",
    "PoseRow",
    "ProfileRow",
    "RelaxationSummary",
    "RobustnessReport",
    "RobustnessRow",
    "SoftnessSweep",
    "SweepRow",
    "SymmetryProfile",
    "assert_equivariant",
    "equivariance_error",
    "pose_test",
    "relaxation_scalars",
    "relaxation_summary",
    "robustness_report",
    "softness_sweep",
    "symmetry_profile",
]
