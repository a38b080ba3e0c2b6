"""What escnn needs so that every group of the plane can be built.

escnn solves for Clebsch–Gordan coefficients with scikit-learn's ``randomized_svd`` where scikit-learn is
installed, and hands it an ``np.matrix``, which scikit-learn ≥ 1.2 refuses: the even dihedral groups fail (D6,
D8, D10), unless their coefficients lie in escnn's disk cache already. Without scikit-learn escnn takes SciPy's
SVD, which gives the same null space; here it always does.
"""

from __future__ import annotations

import escnn.group._numerical as escnn_numerical

__all__ = ["use_scipy_svd"]


def use_scipy_svd() -> None:
    """Let escnn compute null spaces as it does where scikit-learn is not installed."""
    escnn_numerical.randomized_svd = None
