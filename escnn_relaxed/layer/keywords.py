"""Keyword arguments of ``RelaxedR2Conv`` that others pass on to it: their names and types, written once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from ..kernel.continuous_kernel import ContinuousKernel
from .domain_frequency import Frequency

__all__ = ["SofteningKeywords", "StrictKeywords", "check_keywords"]


class StrictKeywords(TypedDict, total=False):
    """Those of a layer of which nothing is relaxed, after the padding."""

    stride: int | tuple[int, int]
    dilation: int
    padding_mode: str
    groups: int
    bias: bool
    sigma: list[float] | float | None
    frequencies_cutoff: float | Callable[[float], int] | None
    rings: list[float] | None
    maximum_offset: int | None
    recompute: bool
    basis_filter: Callable[[dict[str, Any]], bool] | None
    initialize: bool
    strict_kernel: str
    samples: int
    kernel: ContinuousKernel | None


class SofteningKeywords(TypedDict, total=False):
    """Those that say how a layer is soft, beside a strict part that is there."""

    relax: Mapping[str, Frequency] | str | None
    learn_relaxation: bool
    keep: str | None
    initial_softness: float | None
    regions: int | None
    samples: int
    random_offset: bool
    kernel: ContinuousKernel | None


def check_keywords(taker: str, given: Mapping[str, Any], known: type, others: str) -> None:
    """Raise a ``TypeError`` for a keyword that is not among those of ``known``.

    Args:
        taker: what the keywords were given to.
        given: the keywords.
        known: one of the classes above.
        others: what it takes beside these, in words.
    """
    unknown = [name for name in given if name not in known.__annotations__]
    if unknown:
        raise TypeError(
            f"{taker} has no argument {unknown[0]!r} (={given[unknown[0]]!r}); {others} it takes these of "
            f"RelaxedR2Conv: {', '.join(known.__annotations__)}"
        )
