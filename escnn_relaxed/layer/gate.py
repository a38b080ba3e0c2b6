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
    return [gate._replace(value=_at(gate.value, len(features), output_size)) for gate in gates]


def is_of_nodes(value: Any) -> bool:
    """Whether a coefficient has a value for each node of a cloud, (n, 1)."""
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


def _at(value: GateValue, count: int, size: Sequence[int]) -> GateValue:
    if not isinstance(value, Tensor) or not value.dim():
        return value
    if len(value) not in (1, count):
        raise ValueError(
            f"gate must be one number, or one for each of the {count} inputs of a layer, got a tensor of shape "
            f"{tuple(value.shape)}"
        )
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


def banks_for_factors(terms: Terms, filters: Sequence[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, bool]:
    """Return the banks of K_g, (R, C_out, …), beside the factors of K at pixels, where gates are numbers.

    Where a part of K_g has no factors, they are R + 1 instead, and the first of them needs the factor 1: of
    (1 + a) B + C the banks are B + C with 1, and B with a.
    """
    constant, varying = list[Tensor](), list[Tensor]()
    for (bank, factors), coefficient in zip(filters, terms.values(), strict=True):
        (constant if factors is None else varying).append(bank * coefficient)
    banks = sum(varying[1:], varying[0])
    if not constant:
        return banks, False
    return torch.cat([sum(constant, banks[0]).unsqueeze(0), banks]), True


def gated_integral(
    features: Tensor,
    filters: Sequence[tuple[Tensor, Tensor | None]],
    bias: Tensor | None,
    terms: Terms,
    geometry: Geometry,
) -> Tensor:
    """Return the output of a layer with K_g, given the banks of each term, with their factors at the pixels.

    It is one convolution: of one bank where gates are numbers and nothing depends on the position, else of the banks
    of all terms side by side, each with its coefficient as a factor.
    """
    is_for_all = not any([isinstance(c, Tensor) and c.dim() for c in terms.values()])
    is_stationary = all([factors is None for _, factors in filters])
    if is_for_all and is_stationary:
        weight = as_weight(gated_sum(terms, [bank for bank, _ in filters]), geometry)
        return integrate(features, weight, None, bias, geometry)
    size, banks, factors, gates = geometry.output_size(*image_size(features)), [], [], []
    for (bank, own_factors), coefficient in zip(filters, terms.values(), strict=True):
        each = bank.unsqueeze(0) if own_factors is None else bank
        banks.append(each * coefficient if is_for_all else each)
        factors.append(bank.new_ones(1, len(each[0]), *size) if own_factors is None else own_factors)
        gate = coefficient if isinstance(coefficient, Tensor) else bank.new_tensor(coefficient)
        gates += [gate if gate.dim() else gate.view(1, 1, *[1] * len(size))] * len(each)
    weight = as_weight(torch.cat(banks), geometry, is_factored=True)
    at_pixels = None if is_stationary else torch.cat(factors)
    return integrate(features, weight, at_pixels, bias, geometry, [] if is_for_all else gates)
