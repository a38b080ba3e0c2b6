"""What escnn needs so that every group of the plane can be built.

escnn solves for Clebsch–Gordan coefficients with scikit-learn's ``randomized_svd`` where scikit-learn is
installed, and hands it an ``np.matrix``, which scikit-learn refuses from 1.7 on: dihedral groups cannot be
built then, unless their coefficients lie in escnn's disk cache already. Without scikit-learn escnn takes
SciPy's SVD, which gives the same null space; here it always does.
"""

from __future__ import annotations

import escnn.group._numerical as escnn_numerical

__all__ = ["use_scipy_svd"]


def use_scipy_svd() -> None:
    """Let escnn compute null spaces as it does where scikit-learn is not installed."""
    escnn_numerical.randomized_svd = None
