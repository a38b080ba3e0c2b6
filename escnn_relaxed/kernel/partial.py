"""Partial equivariance: the kernel has a support on the group, around the identity (Romero & Lohit 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from escnn.nn import FieldType
from torch import Tensor, nn

from ..checks import check_bool, check_choice, check_number
from ..group.elements import GroupSample, has_subgroup, sample_group
from ..group.exact_constants import ExactConstants
from ..group.field_elements import channel_elements
from ..group.frame import FIBER_SUBGROUPS
from ..layer.arguments import check_softness
from ..layer.default_device import built_on_the_cpu
from ..torch_modes import has_values
from .group_mean import FunctionMean
from .strict_kernel import BaselineConvolution, StrictKernel, strict_layer

__all__ = ["PartialR2Conv"]


class PartialR2Conv(BaselineConvolution):
    r"""A group convolution onto a part of the group, whose size is learned.

    .. math::
        K_{g, g'}(d) = w_\nu(g)\, k(g'^{-1}d,\ g'^{-1}g)

    k is the kernel of a strict layer, and w is a window on the group: a weight of each output element, largest at the
    identity. The *narrowing* ν of a subgroup says how much is cut off. At 0, w = 1 and the layer is strict. At 1 the
    output is non-zero only on the identity of the subgroup. For rotations w falls linearly over one step of the group,
    so that ν has a gradient everywhere. For reflections it is 1 − ν on the elements that reflect. Channels of a
    quotient field take the mean of w over their coset.

    Romero and Lohit, "Learning Partial Equivariances from Data" (arXiv 2110.10211, NeurIPS 2022), draw the elements of
    the output from a uniform distribution on [−θ, θ], with θ learned. Here the elements are those of the field type,
    and w says how much of each is kept.

    Args:
        in_type: field type of the input.
        out_type: field type of the output, of regular and quotient fields unless nothing is relaxed.
        kernel_size: k, odd or even.
        padding: pixels on both sides, an integer or a pair (rows, columns).
        relax: starting ν of ``"rotation"`` and ``"reflection"``, in [0, 1]. A subgroup that is left out stays strict.
            None: strict everywhere. Default: those that the group has, as narrow as ``initial_softness`` says.
        learn_relaxation: make ν parameters, as the paper does.
        initial_softness: s = ‖K − PK‖² / ‖K‖² at the start, for the default of ``relax``.
        **keywords: ``R2Conv``'s further arguments by keyword, and those of a strict
            :class:`~escnn_relaxed.RelaxedR2Conv`: ``strict_kernel``, ``samples``, ``kernel``.

    Raises:
        TypeError: for an argument of the wrong type, or an unknown one.
        ValueError: for a value that has no meaning, or output fields whose channels are not group elements.

    Shape:
        GeometricTensor (batch, C_in, H, W) → (batch, C_out, H_out, W_out).

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot2dOnR2(8)
        >>> in_type = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> out_type = nn.FieldType(gspace, [gspace.regular_repr] * 4)
        >>> layer = PartialR2Conv(in_type, out_type, 5, padding=2, relax={"rotation": 0.5})
        >>> layer(in_type(torch.randn(2, 1, 28, 28))).shape
        torch.Size([2, 32, 28, 28])
        >>> layer.window.elements().tolist()  # turns of 0, 45, …, 315 degrees
        [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    """

    @built_on_the_cpu
    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        kernel_size: int,
        padding: int | tuple[int, int] = 0,
        *,
        relax: Mapping[str, float] | str | None = "default",
        learn_relaxation: bool = True,
        initial_softness: float = 0.01,
        **keywords: Any,
    ) -> None:
        layer = strict_layer("PartialR2Conv", in_type, out_type, kernel_size, padding, keywords)
        super().__init__(layer)
        softness = check_softness(initial_softness)
        available = [name for name in FIBER_SUBGROUPS if has_subgroup(self.space, name)]
        sample = sample_group(self.space, samples=1)
        elements, has_any = channel_elements(out_type.representations, sample)
        if relax is not None and relax != {} and available and not has_any.all():
            names = [field.name for field in out_type.representations]
            raise ValueError(
                f"out_type must be of regular and quotient fields, whose channels are the group elements that the "
                f"window weighs, got {names}; relax=None makes a strict layer of any fields"
            )
        start = _starting_narrowing(relax, available, sample, softness)
        self.strict = StrictKernel(layer)
        self.window = GroupWindow(sample, elements, start, check_bool("learn_relaxation", learn_relaxation))

    @property
    def narrowing(self) -> dict[str, Tensor]:
        """ν of each subgroup; 0 is strict, 1 cuts off all but the identity."""
        return self.window.narrowing()

    def set_narrowing(self, **values: float) -> None:
        """Set ν of subgroups in place.

        Raises:
            TypeError: for a value that is not a number.
            ValueError: for a subgroup that was not named in ``relax``, or a value outside [0, 1].
        """
        for name, value in values.items():
            if name not in self.narrowing:
                raise ValueError(
                    f"{name!r} has no narrowing in this layer, which has {list(self.narrowing)}: name it in `relax` "
                    f"when the layer is built, with 0.0 for strict"
                )
            checked = _check_narrowing("set_narrowing", name, value)
            with torch.no_grad():
                self.narrowing[name].fill_(checked)

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the weights that relax the strict kernel."""
        yield from self.window.parameters()

    def make_strict(self) -> None:
        """Set every ν to 0 in place; training may narrow the window again."""
        self.set_narrowing(**dict.fromkeys(self.narrowing, 0.0))

    def projected_bank(self, subgroups: tuple[str, ...]) -> Tensor:
        """Return PK, (C_out, C_in/groups, k, k): P replaces the window by its mean over the subgroups."""
        bank: Tensor = self.strict()
        return bank * self.window(subgroups).view(-1, 1, 1, 1) if self.narrowing else bank

    @property
    def relaxed_subgroups(self) -> tuple[str, ...]:
        """Subgroups that have a narrowing."""
        return tuple(self.narrowing)

    @property
    def relaxed_by(self) -> str:
        """The narrowing of each subgroup, in words."""
        values = (f"{name} {value.item():.3g}" for name, value in self.narrowing.items())
        return f"narrowing {', '.join(values) or 'of nothing'}"

    def extra_repr(self) -> str:
        """Return the field types, the convolution's arguments that are not default, and ν."""
        values = {
            name: round(value.item(), 4) if has_values(value) else "not here" for name, value in self.narrowing.items()
        }
        return f"{super().extra_repr()}, narrowing={values or 'strict'}"


class GroupWindow(ExactConstants):
    """The window w on the group, and its value for each channel.

    Args:
        sample: the M elements of the group.
        channels: the elements of each channel as a mean, (C, M).
        start: starting ν of each subgroup.
        learn: make them parameters. Otherwise they are buffers, which are part of the state too.
    """

    distance: Tensor
    reflected: Tensor
    channels: Tensor

    def __init__(
        self, sample: GroupSample, channels: np.ndarray[Any, Any], start: dict[str, float], learn: bool
    ) -> None:
        super().__init__()
        distance, self._edge = _rotation_distance(sample)
        self.set_constant("distance", distance)
        self.set_constant("reflected", sample.reflected.astype(np.float64))
        self.set_constant("channels", channels)
        self.mean = FunctionMean(sample)
        self._names = tuple(start)
        for name, value in start.items():
            tensor = torch.tensor(float(value))
            if learn:
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)

    def narrowing(self) -> dict[str, Tensor]:
        """Return ν of each subgroup."""
        return {name: getattr(self, name) for name in self._names}

    def elements(self) -> Tensor:
        """Return w at each group element, (M,)."""
        # |ν| has a slope at 0 too. So a step of the optimiser below 0 narrows as well, and a strict layer can learn.
        narrowing = {name: torch.where(value < 0, -value, value) for name, value in self.narrowing().items()}
        window = torch.ones_like(self.distance)
        if "rotation" in narrowing:
            outside = self.distance - (1 - narrowing["rotation"])
            window = window * (1 - outside / self._edge).clamp(0, 1)
        if "reflection" in narrowing:
            window = window * (1 - narrowing["reflection"] * self.reflected).clamp(0, 1)
        return window

    def forward(self, subgroups: tuple[str, ...] = ()) -> Tensor:
        """Return the value for each channel, (C,), of the mean of w over some subgroups."""
        return self.channels @ self.mean(self.elements(), subgroups)


def _rotation_distance(sample: GroupSample) -> tuple[np.ndarray[Any, Any], float]:
    """Return the angle by which each element turns, over the largest of them, and the size of one step."""
    angle = np.abs(sample.angle)
    steps = max(int((sample.reflected == 0).sum()) // 2, 1)
    return angle / max(angle.max(), 1e-12), 1 / steps


def _softness(window: np.ndarray[Any, Any]) -> float:
    """Return ‖K − PK‖² / ‖K‖² of K = w k between regular fields: P replaces w by its mean over the group."""
    return float(1 - window.mean() ** 2 / np.square(window).mean())


def _starting_narrowing(
    relax: Mapping[str, float] | str | None, available: list[str], sample: GroupSample, softness: float
) -> dict[str, float]:
    """Return the starting ν of each subgroup that may be narrowed."""
    if relax is None:
        return {}
    if isinstance(relax, str):
        check_choice("relax", relax, ("default",))
        # Windows multiply, and so do 1 − s.
        each = 1 - (1 - softness) ** (1 / max(len(available), 1))
        return {name: _narrowing_for(each, name, sample) for name in available}
    if not isinstance(relax, Mapping):
        raise TypeError(f"relax must be a dict from subgroup to narrowing, or None, got {relax!r}")
    for name, value in relax.items():
        if name not in FIBER_SUBGROUPS:
            raise ValueError(f"relax: a window must be on one of {list(FIBER_SUBGROUPS)}, got {name!r}: {value!r}")
        if name not in available:
            raise ValueError(f"relax: the group has no {name} to relax, got {name!r}: {value!r}")
    return {name: _check_narrowing("relax", name, relax[name]) for name in available if name in relax}


def _check_narrowing(argument: str, name: str, value: Any) -> float:
    narrowing = check_number(f"{argument}: the narrowing of {name!r}", value)
    if not 0 <= narrowing <= 1:
        raise ValueError(f"{argument}: the narrowing of {name!r} must be in [0, 1], got {value!r}")
    return narrowing


def _narrowing_for(softness: float, name: str, sample: GroupSample) -> float:
    """Return the ν at which a window on one subgroup makes a kernel this soft, found by bisection."""

    def softness_at(narrowing: float) -> float:
        window = GroupWindow(sample, np.eye(len(sample)), {name: narrowing}, learn=False).double()
        return _softness(window.elements().numpy())

    if softness > softness_at(1.0):
        raise ValueError(
            f"initial_softness must be at most {softness_at(1.0):.3g} in {name}, which leaves the identity alone, got "
            f"{softness:.3g}"
        )
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if softness_at(middle) < softness else (low, middle)
    return high
