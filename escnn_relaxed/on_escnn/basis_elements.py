"""``basisexpansion`` of a layer: the elements of its steerable basis, for ``escnn.nn.init`` and code like it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from escnn.nn import FieldType
from escnn.nn.modules.basismanager import BasisManager
from torch import Tensor


class BasisElements(BasisManager):
    """The methods of ``R2Conv.basisexpansion``. Unlike there it is no module, and holds nothing of a layer's state."""

    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        elements: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]],
        ranges: Mapping[tuple[str, str], tuple[int, int]],
        expand: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self._in_fields = _fields_by_name(in_type)
        self._out_fields = _fields_by_name(out_type)
        self._elements = dict(elements)
        self._weights_ranges = dict(ranges)
        self._representations_pairs = list(elements)
        self._expand = expand

    def __call__(self, weights: Tensor) -> Tensor:
        """Return the strict filter of these weights, (C_out, C_in/groups, k²), as ``R2Conv.basisexpansion`` does."""
        if weights.shape != (self.dimension(),):
            raise ValueError(f"weights must be of shape ({self.dimension()},), got {tuple(weights.shape)}")
        kernel = self._expand(weights)
        return kernel.reshape(*kernel.shape[:2], -1)

    def dimension(self) -> int:
        """Number of weights."""
        return max((end for _, end in self._weights_ranges.values()), default=0)

    def get_basis_info(self) -> Iterator[dict[str, Any]]:
        """Yield the attributes of the element that each weight multiplies, in the order of the weights."""
        number = 0
        for in_name, out_name in self._representations_pairs:
            for out_position, out_irreps in self._out_fields[out_name]:
                for in_position, in_irreps in self._in_fields[in_name]:
                    for element in self._elements[in_name, out_name]:
                        yield {
                            **element,
                            "in_irreps_position": in_irreps + element["in_irrep_idx"],
                            "out_irreps_position": out_irreps + element["out_irrep_idx"],
                            "in_repr": in_name,
                            "out_repr": out_name,
                            "in_field_position": in_position,
                            "out_field_position": out_position,
                            "block_id": element["id"],
                            "id": number,
                        }
                        number += 1

    def get_element_info(self, name: int) -> dict[str, Any]:
        """Return the attributes of the element that one weight multiplies."""
        for element in self.get_basis_info():
            if element["id"] == name:
                return element
        raise ValueError(f"name must be the number of one of {self.dimension()} weights, got {name!r}")


def _fields_by_name(field_type: FieldType) -> dict[str, list[tuple[int, int]]]:
    """Return the places of each representation's fields: among all fields, and of its first irrep among all irreps."""
    places: dict[str, list[tuple[int, int]]] = {}
    irreps = 0
    for position, field in enumerate(field_type.representations):
        places.setdefault(field.name, []).append((position, irreps))
        irreps += len(field.irreps)
    return places
