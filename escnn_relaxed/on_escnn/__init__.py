"""All that reaches into escnn: its bases, its solutions, its pickling. Importing this patches escnn, here alone.

- Null spaces are computed as where scikit-learn is not installed, since escnn fails with its newer versions.
- Solutions of escnn's linear systems are the same in every process, and are loaded from disk without a word.
- Nothing adds irreps to a continuous group but a frequency that is asked for.
- Parameters and buffers have the same order in every process.
- Groups, representations and field types can be pickled.
"""

from . import versions  # noqa: F401 — before all that fails with other versions
from .order import use_order_of_fields
from .pickling import keep_irreps, register_reducers
from .solutions import use_canonical_solutions

keep_irreps()
use_canonical_solutions()
use_order_of_fields()
register_reducers()
