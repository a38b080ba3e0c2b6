"""The options of the paper's kernel, which a layer takes as its ``kernel``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..checks import check_choice, check_integer, check_not_negative
from ..kernel.kernel import KernelConfig
from .kernel import SteeredKernel
from .nets import FourierKernel, KernelNet

# ω of the relative element. In log coordinates a kernel is smooth on the circle at whole numbers.
_RELATIVE = {"rotation": 0.3, "reflection": 1.0}
_RELATIVE_IN_LOG = {"rotation": 1.0, "reflection": 1.0}
# ω of the position for each pixel of the radius. A strict part learns more slowly with a lower one
# (docs/results/soft-part.md).
_BANDWIDTH_PER_PIXEL = 0.12


@dataclass(frozen=True)
class ContinuousKernel:
    r"""The paper's form of a kernel, as the ``kernel`` of a layer: one continuous κ for the strict and the soft part.

    .. math::
        K(d; x) = \operatorname{mean}_g \rho_{\mathrm{out}}(g)\,
            \kappa(g^{-1}d;\, \omega' \odot a(g, x))\, \rho_{\mathrm{in}}(g)^{-1}

    The number of its weights does not depend on the size of the group or of the kernel. The layer has no weights of
    ``R2Conv``: states of ``R2Conv`` do not load, and escnn's arguments that shape its basis are ignored.

    Args:
        net: the class of the kernel net, called as ``net(filter_dimension, domain_dimension, hidden_size)``:
            :class:`~escnn_relaxed.continuous.FourierKernel`, :class:`~escnn_relaxed.continuous.SirenKernel` or another
            subclass of :class:`~escnn_relaxed.continuous.KernelNet`.
        hidden_size: J, the number of hidden values of the kernel net. Default: 32, the paper's.
        filter_frequency: ω of ``"position"``, ``"rotation"``, ``"reflection"``, or one number for the position.
            Default: 0.12 for each pixel of the radius k/2. With 0.05 kernels turn as well off the pixel grid as those
            of ``R2Conv``, and train less well.
        rotation_coordinates: ``"circle"``: a rotation is (cos θ, sin θ), which is smooth and may learn its ω′.
            ``"log"``: it is its angle over 2π, the paper's form, where ω of the relative rotation is 1 by default. A
            ``FourierKernel`` is then smooth on the circle at whole numbers alone; a warning says where it is not. A
            ``SirenKernel``, whose weights W are learned, jumps at half a turn. The paper's text fixes W at whole
            numbers, and its table of parameters counts W as learned.
        support: ``"smooth"``: a disk whose edge falls over one pixel. ``"disk"``: the paper's hard disk.
        sampling: the elements by which SO(2) or O(2) is sampled. ``"grid"``: N equal steps. ``"random"``: the grid
            turned by an angle that each forward of training draws, as in the paper. ``"always random"``: in evaluation
            too, as in the authors' code. Regular fields of C_N are then samples of SO(2), so all layers of a network
            must turn alike: call :func:`~escnn_relaxed.continuous.draw_samples` before each forward, as
            :class:`~escnn_relaxed.models.RelaxedResNet` does.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a value that has no meaning.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
        >>> from escnn_relaxed.continuous import SirenKernel
        >>> image = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).trivial_repr])
        >>> kernel = ContinuousKernel(net=SirenKernel, hidden_size=16)
        >>> layer = RelaxedR2Conv(image, image, 5, relax={"translation": 0.5}, kernel=kernel)
    """

    net: type[KernelNet] = FourierKernel
    hidden_size: int = 32
    filter_frequency: Mapping[str, float] | float | None = None
    rotation_coordinates: str = "circle"
    support: str = "smooth"
    sampling: str = "grid"

    def __post_init__(self) -> None:
        if not (isinstance(self.net, type) and issubclass(self.net, KernelNet)):
            raise TypeError(f"net must be a subclass of escnn_relaxed.continuous.KernelNet, got {self.net!r}")
        check_integer("hidden_size", self.hidden_size, 1)
        check_choice("rotation_coordinates", self.rotation_coordinates, ("circle", "log"))
        check_choice("support", self.support, ("smooth", "disk"))
        check_choice("sampling", self.sampling, ("grid", "random", "always random"))
        _given_frequencies(self.filter_frequency)

    def __call__(self, config: KernelConfig) -> SteeredKernel:
        """Return a kernel with these options, which is not started. A layer calls this with its own configuration."""
        frequencies = self.frequencies(config.kernel_size)
        return SteeredKernel(config, self.net, self.hidden_size, frequencies, self.support, self.sampling)

    def frequencies(self, kernel_size: int) -> dict[str, float]:
        """Return ω of each filter coordinate, for kernels of k taps along each axis."""
        position = _BANDWIDTH_PER_PIXEL * kernel_size / 2
        relative = _RELATIVE_IN_LOG if self.rotation_coordinates == "log" else _RELATIVE
        return {"position": position, **relative, **_given_frequencies(self.filter_frequency)}


def _given_frequencies(value: Any) -> dict[str, float]:
    """Return the frequencies that are given, by the name of their coordinate."""
    if value is None:
        return {}
    given = value if isinstance(value, Mapping) else {"position": value}
    known = ["position", *_RELATIVE]
    for name in given:
        if name not in known:
            raise ValueError(f"filter_frequency: unknown coordinate {name!r}; known are {known}")
    words = "filter_frequency: the frequency of"
    return {name: check_not_negative(f"{words} {name!r}", number) for name, number in given.items()}
