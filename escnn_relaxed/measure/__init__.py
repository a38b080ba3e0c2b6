"""Measures of softness, equivariance and robustness, and a test of the poses of images."""

# ``as`` re-exports names listed at the top level and result classes.
from .assertion import assert_equivariant as assert_equivariant
from .equivariance import equivariance_error as equivariance_error
from .poses import PoseReport as PoseReport
from .poses import PoseRow as PoseRow
from .poses import pose_test as pose_test
from .reports import EquivarianceReport as EquivarianceReport
from .reports import ErrorRow as ErrorRow
from .robustness import RobustnessReport as RobustnessReport
from .robustness import RobustnessRow as RobustnessRow
from .robustness import robustness_report as robustness_report
from .softness_sweep import SoftnessSweep as SoftnessSweep
from .softness_sweep import SweepRow as SweepRow
from .softness_sweep import softness_sweep
from .summary import LayerSummary as LayerSummary
from .summary import RelaxationSummary as RelaxationSummary
from .summary import relaxation_scalars as relaxation_scalars
from .summary import relaxation_summary as relaxation_summary
from .symmetry_profile import ProfileRow as ProfileRow
from .symmetry_profile import SymmetryProfile as SymmetryProfile
from .symmetry_profile import symmetry_profile

__all__ = ["softness_sweep", "symmetry_profile"]
