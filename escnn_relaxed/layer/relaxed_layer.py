"""A layer that may be soft: its softness by subgroup, and methods that change it."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from escnn.group import GroupElement
from torch import Tensor, nn

from ..checks import (
    ALL_SUBGROUPS,
    SUBGROUPS,
    WHOLE_GROUP,
    check_sequence,
    check_size,
    check_subgroups,
    ordered_subgroups,
)
from ..group.domain import Domain
from ..kernel.config import Names, Size, WeightGroup
from ..kernel.domain_frequency import Frequency
from ..kernel.kernel import Kernel, at_least_single, scale_to, softness_from_energies
from ..kernel.steerable_basis import SteerableBasis
from ..kernel.tied import strict_kernel
from ..torch_modes import full_precision
from .arguments import check_softness
from .equivariance_check import check_equivariance
from .gate import Gate
from .kernel_layer import KernelLayer

# Errors of a group element below this many units in the last place of a kernel are rounding.
_ROUNDING = 16


class RelaxedLayer(KernelLayer):
    """A layer whose kernel may be soft. Code outside this folder uses the layer, never its kernel."""

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
        """Set ω′ of relaxed subgroups in place; 0 for all makes the layer strict.

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

    @property
    def relaxed_subgroups(self) -> tuple[str, ...]:
        """The subgroups in which the layer may be soft; hardened ones are excluded.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.flipRot2dOnR2(4).type(gspaces.flipRot2dOnR2(4).regular_repr)
            >>> layer = RelaxedR2Conv(fields, fields, 3)
            >>> layer.harden("rotation")
            >>> layer.relaxed_subgroups
            ('reflection',)
        """
        return tuple([name for name in self.kernel.relaxed_subgroups if name not in self._hardened])

    @property
    def relaxable_subgroups(self) -> tuple[str, ...]:
        """The subgroups in which the layer may be soft or was soft before it was hardened."""
        return self.kernel.relaxed_subgroups

    @property
    def cannot_be_soft(self) -> tuple[str, ...]:
        """Relaxed subgroups in which the layer has no soft weights, so that it stays strict.

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

    def softness(self, *subgroups: str | Collection[str], size: int | tuple[int, ...] | None = None) -> Tensor:
        """Return the softness s = ‖K − PK‖² / (‖K − PK‖² + ‖PK‖²) in [0, 1], the part of K that is not equivariant.

        P projects on the kernels that are equivariant to the named subgroups, or to all where none is named. The norm
        is over taps, positions and entries, in the basis where ρ is orthogonal. √(2s) is the relative equivariance
        error on white noise (root mean square over the subgroup, with the identity). The denominator is ‖K‖² for the
        default kernel of a group with a half turn; without one it differs by a few per cent.

        Args:
            *subgroups: any of ``"rotation"``, ``"reflection"``, ``"translation"``, or ``"group"``, the whole fiber
                group.
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
        wanted = check_subgroups(*subgroups)
        pixels = None if size is None else check_size("size", size, self.kernel.config.domain.dimension)
        with full_precision(self.like):
            kernel, weights = at_least_single(self.kernel, self.weights)
            averaged = ordered_subgroups(self._hardened, wanted)
            if self.gates:
                return self._gated_softness(kernel, weights, averaged, pixels)
            return softness_from_energies(*kernel.energies(weights, self._hardened, averaged, pixels))

    def _gated_softness(self, kernel: Kernel, weights: Tensor | None, averaged: Names, size: Size) -> Tensor:
        """Return the softness of the gated kernel K_g, for each input if a gate has a value for each."""
        parts: dict[tuple[str, ...], tuple[Tensor, Tensor]] = {}

        def energies(mean: tuple[str, ...], gates: Sequence[Gate]) -> tuple[Tensor, Tensor]:
            """Return ‖L − PL‖² and ‖L‖² in units of ‖K‖², where L is the mean of the gated K over subgroups."""
            if not gates:
                if mean not in parts:
                    whole = 1 - softness_from_energies(*kernel.energies(weights, self._hardened, mean, size))
                    both = ordered_subgroups(mean, averaged)
                    soft = softness_from_energies(*kernel.energies(weights, mean, both, size))
                    parts[mean] = soft * whole, whole
                return parts[mean]
            # L is a strict part and, orthogonal to it, g times a soft part.
            *others, gate = gates
            square: float | Tensor = gate.value**2
            if isinstance(square, Tensor) and square.dim() > 1:
                square = square.flatten(1).mean(1)
            of_all, strict = energies(mean, others), energies(ordered_subgroups(mean, gate.subgroups), others)
            (soft, total), (soft_after, total_after) = of_all, strict
            return square * (soft - soft_after) + soft_after, square * (total - total_after) + total_after

        soft, total = energies(self._hardened, self.gates)
        return soft / torch.where(total > 0, total, 1)

    @torch.no_grad()
    def set_softness(self, softness: float) -> None:
        """Scale the soft part until the softness of all subgroups together is s in (0, 1).

        Raises:
            RuntimeError: under a gate on softness.
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
        self._refuse_gates("set_softness")
        wanted, present = check_softness(softness, "softness"), self.softness().item()
        if not wanted:
            raise ValueError(
                "softness must be above 0, as scaling by 0 cannot be undone; harden() makes a layer strict"
            )
        if not 0 < present < 1:
            where = f"both parts of the kernel are above 0, got {softness!r} for {self} of softness {present:.3g}"
            raise ValueError(f"softness can be set where {where}")
        scale_to(self.kernel, self.weights, wanted, self._hardened)

    @property
    def hardened(self) -> tuple[str, ...]:
        """The subgroups in which the layer was made strict; can be assigned, an empty tuple undoes all.

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
        self._hardened = self.own_subgroups(given) if given else ()

    def own_subgroups(self, *names: str | Collection[str]) -> tuple[str, ...]:
        """Return checked names of subgroups, all where none is given, in order.

        The whole group is among them only where it has no rotations and reflections.
        """
        given = {*check_subgroups(*names)}
        return ordered_subgroups(given if self.domain.is_abstract else given - {WHOLE_GROUP})

    @property
    def is_hardened(self) -> bool:
        """True if the layer was made strict in all subgroups."""
        return self._hardened == (ALL_SUBGROUPS if self.domain.is_abstract else SUBGROUPS)

    def harden(self, *subgroups: str | Collection[str]) -> None:
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
        self._hardened = ordered_subgroups(self._hardened, self.own_subgroups(*subgroups))

    def check_equivariance(
        self, atol: float = 0.1, rtol: float = 0.1, assertion: bool = True, verbose: bool = True, device: str = "cpu"
    ) -> list[tuple[GroupElement, float]]:
        """Check that the layer is equivariant where it is strict; arguments and result are those of ``R2Conv``.

        Images are turned and flipped, and volumes by the elements that map voxels to voxels. Errors beyond the
        tolerance are raised. Of a soft layer the elements in which it is strict are checked, and a warning names the
        rest; see :func:`~escnn_relaxed.equivariance_error`.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> layer = RelaxedR2Conv(fields, fields, 3, relax=None)
            >>> [round(error, 4) for _, error in layer.check_equivariance(verbose=False)]
            [0.0, 0.0, 0.0, 0.0]
        """
        return check_equivariance(self, atol, rtol, assertion, verbose, device)

    @property
    def relaxed_by(self) -> str:
        """The name of the quantity that relaxes the layer; empty for ω′."""
        return self.kernel.relaxed_by

    @property
    def domain(self) -> Domain:
        """The sampled group and the positions over which the kernel may vary."""
        return self.kernel.config.domain

    def weight_groups(self) -> list[WeightGroup]:
        """Return the soft weights by subgroup, including those that hardening has disabled."""
        return self.kernel.weight_groups()

    @torch.no_grad()
    def element_errors(self, elements: Sequence[GroupElement]) -> Tensor:
        """Return ‖hK − K‖ / ‖K‖ for each group element h: NaN where h moves taps off their grid, 0 for rounding."""
        self._refuse_gates("element_errors")
        with full_precision(self.like):
            kernel, weights = at_least_single(self.kernel, self.weights)
            moved, whole = kernel.element_energies(weights, self._hardened, elements)
        ratio = torch.where(whole > 0, moved / torch.where(whole > 0, whole, 1), 0 * moved)
        rounding = _ROUNDING * torch.finfo(ratio.dtype).eps
        return torch.where(ratio <= rounding**2, 0, ratio).sqrt()

    @torch.no_grad()
    def take_strict_part(self, strict: Any, parameters: Mapping[int, nn.Parameter], softness: float) -> None:
        """Copy the basis, weights and bias of a trained strict layer, escnn's or this package's.

        Args:
            strict: the layer.
            parameters: what replaces its weights and bias, by the ids of these.
            softness: s of the soft part, which is drawn anew.
        """
        own = self.kernel.basis
        if own is None:
            raise ValueError(f"kernel must have a strict part in escnn's basis, for the trained weights, got {self}")
        basis = copy.deepcopy(strict.kernel.basis) if isinstance(strict, KernelLayer) else self._basis_of(strict)
        for part in [*self.kernel.modules()]:
            part._modules.update((name, basis) for name, child in part._modules.items() if child is own)
        self.weights = parameters[id(strict.weights)]
        if self.bias is not None:
            self.bias = parameters[id(strict.bias)]
        self.to(strict.weights).kernel.start(self.weights, softness)

    def _basis_of(self, strict: Any) -> SteerableBasis:
        """Return the basis that a layer of escnn holds."""
        config = self.kernel.config
        shape = config.in_type, config.out_type, config.kernel_size, config.dilation
        return SteerableBasis(*shape, strict.basisexpansion, as_held=True)

    def drop_soft_part(self) -> None:
        """Replace the kernel of a layer that is hardened in all subgroups by its strict part, where it has one.

        Gates on what is strict now are gone, too.
        """
        self.gates = tuple([gate for gate in self.gates if not {*gate.subgroups} <= {*self._hardened}])
        strict = strict_kernel(self.kernel)
        if self.is_hardened and strict is not self.kernel:
            self.kernel, self._hardened = strict.train(self.training), ()

    def _refuse_gates(self, name: str) -> None:
        if self.gates:
            raise RuntimeError(f"{name}: a gate is on the softness of this layer: remove it first")
