"""The options of a relaxed layer that escnn's convolution does not have, in one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..kernel.continuous_kernel import ContinuousKernel
from .domain_frequency import Frequency

__all__ = ["DEFAULT_REGIONS", "SOFTENING", "Softening", "check_keywords"]

DEFAULT_REGIONS = 4


@dataclass(frozen=True)
class Softening:
    """The options of softness: the keyword arguments of ``RelaxedR2Conv``, which documents them."""

    relax: Mapping[str, Frequency] | str | None = "default"
    learn_relaxation: bool = False
    keep: str | None = None
    initial_softness: float | None = None
    regions: int | None = DEFAULT_REGIONS
    strict_kernel: str = "steerable"
    samples: int = 16
    random_offset: bool = False
    kernel: ContinuousKernel | None = None


# The options that soften a layer whose strict part is given.
SOFTENING = tuple(field.name for field in fields(Softening) if field.name != "strict_kernel")


def check_keywords(taker: str, given: Mapping[str, Any], known: tuple[str, ...], others: str) -> None:
    """Raise a ``TypeError`` for a keyword that is not known.

    Args:
        taker: the name of the function or class that was called.
        given: the keywords.
        known: the names that it takes.
        others: its other arguments, in words.
    """
    unknown = [name for name in given if name not in known]
    if unknown:
        raise TypeError(
            f"{taker} has no argument {unknown[0]!r} (={given[unknown[0]]!r}); {others} it takes these of "
            f"RelaxedR2Conv: {', '.join(known)}"
        )
