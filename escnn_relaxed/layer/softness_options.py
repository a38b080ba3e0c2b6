"""The options of softness, which all layers share, and the kernel that they describe. Add new options here only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import Any, TypedDict, TypeVar

from escnn.group import CyclicGroup, GroupElement
from escnn.gspaces import GSpace
from escnn.nn import FieldType
from torch import nn

from ..checks import check_bool, check_integer, warn_once
from ..group.domain import Domain
from ..group.elements import CUBE, ActingGroup, acting_group
from ..group.kept import kept_group
from ..kernel.config import KernelConfig
from ..kernel.domain_frequency import Frequency, named_subgroups, starting_frequency
from ..kernel.free import FreeKernel
from ..kernel.kernel import Kernel, KernelBuilder
from ..kernel.strict import RelaxingKernel
from ..kernel.tied import TiedKernel
from .arguments import check_keywords

# The rotations by which SO(2) and O(2) are sampled.
_SAMPLES = 16


class SoftnessOptions(TypedDict, total=False):
    """Keyword arguments that set the softness of a layer, its subgroups and its kernel.

    ``RelaxedR2Conv`` documents them.
    """

    relax: Mapping[str, Frequency] | Sequence[str] | Set[str] | str | None
    learn_relaxation: bool
    # The name of a group, the id of a subgroup, which may be a number or a tuple, or elements that generate one.
    keep: Hashable | Sequence[GroupElement]
    initial_softness: float | None
    samples: int | None
    kernel: KernelBuilder | None


DEFAULTS: SoftnessOptions = {
    "relax": "default",
    "learn_relaxation": False,
    "keep": None,
    "initial_softness": None,
    "samples": None,
    "kernel": None,
}
_Init = TypeVar("_Init", bound=Callable[..., None])


def shows_softness_options(initialize: _Init) -> _Init:
    """Return an ``__init__`` with ``**softness``, whose signature lists the options by name for people and for docs."""
    signature = inspect.signature(initialize)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_WRITTEN[name])
        for name, default in DEFAULTS.items()
    ]
    shown: Any = initialize
    shown.__signature__ = signature.replace(parameters=[*own, *options])
    return initialize


# The types as they are written above.
_WRITTEN = {name: getattr(kind, "__forward_arg__", kind) for name, kind in SoftnessOptions.__annotations__.items()}


def check_options(taker: str, options: Mapping[str, object]) -> None:
    """Raise a ``TypeError`` for a keyword that is not an option of softness."""
    check_keywords(taker, options, tuple(DEFAULTS), "beside the arguments of escnn's layer")


def default_kernel(config: KernelConfig) -> Kernel:
    """Return the tied kernel, or a free one of a linear map that a tied one would leave strict."""
    tied = TiedKernel(config)
    if config.domain.gspace is config.in_type.gspace or not tied.cannot_be_soft or tied.relaxed_subgroups:
        return tied
    free = FreeKernel(config)
    return free if free.relaxed_subgroups else tied


def build_kernel(
    options: SoftnessOptions,
    in_type: FieldType,
    out_type: FieldType,
    kernel_size: int,
    dilation: int,
    basis_arguments: Mapping[str, Any],
    default: KernelBuilder = default_kernel,
) -> Kernel:
    """Return the kernel between (one group of) these fields that the options describe, not started.

    ``default`` builds it where the options name no kernel.
    """
    options = {**DEFAULTS, **options}
    relax, keep, builder = options["relax"], options["keep"], options["kernel"]
    check_kernel(builder)
    gspace = _acting_gspace(in_type, relax, keep)
    most = CUBE if gspace.dimensionality > 2 else _SAMPLES
    samples = most if options["samples"] is None else check_integer("samples", options["samples"], 1)
    if samples == 1 and gspace.fibergroup.continuous and relax is not None:
        warn_once(f"samples: 1 rotation of {gspace.name} leaves no rotation in which the layer could be soft")
    domain = Domain(gspace, samples, kept_group(keep, gspace, samples))
    # A function that builds a kernel has no attributes.
    frequency = starting_frequency(relax, domain, getattr(builder, "default_frequency", {}))
    learn = check_bool("learn_relaxation", options["learn_relaxation"])
    taps = in_type, out_type, kernel_size, dilation
    kernel: object = (builder or default)(KernelConfig(*taps, domain, frequency, learn, basis_arguments))
    if not isinstance(kernel, Kernel):
        raise TypeError(f"kernel must return a Kernel, got {type(kernel).__name__} from {builder!r}")
    named = list(frequency) if named_subgroups(relax) else []
    _warn_of_other_subgroups(kernel, relax, named)
    rigid = [name for name in kernel.cannot_be_soft if name in named]
    if rigid:
        has_taps = default is default_kernel
        of_taps = f" with kernel_size={kernel_size}" if has_taps else ""
        beside = ", and in rotation taps beside the centre would, too" if has_taps else ""
        warn_once(
            f"relax: the layer from {in_type} to {out_type}{of_taps} cannot be soft in "
            f"{', '.join(rigid)}, whatever its weights, and stays strict there: a field whose channels belong to "
            f"group elements (regular or quotient) on either side would make it soft{beside}. Leave it out of relax "
            f"where the layer shall be strict"
        )
    return kernel


def _warn_of_other_subgroups(kernel: Kernel, relax: object, named: Sequence[str]) -> None:
    """Warn once if a kernel is not soft in a subgroup that ``relax`` names, or is soft in another."""
    soft = kernel.relaxed_subgroups
    ignored = [name for name in named if name not in (*soft, *kernel.cannot_be_soft)]
    if ignored:
        warn_once(
            f"relax: a {kernel.public_name} cannot be soft in {', '.join(ignored)}, and the layer stays strict "
            f"there: take another kernel, or leave {'them' if len(ignored) > 1 else 'it'} out of relax"
        )
    # Other ways to relax have no ω′, and so no `relax`.
    unasked = [name for name in soft if name not in kernel.config.relax]
    if unasked and not isinstance(kernel, RelaxingKernel):
        warn_once(
            f"relax: a {kernel.public_name} is soft in {', '.join(unasked)}, which relax={relax!r} leaves "
            f"out: its relaxed_subgroups must be of config.relax, and it must be strict in all others"
        )


def _acting_gspace(in_type: FieldType, relax: object, keep: object) -> GSpace | ActingGroup:
    """Return the gspace of a field type; without a base space, the standard action of its group."""
    gspace = in_type.gspace
    if gspace.dimensionality:
        return gspace
    if "translation" in named_subgroups(relax):
        raise ValueError(
            f"relax: features without a base space have no translation to relax, got {relax!r}: name rotation "
            f"or reflection, or the whole group"
        )
    action = acting_group(gspace.fibergroup)
    if action is None and (named_subgroups(relax) or keep is not None):
        raise ValueError(
            f"relax and keep must be left out for {gspace.fibergroup.name}, a continuous group of which no action "
            f"is known: such a linear map is strict, got relax={relax!r}, keep={keep!r}"
        )
    if action is None and relax is not None:
        warn_once(
            f"relax: the linear maps of {gspace.fibergroup.name} stay strict, since no action of this continuous group "
            f"is known; relax=None says so"
        )
    return action or ActingGroup(CyclicGroup._generator(1), 2)


def check_kernel(kernel: object) -> None:
    """Raise a ``TypeError`` for a value from which no kernel can be built."""
    is_kernel = issubclass(kernel, Kernel) if isinstance(kernel, type) else callable(kernel)
    if isinstance(kernel, (nn.Module, FieldType)) or not (kernel is None or is_kernel):
        raise TypeError(
            f"kernel must be an escnn_relaxed.ContinuousKernel or a subclass of escnn_relaxed.kernel.Kernel, got "
            f"{type(kernel).__name__}: {kernel!r}"
        )
