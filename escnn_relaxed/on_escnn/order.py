"""The order of the parameters and buffers of escnn's modules, made the same in every process.

escnn iterates over sets of representations, whose hashes are those of strings and differ between processes. An
optimiser and ``DistributedDataParallel`` know tensors by their order.
"""

from __future__ import annotations

from typing import Any

from escnn.group import Representation
from escnn.nn import FieldType
from escnn.nn.modules.basismanager import basisexpansion_blocks, basissampler_blocks


def use_order_of_fields() -> None:
    """Make escnn iterate over representations in the order in which fields have them."""
    FieldType._unique_representations = property(_representations, lambda fields, value: None)
    for blocks in (basisexpansion_blocks, basissampler_blocks):
        # Of their sets they ask for nothing but the elements and their number.
        blocks.set = dict.fromkeys


def _representations(fields: Any) -> tuple[Representation, ...]:
    """Return each representation of a field type once."""
    return tuple(dict.fromkeys(fields.representations))
