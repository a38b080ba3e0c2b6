"""The gate on softness: K_g = PK + g (K − PK), with g a number, or one for each input or pixel."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import Self

from ..checks import ordered_subgroups
from ..integral.factors import as_weight, integrate
from ..integral.geometry import Geometry, image_size
from ..torch_modes import is_traced

# A number, a tensor without dimensions, one value for each input (batch,), or a map (batch, 1, pixels along each axis).
GateValue: TypeAlias = float | Tensor
# The averages P of a kernel by their subgroups, with the coefficient of each in a sum.
Terms: TypeAlias = dict[tuple[str, ...], Any]

_INTERPOLATION = {1: "linear", 2: "bilinear", 3: "trilinear"}


class Gate(NamedTuple):
    """A gate g on the softness in some subgroups."""

    value: GateValue
    subgroups: tuple[str, ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # deepcopy refuses what another network computed: a copy has its values.
        value = self.value
        if isinstance(value, Tensor) and not value.is_leaf:
            memo.setdefault(id(value), value.detach().clone())
        return self._replace(value=copy.deepcopy(value, memo))


def gated_terms(gates: Sequence[Gate], hardened: tuple[str, ...]) -> Terms:
    """Return the coefficients c of K_g = Σ c P K, which add up to 1; gates one after the other multiply."""
    terms: Terms = {hardened: 1.0}
    for gate in gates:
        gated: Terms = {}
        for averaged, coefficient in terms.items():
            strict = ordered_subgroups(averaged, gate.subgroups)
            parts = {averaged: coefficient}
            if strict != averaged:
                parts = {averaged: coefficient * gate.value, strict: coefficient * (1 - gate.value)}
            for names, part in parts.items():
                gated[names] = gated[names] + part if names in gated else part
        terms = gated
    return terms


def check_for_all(name: str, gates: Sequence[Gate]) -> None:
    """Raise a ``RuntimeError`` where a gate has a value for each input: no single kernel has its effect."""
    if any([isinstance(gate.value, Tensor) and gate.value.dim() for gate in gates]):
        raise RuntimeError(
            f"{name}: a gate on softness has a value for each input here, so the layer has no single kernel: gate it "
            f"with one number, or remove the gate"
        )


def gates_at(gates: Sequence[Gate], features: Tensor, output_size: Sequence[int]) -> list[Gate]:
    """Return gates that broadcast to (batch, 1, pixels along each axis) of the output of a layer."""
    return [gate._replace(value=_at(gate.value, features, output_size)) for gate in gates]


def is_of_nodes(value: Any) -> bool:
    """Return whether a coefficient has a value for each node of a cloud, (n, 1)."""
    return isinstance(value, Tensor) and value.dim() > 0


def gates_at_nodes(gates: Sequence[Gate], count: int) -> list[Gate]:
    """Return gates that are numbers, or have a value for each node of a cloud, (n, 1)."""
    values = []
    for gate in gates:
        value = gate.value
        if isinstance(value, Tensor) and value.dim() and value.shape != (count,):
            raise ValueError(
                f"gate must be one number, or one for each of the {count} nodes of a cloud, got a tensor of shape "
                f"{tuple(value.shape)}"
            )
        values.append(gate._replace(value=value.view(-1, 1) if isinstance(value, Tensor) and value.dim() else value))
    return values


def _at(value: GateValue, features: Tensor, size: Sequence[int]) -> GateValue:
    if not isinstance(value, Tensor) or not value.dim():
        return value
    # A trace compares no sizes, which would make them constants. So would len() under torch.export.
    count = features.shape[0]
    if (torch.compiler.is_compiling() or not is_traced()) and value.shape[0] not in (1, count):
        raise ValueError(
            f"gate must be one number, or one for each of the {count} inputs of a layer, got a tensor of shape "
            f"{tuple(value.shape)}"
        )
    if value.device != features.device:
        raise ValueError(f"gate must be on the device of the features, {features.device}, got one on {value.device}")
    if value.dim() == 1:
        return value.view(-1, 1, *[1] * len(size))
    if not size:
        return value.flatten(2).mean(2)  # a linear map has no pixels
    if value.dim() != 2 + len(size):
        raise ValueError(
            f"gate must be (batch,) or (batch, 1, …) with {len(size)} axes of pixels for this layer, got a tensor of "
            f"shape {tuple(value.shape)}"
        )
    if value.shape[2:] == tuple(size):
        return value
    return functional.interpolate(value, tuple(size), mode=_INTERPOLATION[len(size)], align_corners=False)


def gated_sum(terms: Terms, values: Sequence[Tensor]) -> Tensor:
    """Return Σ c v, given a value v of each term: the kernel P K where gates are numbers, or its output."""
    parts = [value * c for value, c in zip(values, terms.values(), strict=True)]
    return sum(parts[1:], parts[0])


def added_banks(terms: Terms, filters: Sequence[tuple[Tensor, Any]]) -> list[tuple[Tensor, Any]]:
    """Return the banks of K_g, where gates are numbers, (R, C_out, …), with their factors: None, for 1, comes first.

    Banks that have the same factors are added.
    """
    found: dict[int, tuple[Tensor, Any]] = {}
    for (bank, factors), coefficient in zip(filters, terms.values(), strict=True):
        part = _stacked(bank) * coefficient
        found[id(factors)] = (found[id(factors)][0] + part if id(factors) in found else part), factors
    return sorted(found.values(), key=lambda part: part[1] is not None)


def _of_one_bank(terms: Terms, filters: Sequence[tuple[Tensor, Tensor | None]]) -> list[tuple[Tensor, Tensor]]:
    """Return the bank that all terms share with the sum of their factors; nothing where they have several."""
    bank, is_factored = filters[0][0], any([factors is not None for _, factors in filters])
    if not is_factored or any([other is not bank for other, _ in filters]):
        return []
    scaled = [c if of is None else of * c for (_, of), c in zip(filters, terms.values(), strict=True)]
    return [(bank, sum(scaled[1:], scaled[0]))]


def _stacked(bank: Tensor) -> Tensor:
    """Return banks as (R, C_out, C_in, T)."""
    return bank if bank.dim() > 3 else bank.unsqueeze(0)


def gated_integral(
    features: Tensor,
    filters: Sequence[tuple[Tensor, Tensor | None]],
    bias: Tensor | None,
    terms: Terms,
    geometry: Geometry,
) -> Tensor:
    """Return the output of a layer with K_g, given the banks of each term, with their factors at the pixels.

    It is one convolution with all banks that are left side by side.
    """
    coefficients = [*terms.values()]
    if not any([isinstance(c, Tensor) and c.dim() for c in coefficients]):
        merged: Any = _of_one_bank(terms, filters) or added_banks(terms, filters)
        varying = [factors for _, factors in merged if factors is not None]
        weight = as_weight(torch.cat([bank for bank, _ in merged]), geometry, is_factored=True)
        return integrate(features, weight, torch.cat(varying) if varying else None, bias, geometry)
    if all([factors is None for _, factors in filters]):
        # Coefficients add up to 1, so Σ c B is the last bank and c times the differences from it.
        *banks, last = [_stacked(bank) for bank, _ in filters]
        weight = as_weight(torch.cat([last, *[bank - last for bank in banks]]), geometry, is_factored=True)
        return integrate(features, weight, None, bias, geometry, [_as_tensor(c, features) for c in coefficients[:-1]])
    size, banks, factors, gates = geometry.output_size(*image_size(features)), [], [], []
    for (bank, own_factors), coefficient in zip(filters, coefficients, strict=True):
        banks.append(_stacked(bank))
        ones = bank.new_ones(1, banks[-1].shape[1], *size)
        factors.append(ones if own_factors is None else own_factors)
        gates += [_as_tensor(coefficient, features)] * len(banks[-1])
    weight = as_weight(torch.cat(banks), geometry, is_factored=True)
    return integrate(features, weight, torch.cat(factors), bias, geometry, gates)


def _as_tensor(coefficient: Any, features: Tensor) -> Tensor:
    """Return a coefficient that broadcasts to (batch, 1, pixels along each axis)."""
    gate = coefficient if isinstance(coefficient, Tensor) else features.new_tensor(coefficient)
    return gate if gate.dim() else gate.view(*[1] * features.dim())
