"""The options of a relaxed layer that escnn's convolution does not have, and the place of a kernel that they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from escnn.nn import FieldType

from ..checks import check_bool, check_integer, check_number, warn_once
from ..group.domain import Domain
from ..group.kept import kept_group
from ..kernel.domain_frequency import Frequency, starting_frequency
from ..kernel.kernel import Kernel, KernelBuilder, KernelOptions, KernelPlace
from ..kernel.tied import TiedKernel

__all__ = ["DEFAULT_REGIONS", "SOFTENING", "Softening", "check_kernel", "check_keywords", "check_softness"]

DEFAULT_REGIONS = 4


@dataclass(frozen=True)
class Softening:
    """The options of softness: the keyword arguments of ``RelaxedR2Conv``, which documents them."""

    relax: Mapping[str, Frequency] | Iterable[str] | str | None = "default"
    learn_relaxation: bool = False
    keep: Any = None
    initial_softness: float | None = None
    regions: int = DEFAULT_REGIONS
    samples: int = 16
    kernel: KernelBuilder | None = None

    def build(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        dilation: int,
        basis_arguments: Mapping[str, Any],
    ) -> Kernel:
        """Return a kernel between (one group of) these fields, not started."""
        check_kernel(self.kernel)
        gspace = in_type.gspace
        samples = check_integer("samples", self.samples, 1)
        if samples == 1 and gspace.fibergroup.continuous and self.relax is not None:
            warn_once(f"samples: 1 rotation of {gspace.name} leaves no rotation in which the layer could be soft")
        domain = Domain(
            gspace,
            samples,
            kept_group(self.keep, gspace, samples),
            check_integer("regions", self.regions, 1),
            getattr(self.kernel, "rotation_coordinates", "circle"),
        )
        place = KernelPlace(
            in_type,
            out_type,
            kernel_size,
            dilation,
            domain,
            starting_frequency(self.relax, domain, gspace.dimensionality == 2),
            check_bool("learn_relaxation", self.learn_relaxation),
            basis_arguments,
        )
        return (self.kernel or TiedKernel)(place)


# The options that soften a layer whose strict part is given.
SOFTENING = tuple(field.name for field in fields(Softening))


def check_kernel(kernel: Any) -> None:
    """Raise a ``TypeError`` for a value from which no kernel can be built."""
    is_class = isinstance(kernel, type) and issubclass(kernel, Kernel)
    if not (kernel is None or is_class or isinstance(kernel, (KernelOptions, partial))):
        raise TypeError(
            f"kernel must be an escnn_relaxed.ContinuousKernel or a subclass of escnn_relaxed.kernel.Kernel, got "
            f"{type(kernel).__name__}: {kernel!r}"
        )


def check_softness(value: Any, name: str = "initial_softness") -> float:
    """Return a part of the kernel's energy, in [0, 1)."""
    softness = check_number(name, value)
    if not 0 <= softness < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value}")
    return softness


def check_keywords(taker: str, given: Mapping[str, Any], known: tuple[str, ...], others: str) -> None:
    """Raise a ``TypeError`` for a keyword that ``taker`` does not know; ``others`` names its other arguments."""
    unknown = [name for name in given if name not in known]
    if unknown:
        raise TypeError(
            f"{taker} has no argument {unknown[0]!r} (={given[unknown[0]]!r}); {others} it takes these of "
            f"RelaxedR2Conv: {', '.join(known)}"
        )
