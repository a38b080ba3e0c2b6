from ._version import __version__
from .escnn_compatibility import use_scipy_svd
from .relaxed_r2conv import RelaxedR2Conv

use_scipy_svd()
