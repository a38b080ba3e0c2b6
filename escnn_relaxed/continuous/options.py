"""The options of a layer's continuous kernel κ in one object: its net, its coordinates and its support."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..checks import check_choice, check_integer, check_number
from .nets import FourierKernel, KernelNet

__all__ = ["ContinuousKernel"]

FILTER_FREQUENCY = {"rotation": 0.3, "reflection": 1.0}


@dataclass(frozen=True)
class ContinuousKernel:
    """The options of the continuous kernel κ of a :class:`~escnn_relaxed.RelaxedR2Conv`.

    A layer with ``strict_kernel="steerable"`` that is given one has it as its soft part, beside the strict part.

    Args:
        net: the class of the kernel net, called as ``net(filter_dimension, domain_dimension, hidden_size)``:
            :class:`~escnn_relaxed.kernel.FourierKernel`, :class:`~escnn_relaxed.kernel.SirenKernel` or another
            subclass of :class:`~escnn_relaxed.kernel.KernelNet`.
        hidden_size: J, the number of hidden values of the kernel net. Default: 8, or 32 with
            ``strict_kernel="continuous"``, the paper's.
        filter_frequency: ω of ``"position"``, ``"rotation"``, ``"reflection"``, or one number for the position.
            Default: 0.05 per pixel of the radius, with which kernels turn as well off the pixel grid as those of
            ``R2Conv``; 0.12 for ``strict_kernel="continuous"``, which trains better and turns worse.
        rotation_coordinates: ``"circle"``: a rotation is (cos θ, sin θ). ``"log"``: it is its angle over 2π, the
            paper's form, which is smooth only for ``FourierKernel`` at integer frequencies.
        frame: ``"group"``: the position that κ sees is g⁻¹x, so that soft translation leaves rotations about
            the image centre exact. ``"image"``: it is x.
        support: ``"smooth"``: a disk whose edge falls over one pixel. ``"disk"``: the paper's hard disk.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a value that has no meaning.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> from escnn_relaxed.kernel import SirenKernel
        >>> image = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).trivial_repr])
        >>> kernel = ContinuousKernel(net=SirenKernel, hidden_size=16)
        >>> layer = RelaxedR2Conv(image, image, 5, relax={"translation": 0.5}, kernel=kernel)
    """

    net: type[KernelNet] = FourierKernel
    hidden_size: int | None = None
    filter_frequency: Mapping[str, float] | float | None = None
    rotation_coordinates: str = "circle"
    frame: str = "group"
    support: str = "smooth"

    def __post_init__(self) -> None:
        if not (isinstance(self.net, type) and issubclass(self.net, KernelNet)):
            raise TypeError(f"net must be a subclass of escnn_relaxed.kernel.KernelNet, got {self.net!r}")
        if self.hidden_size is not None:
            check_integer("hidden_size", self.hidden_size, 1)
        check_choice("rotation_coordinates", self.rotation_coordinates, ("circle", "log"))
        check_choice("frame", self.frame, ("group", "image"))
        check_choice("support", self.support, ("smooth", "disk"))
        _given_frequencies(self.filter_frequency)

    def completed(self, kernel_size: int, hidden_size: int, bandwidth_per_pixel: float) -> ContinuousKernel:
        """Return a copy of this object with defaults for the options that are not given.

        Args:
            kernel_size: k.
            hidden_size: J.
            bandwidth_per_pixel: ω of the position per pixel of the radius, k/2.
        """
        position = bandwidth_per_pixel * kernel_size / 2
        return replace(
            self,
            hidden_size=self.hidden_size or hidden_size,
            filter_frequency={"position": position, **FILTER_FREQUENCY, **self.frequencies},
        )

    @property
    def frequencies(self) -> dict[str, float]:
        """ω of each coordinate that has one given."""
        return _given_frequencies(self.filter_frequency)


def _given_frequencies(value: Any) -> dict[str, float]:
    if value is None:
        return {}
    given = value if isinstance(value, Mapping) else {"position": value}
    known = ["position", *FILTER_FREQUENCY]
    frequencies = {}
    for name, number in given.items():
        if name not in known:
            raise ValueError(f"filter_frequency: unknown coordinate {name!r}; known are {known}")
        frequency = check_number(f"filter_frequency: the frequency of {name!r}", number)
        if not (math.isfinite(frequency) and frequency >= 0):
            raise ValueError(f"filter_frequency: the frequency of {name!r} must be finite and >= 0, got {number!r}")
        frequencies[name] = frequency
    return frequencies
