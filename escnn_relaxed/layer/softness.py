"""How soft a layer is, in what, and what makes it strict: the part of all layers that asks the kernel for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from escnn.nn import EquivariantModule
from torch import Tensor, nn

from ..checks import check_sequence, check_size, check_subgroups
from ..kernel.domain_frequency import Frequency
from ..kernel.kernel import at_least_single, joint, soft_share
from ..torch_modes import full_precision
from .arguments import check_softness


class LayerWithSoftness(EquivariantModule):
    """The base of a layer with a kernel that may be soft."""

    kernel: Any
    weights: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        self._hardened: tuple[str, ...] = ()

    @property
    def like(self) -> Tensor:
        """A tensor with the device and dtype of the layer."""
        return next(self.parameters()) if self.weights is None else self.weights

    @property
    def is_stationary(self) -> bool:
        """Whether K is the same at every position, so that the layer is one convolution.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> layer = RelaxedR2Conv(image, image, 3, relax={"translation": 0.5})
            >>> layer.is_stationary
            False
        """
        return not self.kernel.varies(self._hardened)

    def softness(self, *subgroups: str, size: int | tuple[int, ...] | None = None) -> Tensor:
        """Return the softness s = ‖K − PK‖² / (‖K − PK‖² + ‖PK‖²) in [0, 1], the part of K that is not equivariant.

        P projects on the kernels that are equivariant to the named subgroups, or to all where none is named. The norm
        is over taps, positions and entries, in the basis where ρ is orthogonal. √(2s) is the relative equivariance
        error on white noise (root mean square over the subgroup, with the identity). The denominator is ‖K‖² for the
        default kernel of a group with a half turn; without one it differs by a few per cent.

        Args:
            *subgroups: any of ``"rotation"``, ``"reflection"``, ``"translation"``.
            size: pixels along each axis of the output, for softness in translation. Default: 8.

        Returns:
            A tensor with a gradient. It is NaN if a weight is not finite. Layers of half precision return float32.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.flipRot2dOnR2(4).type(gspaces.flipRot2dOnR2(4).regular_repr)
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax="reflection", initial_softness=0.05)
            >>> round(layer.softness().item(), 4), round(layer.softness("rotation").item(), 4)
            (0.05, 0.0)
        """
        wanted = check_subgroups(subgroups)
        pixels = None if size is None else check_size("size", size, self.kernel.config.domain.dimension)
        with full_precision(self.like):
            kernel, weights = at_least_single(self.kernel, self.weights)
            return soft_share(*kernel.energies(weights, self._hardened, joint(self._hardened, wanted), pixels))

    @torch.no_grad()
    def set_softness(self, softness: float) -> None:
        """Scale the soft part until the softness of all subgroups together is s in (0, 1).

        Raises:
            ValueError: for another value, and where the strict part or the soft part is missing.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> layer = RelaxedR2Conv(fields, fields, 3)
            >>> layer.set_softness(0.01)
            >>> round(layer.softness().item(), 6)
            0.01
        """
        wanted, present = check_softness(softness, "softness"), self.softness().item()
        if not wanted:
            raise ValueError(
                "softness must be above 0, as scaling by 0 cannot be undone; harden() makes a layer strict"
            )
        if not 0 < present < 1:
            where = f"both parts of the kernel are above 0, got {softness!r} for {self} of softness {present:.3g}"
            raise ValueError(f"softness can be set where {where}")
        self.kernel.scale_to(self.weights, wanted, self._hardened)

    @property
    def hardened(self) -> tuple[str, ...]:
        """The subgroups in which the layer was made strict. Any may be named anew; an empty tuple takes all back.

        Raises:
            TypeError: for anything but a sequence of names.
            ValueError: for a name that is not of a subgroup.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> layer = RelaxedR2Conv(fields, fields, 3)
            >>> layer.harden("rotation")
            >>> layer.hardened, layer.relaxed_subgroups
            (('rotation',), ())
            >>> layer.hardened = ()
            >>> layer.relaxed_subgroups
            ('rotation',)
        """
        return self._hardened

    @hardened.setter
    def hardened(self, names: Sequence[str]) -> None:
        given = check_sequence("hardened", names, "names of subgroups")
        self._hardened = joint(check_subgroups(given)) if given else ()

    def harden(self, *subgroups: str) -> None:
        """Replace K by PK in place: the nearest kernel that is equivariant to the named subgroups, or to all.

        The layer stays exactly equivariant to them in training, and so does one that loads its state dict. Its
        parameters remain; :func:`~escnn_relaxed.harden_network` also drops those that are no longer needed.

        The reflection is the one about the axis that the gspace names; others follow where rotations are strict.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25})
            >>> layer.harden()
            >>> layer.softness().item()
            0.0
        """
        self._hardened = joint(self._hardened, check_subgroups(subgroups))

    @property
    def relaxed_subgroups(self) -> tuple[str, ...]:
        """The subgroups in which the layer may be soft, without those in which it was hardened."""
        return tuple([name for name in self.kernel.relaxed_subgroups if name not in self._hardened])

    @property
    def cannot_be_soft(self) -> tuple[str, ...]:
        """Subgroups that were to be soft where no weights would make the layer so.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> [RelaxedR2Conv(image, image, size).cannot_be_soft for size in (1, 3)]
            [('rotation',), ()]
        """
        return self.kernel.cannot_be_soft

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that the layer has beyond those of a strict one: learned ω′ and soft weights.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> [tuple(value.shape) for value in RelaxedR2Conv(image, image, 5).soft_parameters()]
            [(2,)]
        """
        yield from self.kernel.soft_parameters()

    @property
    def domain_frequency(self) -> dict[str, Tensor]:
        """The domain frequency ω′ of each subgroup that may be soft, one value, or of translation one for each axis.

        ω′ has no unit, since coordinates of the domain are in [−1, 1]. The tensors are parameters where
        ``learn_relaxation`` is set. The dict is empty where another quantity relaxes the layer.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> RelaxedR2Conv(image, image, 3, relax={"translation": 0.5}).domain_frequency
            {'translation': tensor([0.5000, 0.5000])}
        """
        return self.kernel.frequency.values()

    def set_domain_frequency(self, **frequencies: Frequency) -> None:
        """Set ω′ of subgroups in place, where weights could make the layer soft; 0 for all makes it strict.

        Raises:
            TypeError: for a value that is not a number or, for translation, a pair of them.
            ValueError: for a subgroup that was not named in ``relax``, or a value that is not finite.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25})
            >>> layer.set_domain_frequency(rotation=0.0)
            >>> layer.domain_frequency
            {'rotation': tensor([0.])}
        """
        known = {name: value for name, value in frequencies.items() if name not in self.cannot_be_soft}
        self.kernel.frequency.set(**known)
