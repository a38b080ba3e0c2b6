"""Tolerances: the distance that two right results may have, by the dtype of their computation, and that of a wrong one.

A test with a bound of its own says why beside it.
"""

# float64.
ROUNDING = 1e-12  # sums of some hundred terms, in two orders; found: 1e-15 to 6e-15
FEW_TERMS = 1e-14  # a few sines, quotients or products of numbers of order one; found: 1e-16
DECOMPOSED = 1e-9  # through an eigenvalue problem, or escnn's matrices of fields as sums over irreps; found: 1e-12

# float32, also of float64 features on escnn's bases, which are sampled in float32.
SINGLE = 1e-6  # the same sums; found: 2e-7
SINGLE_REORDERED = 1e-5  # sums of some hundred terms in two orders, or several layers one after the other; found: 1e-6

# Values that are not equal differ by this: well above 1e-3. A layer whose softness starts at 0.3 errs by about 0.5.
BROKEN = 1e-2
# The same of networks that are hardly trained: a hundred times what float32 may differ by.
SLIGHTLY_BROKEN = 1e-3
