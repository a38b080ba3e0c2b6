"""How soft a layer is: its domain frequency, its softness, and the ways to set them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..checks import SUBGROUPS, check_size, check_subgroups
from ..kernel.domain_frequency import Frequency
from ..kernel.kernel import Kernel, joint
from ..kernel.softness import at_least_single
from ..torch_modes import full_precision
from .arguments import check_softness


class SoftLayer(nn.Module):
    """A layer with a kernel that may be soft."""

    kernel: Kernel
    weights: nn.Parameter
    hardened: tuple[str, ...]

    @property
    def like(self) -> Tensor:
        """A tensor with the device and dtype of the layer."""
        return next(self.parameters()) if self.weights is None else self.weights

    @property
    def domain_frequency(self) -> dict[str, Tensor]:
        """ω′ of each subgroup that may be soft; 2 values (x, y) for translation, else 1.

        ω′ has no unit, since coordinates of the domain are in [−1, 1]. The tensors are parameters where
        ``learn_relaxation`` is set. The dict is empty where another quantity relaxes the layer.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).trivial_repr])
            >>> RelaxedR2Conv(
            ...     image, image, 3, relax={"rotation": 0.25, "translation": 0.5}
            ... ).domain_frequency
            {'translation': tensor([0.5000, 0.5000]), 'rotation': tensor([0.2500])}
        """
        return self.kernel.frequency.values()

    def set_domain_frequency(self, **frequencies: Frequency) -> None:
        """Set ω′ of subgroups in place; 0 for all makes the layer strict.

        Nothing is set for a subgroup in which no weights of the layer could make it soft.

        Raises:
            TypeError: for a value that is not a number or, for translation, a pair of them.
            ValueError: for a subgroup that was not named in ``relax``, or a value that is not finite.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25})
            >>> layer.set_domain_frequency(rotation=0.0)
            >>> layer.domain_frequency
            {'rotation': tensor([0.])}
        """
        known = {name: value for name, value in frequencies.items() if name not in self.cannot_be_soft}
        self.kernel.frequency.set(**known)

    @property
    def relaxed_subgroups(self) -> tuple[str, ...]:
        """Subgroups in which the layer may be soft."""
        return self.kernel.relaxed_subgroups

    @property
    def relaxed_by(self) -> str:
        """The quantity that relaxes the layer in place of ω′, in words; empty where it is ω′."""
        return self.kernel.relaxed_by

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

        :func:`~escnn_relaxed.parameter_groups` gives an optimiser those of a network.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> [tuple(of.shape) for of in RelaxedR2Conv(image, image, 5).soft_parameters()]
            [(2,)]
        """
        yield from self.kernel.soft_parameters()

    def weight_groups(self) -> dict[str, list[tuple[nn.Parameter, Tensor]]]:
        """Return the soft weights that belong to each subgroup: parameters, with the numbers of their entries.

        The layer is strict in a subgroup where they are 0. Functions of rotation and reflection together have an entry
        of their own, ``"rotation × reflection"``.
        """
        return self.kernel.weight_groups()

    def softness(self, *subgroups: str, size: int | tuple[int, ...] | None = None) -> Tensor:
        """Return the softness s = ‖K − PK‖² / (‖K − PK‖² + ‖PK‖²) in [0, 1], the part of K that is not equivariant.

        It is computed from the weights alone. P projects on the kernels that are equivariant to the named subgroups,
        or to all where none is named. The norm is taken over taps, positions and entries, in the basis of permutations
        and irreps where ρ is orthogonal. √(2s) is the relative equivariance error on white noise (root mean square
        over the subgroup, the identity included). The denominator is ‖K‖² where the group maps the grid of taps to
        itself; for rotations by 120° or 72° it differs from it by a few per cent.

        Args:
            *subgroups: any of ``"rotation"``, ``"reflection"``, ``"translation"``.
            size: pixels along each axis of the output for which softness in translation is told. Default: 8, which is
                near that of all larger ones.

        Returns:
            A differentiable tensor without dimensions, NaN where a weight is not finite. Of half precision it is in
            float32: ``layer.softness().item()`` is the number.

        Raises:
            ValueError: for another name or size.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = nn.FieldType(gspaces.flipRot2dOnR2(4), [gspaces.flipRot2dOnR2(4).regular_repr])
            >>> layer = RelaxedR2Conv(
            ...     fields, fields, 3, relax={"reflection": 0.25}, initial_softness=0.05
            ... )
            >>> round(layer.softness().item(), 4), round(layer.softness("rotation").item(), 4)
            (0.05, 0.0)
        """
        wanted = check_subgroups(subgroups)
        pixels = None if size is None else check_size("size", size, self.kernel.place.domain.dimension)
        with full_precision(self.like):
            kernel, weights = at_least_single(self.kernel, self.weights)
            return kernel.softness(weights, self.hardened, wanted, pixels)

    @torch.no_grad()
    def set_softness(self, softness: float) -> None:
        """Scale the soft part until the softness is s, for instance after strict weights were set from outside.

        Args:
            softness: s in (0, 1), of all subgroups together; ``initial_softness`` for a new start.

        Raises:
            ValueError: for another value, and where the strict part or the soft part is missing.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
            >>> layer = RelaxedR2Conv(fields, fields, 3, initialize=False)
            >>> nn.init.generalized_he_init(layer.weights.data, layer.basisexpansion)
            >>> layer.set_softness(0.01)
            >>> round(layer.softness().item(), 6)
            0.01
        """
        wanted, present = check_softness(softness, "softness"), self.softness().item()
        if not wanted:
            raise ValueError("softness must be above 0, or the soft part cannot learn; harden() makes a layer strict")
        if not 0 < present < 1:
            raise ValueError(
                f"softness can be set where both parts of the kernel are above 0, got {softness!r} for {self} of "
                f"softness {present:.3g}"
            )
        self.kernel.scale_to(self.weights, wanted, self.hardened)

    def harden(self, *subgroups: str) -> None:
        """Replace K by PK in place: the nearest kernel that is equivariant to the named subgroups, or to all.

        The layer is then exactly equivariant to them and stays so in training. A layer that loads its state dict is
        too. Its parameters remain; :func:`~escnn_relaxed.harden_network` also drops those that are no longer needed.

        Args:
            *subgroups: any of ``"rotation"``, ``"reflection"``, ``"translation"``. The reflection is the one about the
                axis that the gspace names; others follow where rotations are strict.

        Raises:
            ValueError: for a name that no subgroup has.

        Example:
            >>> from escnn import gspaces, nn
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = nn.FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25})
            >>> layer.harden()
            >>> layer.softness().item()
            0.0
        """
        self.hardened = joint(self.hardened, check_subgroups(subgroups))

    def drop_soft_part(self) -> None:
        """Remove the soft part of a hardened layer, where its kernel has a strict part beside it."""
        strict = self.kernel.strict_kernel()
        if self.hardened == SUBGROUPS and strict is not self.kernel:
            self.kernel, self.hardened = strict.train(self.training), ()
