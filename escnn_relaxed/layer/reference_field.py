"""`ReferenceField`: constant fields beside the input, whose learned values break the symmetry of a strict network."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from escnn.group import GroupElement, Representation
from escnn.gspaces import GSpace0D, GSpace2D, GSpace3D
from escnn.nn import EquivariantModule, FieldType, GeometricTensor
from torch import Tensor, nn

from ..checks import FIBER_SUBGROUPS, WHOLE_GROUP, check_number, check_sequence, check_size, check_subgroups, warn
from ..checks import ordered_subgroups as ordered
from ..group.domain import Domain
from ..group.exact_constants import follow
from ..group.points import Array
from ..integral.constant_field import AppendedField, ConstantField
from ..integral.geometry import ConvolutionGeometry, image_size
from ..kernel.config import WeightGroup
from ..torch_modes import full_precision
from . import state_dict as states
from .arguments import check_dtype, check_field_type, check_input, check_shape, check_softness
from .clouds import check_cloud
from .gate import Gate, check_for_all, gated_sum, gated_terms, gates_at
from .reference_parts import ReferenceParts

# Entries of a mean over a group that are smaller are rounding.
_NOTHING = 1e-6
_AVERAGES = (*((name,) for name in FIBER_SUBGROUPS), FIBER_SUBGROUPS)


class ReferenceField(EquivariantModule):
    r"""Constant fields v beside the features, learned, with one value for the whole data set: a *reference vector*.

    .. math::
        f(x) \mapsto f(x) \oplus v

    A strict network that sees v is equivariant if the data *and* v are turned. Since v stays, the symmetry is broken,
    but for the elements of the group that fix v: to these the whole network stays exactly equivariant. v is 0 at the
    start, where the network is strict. Put it before the first layer or between any two, with the next layer's
    ``in_type`` its ``out_type``; :func:`~escnn_relaxed.relax_network` puts it before a trained network.

    Args:
        in_type: field type of the features, on the plane, on space, or without a base space.
        representation: of the field, or of several. Default: the smallest that can point, the irreps of the base space:
            a vector for turns of the plane and of space, the sign for mirrors alone.
        relax: the subgroups that may be broken, of ``"rotation"``, ``"reflection"`` and ``"translation"``. Default:
            those of the fiber group. With translation the field is a smooth function of the pixel's position, too, one
            that turns about the image's centre keep.
        keep: group to which v stays fixed, as of :class:`~escnn_relaxed.RelaxedR2Conv`. v then has no other component.
            By default the representation is one whose vectors can do this.

    Attributes:
        vector: the parameter, v; with ``keep`` its coordinates among the vectors that are kept.
        position_weights: the parameter of functions of the position, None without translation.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a group whose action is not known, and for a name or a representation that is not of the group.

    Shape:
        GeometricTensor (batch, C_in, …) → (batch, C_in + C, …), of a cloud (nodes, C_in) → (nodes, C_in + C).

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import ReferenceField
        >>> gspace = gspaces.rot2dOnR2(8)
        >>> image = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> field = ReferenceField(image)
        >>> layer = nn.R2Conv(field.out_type, gspace.type(gspace.regular_repr), 5)
        >>> layer(field(image(torch.randn(2, 1, 9, 9)))).shape
        torch.Size([2, 8, 5, 5])
        >>> with torch.no_grad():
        ...     field.vector.copy_(torch.tensor([0.3, 0.3]))
        Parameter containing:
        tensor([0.3000, 0.3000], requires_grad=True)
        >>> field.described()
        '0.42 at 45°, keeps nothing'
    """

    _version = states.FORMAT_VERSION
    cannot_be_soft: tuple[str, ...] = ()

    def __init__(
        self,
        in_type: FieldType,
        representation: Representation | Sequence[Representation] | None = None,
        *,
        relax: str | Sequence[str] = "default",
        keep: Any = None,
    ) -> None:
        check_field_type("in_type", in_type, GSpace0D, GSpace2D, GSpace3D)
        super().__init__()
        self.in_type, self.space = in_type, in_type.gspace
        self.parts = ReferenceParts(self.space, representation, relax, keep)
        self.reference_type = FieldType(self.space, self.parts.fields)
        self.out_type = FieldType(self.space, [*in_type.representations, *self.parts.fields])
        self.geometry = ConvolutionGeometry(1, (0,) * self.space.dimensionality)
        self.gates: tuple[Gate, ...] = ()
        self._hardened: tuple[str, ...] = ()
        self._register_state_dict_hook(states.save_description)
        self.vector = nn.Parameter(torch.zeros(self.parts.means[()].shape[1]))
        has_positions = "translation" in self.parts.relaxes
        weights = nn.Parameter(torch.zeros(len(self.parts.maps))) if has_positions else None
        self.register_parameter("position_weights", weights)

    def forward(self, input: GeometricTensor) -> GeometricTensor:
        """Return the features with the fields as further channels.

        Raises:
            TypeError: for anything but a floating-point GeometricTensor of ``in_type``.
            ValueError: for a cloud, where the fields differ with the position.
        """
        is_cloud = getattr(input, "coords", None) is not None
        check = partial(check_cloud, like=self.vector) if is_cloud else partial(check_input, geometry=self.geometry)
        check(input, self.in_type)
        if is_cloud and self.position_weights is not None:
            raise ValueError("input must be an image, since fields that differ with the position are of pixels")
        features, field = input.tensor, self.field(input.tensor)
        field = field.expand(features.shape[0], *[-1] * (features.dim() - 1))
        return GeometricTensor(torch.cat([features, field], dim=1), self.out_type, coords=input.coords)

    def field(self, features: Tensor) -> Tensor:
        """Return the fields at the pixels of features, (1, C, …), or (batch, C, …) under a gate for each input."""
        check_dtype(features, self.vector)
        if features.is_meta != self.parts.like.is_meta:
            follow(self, self.vector)
        size = image_size(features)
        terms = gated_terms(gates_at(self.gates, features, size), self._hardened)
        with full_precision(self.vector):
            field = gated_sum(terms, [self._averaged(averaged, size) for averaged in terms])
        return field.to(features.dtype).expand(-1, -1, *size)

    added = field  # as of a ReferencedLayer

    def _averaged(self, averaged: Collection[str], size: Sequence[int]) -> Tensor:
        """Return the field, averaged over some subgroups, (1, C, …) with 1 for a pixel where none differs."""
        value = self.parts.constant(self.vector, averaged).view(1, -1, *[1] * len(size))
        if self.position_weights is None or "translation" in averaged:
            return value
        functions = self.parts.functions(size)
        of_positions = self.parts.coefficients(self.position_weights) @ functions
        return value + of_positions.unflatten(-1, tuple(size)).unsqueeze(0)

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the output, (batch, C_in, …) → (batch, C_in + C, …)."""
        check_shape("input_shape", tuple(input_shape), self.in_type, self.geometry)
        return input_shape[0], self.out_type.size, *input_shape[2:]

    @torch.no_grad()
    def export(self) -> nn.Module:
        """Return this module on plain tensors, without escnn, in the state that it has now."""
        return AppendedField(self.constant_field())

    @torch.no_grad()
    def constant_field(self) -> ConstantField:
        """Return the fields alone as a module without escnn."""
        check_for_all("export", self.gates)
        terms = gated_terms(self.gates, self._hardened)
        value = gated_sum(terms, [self.parts.constant(self.vector, averaged) for averaged in terms])
        if self.position_weights is None or all("translation" in averaged for averaged in terms):
            return ConstantField(value)
        gates = [coefficient for averaged, coefficient in terms.items() if "translation" not in averaged]
        weights = self.parts.coefficients(self.position_weights) * sum(gates)
        return ConstantField(value, self.parts.action, self.parts.frequency, weights)

    # --- what is broken ---------------------------------------------------------------------------------------------

    @property
    def value(self) -> Tensor:
        """The value v of the fields, (C,), without functions of the position: 0 at the start."""
        return self.parts.constant(self.vector, self._hardened)

    @property
    def direction(self) -> float | tuple[float, ...] | None:
        """Where v points: in degrees in the plane, a unit vector (x, y, z) in space; None where it is no vector or 0.

        Directions are known up to what the layers behind can undo: a sign, for groups without mirrors any turn.
        """
        found = self.parts.pointing.direction(self._exact_value())
        if found is None or not np.linalg.norm(found):
            return None
        if len(found) == 2:
            return math.degrees(math.atan2(found[1], found[0])) % 360
        return tuple((found / np.linalg.norm(found) + 0.0).tolist())

    @property
    def kept(self) -> str:
        """The subgroup that fixes v, in words: to this one the network stays exactly equivariant.

        Of a field that differs by position it is one about the centre of the image.
        """
        words = self.parts.pointing.kept_in_words(self._exact_value())
        return f"{words} about the centre" if self.differs_by_position and words != "nothing" else words

    def keeps(self, element: GroupElement) -> bool:
        """Return whether an element of the fiber group fixes v."""
        return self.parts.pointing.is_fixed(self._exact_value(), element)

    def described(self) -> str:
        """Return the size of v, its direction and what it keeps, in words."""
        direction, size = self.direction, f"{np.linalg.norm(self._exact_value()):.2g}"
        if isinstance(direction, float):
            size += f" at {direction:.0f}°"
        elif direction is not None:
            size += f" along ({', '.join(f'{part:.2g}' for part in direction)})".replace("-", "−")
        words = [size] if len(self.vector) else []
        return ", ".join([*words, f"keeps {self.kept}", *["breaks translation"] * self.differs_by_position])

    def _exact_value(self) -> Array:
        value: Array = self.value.detach().double().cpu().numpy()
        return value

    @property
    def differs_by_position(self) -> bool:
        """Whether the field is not the same at every pixel, so that translation is broken."""
        if self.position_weights is None or "translation" in self._hardened:
            return False
        return bool(self.position_weights.detach().abs().sum() > 0)

    # --- how soft, as of a layer ------------------------------------------------------------------------------------

    @property
    def domain(self) -> Domain:
        """The sampled group."""
        return self.parts.domain

    @property
    def domain_frequency(self) -> dict[str, Tensor]:
        """Nothing: no ω′ relaxes this module."""
        return {}

    @property
    def relaxed_by(self) -> str:
        """What relaxes the network here, in words."""
        return f"a reference, {self.described()}"

    @property
    def relaxable_subgroups(self) -> tuple[str, ...]:
        """The subgroups that v may break."""
        means = self.parts.exact.means
        broken = [name for name in FIBER_SUBGROUPS if (means[(name,)] - means[()]).abs().sum() > _NOTHING]
        return ordered(broken, () if self.position_weights is None else ("translation",))

    @property
    def relaxed_subgroups(self) -> tuple[str, ...]:
        """The subgroups that v may break, without those in which it was hardened."""
        return tuple([name for name in self.relaxable_subgroups if name not in self._hardened])

    def soft_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters, all of which a strict network does without."""
        yield from self.parameters()

    def weight_groups(self) -> list[WeightGroup]:
        """Return the weights by the subgroups that they break."""
        means, by_subgroup = self.parts.exact.means, dict[tuple[str, ...], list[int]]()
        for entry in range(len(self.vector)):
            names = next((name for name in _AVERAGES if not means[name][:, entry].abs().max() > _NOTHING), None)
            # What no mean takes away is a trivial field, which breaks nothing, or has one.
            is_broken = (means[()][:, entry] - means[FIBER_SUBGROUPS][:, entry]).abs().max() > _NOTHING
            if is_broken:
                by_subgroup.setdefault(names or self.parts.domain.sample.subgroups, []).append(entry)
        found = [
            WeightGroup(frozenset(names), [(self.vector, torch.tensor(entries))], needs_all=len(names) > 1)
            for names, entries in by_subgroup.items()
        ]
        if self.position_weights is not None:
            places = torch.arange(len(self.position_weights))
            found.append(WeightGroup(frozenset({"translation"}), [(self.position_weights, places)]))
        return found

    def softness(self, *subgroups: str | Collection[str], size: int | tuple[int, ...] | None = None) -> Tensor:
        """Return the part of the next layer's input that is not equivariant, s in [0, 1).

        It is ‖v − Pv‖² / (‖v‖² + C_in), for features whose channels have a mean square of 1. P is the mean over the
        named subgroups, or all.
        """
        check_for_all("softness", self.gates)
        wanted, dimension = check_subgroups(*subgroups), self.space.dimensionality
        pixels = (8,) * dimension if size is None else check_size("size", size, dimension)
        terms = gated_terms(self.gates, self._hardened)
        with full_precision(self.vector):
            values = [self._averaged(averaged, pixels) for averaged in terms]
            strict = [self._averaged(ordered(averaged, wanted), pixels) for averaged in terms]
            whole, mean = gated_sum(terms, values), gated_sum(terms, strict)
        change, kept = (whole - mean).square().sum(1).mean(), mean.square().sum(1).mean()
        return change / (change + kept + self.in_type.size)

    @torch.no_grad()
    def set_softness(self, softness: float) -> None:
        """Scale v until the softness of all subgroups together is s in (0, 1)."""
        wanted, present = check_softness(softness, "softness"), self.softness().item()
        if self.gates:
            raise RuntimeError("set_softness: a gate is on this reference field: remove it first")
        if not wanted or not 0 < present < 1:
            raise ValueError(f"softness can be set, above 0, where v is not 0, got {softness!r} for {self}")
        factor = math.sqrt(wanted / (1 - wanted) * (1 - present) / present)
        for parameter in self.parameters():
            parameter *= factor

    @property
    def hardened(self) -> tuple[str, ...]:
        """The subgroups in which v was made strict; an empty tuple takes all back."""
        return self._hardened

    @hardened.setter
    def hardened(self, names: Sequence[str]) -> None:
        given = check_sequence("hardened", names, "names of subgroups")
        self._hardened = self.own_subgroups(given) if given else ()

    def own_subgroups(self, *names: str | Collection[str]) -> tuple[str, ...]:
        """Return checked names of subgroups, all where none is given, in order."""
        return ordered([name for name in check_subgroups(*names) if name != WHOLE_GROUP])

    def harden(self, *subgroups: str | Collection[str]) -> None:
        """Replace v by its mean over the named subgroups, or all: of a vector that rotations turn, this is 0."""
        self._hardened = ordered(self._hardened, self.own_subgroups(*subgroups))

    @property
    def is_nothing(self) -> bool:
        """Whether the fields are 0 whatever the parameters are, since the module is hardened."""
        is_everywhere = self.position_weights is None or "translation" in self._hardened
        names = tuple([name for name in FIBER_SUBGROUPS if name in self._hardened])
        return is_everywhere and not self.parts.exact.means[names].abs().sum() > _NOTHING

    def drop_soft_part(self) -> None:
        """Remove gates on what is strict now."""
        self.gates = tuple([gate for gate in self.gates if not {*gate.subgroups} <= {*self._hardened}])

    @torch.no_grad()
    def element_errors(self, elements: Sequence[GroupElement]) -> Tensor:
        """Return by how much each element moves the input: ‖ρ(h)v − v‖ / √(‖v‖² + C_in)."""
        value, pointing = self._exact_value(), self.parts.pointing
        moves = [(element, pointing.matrix(element) @ value - value) for element in elements]
        moved = [0.0 if pointing.is_fixed(value, g) else float(np.linalg.norm(move)) for g, move in moves]
        return torch.tensor(moved) / math.sqrt(float(np.square(value).sum()) + self.in_type.size)

    def check_equivariance(
        self, atol: float = 1e-5, rtol: float = 1e-5, assertion: bool = True, verbose: bool = True
    ) -> list[tuple[GroupElement, float]]:
        """Check the elements that fix v, as of a layer; a warning names the rest."""
        check_number("atol", atol), check_number("rtol", rtol)
        elements = list(self.space.testing_elements)
        value, pointing = self._exact_value(), self.parts.pointing
        fixing = [element for element in elements if pointing.is_fixed(value, element)]
        if len(fixing) < len(elements):
            warn(
                f"check_equivariance: v is not 0, so {len(elements) - len(fixing)} of {len(elements)} elements are "
                f"not checked; see equivariance_error"
            )
        # At one pixel, the centre, where functions of the position are 0.
        shape, generator = (2, self.in_type.size, *[1] * self.space.dimensionality), torch.Generator().manual_seed(0)
        features = torch.randn(*shape, generator=generator).to(self.vector)
        output = self(self.in_type(features)).tensor
        errors = []
        for element in fixing:
            after = self(self.in_type(self.in_type.transform_fibers(features, element))).tensor
            expected = self.out_type.transform_fibers(output, element)
            error = (after - expected).detach().abs()
            if verbose:
                print(f"{element}: error {error.max():.3g} at most")
            if assertion and not bool((error <= atol + rtol * expected.abs()).all()):
                raise AssertionError(f"the error for {element} is {error.max():.3g}")
            errors.append((element, float(error.mean())))
        return errors

    # --- state ------------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return the facts that decide what the parameters stand for."""
        return {
            "operator": "reference field",
            "group": self.space.name,
            "input": states.describe_fields(self.in_type),
            "reference": states.describe_fields(self.reference_type),
            "relax": list(self.parts.relaxes),
            "keep": self.parts.domain.kept.name,
        }

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *arguments: Any
    ) -> None:
        arguments[-1].extend(states.load_hardened(self, state_dict, prefix, local_metadata))
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *arguments)

    def __repr__(self) -> str:
        relax = "" if "translation" not in self.parts.relaxes else f", relax={self.parts.relaxes}"
        keep = f", keep='{self.parts.domain.kept}'" if self.parts.domain.kept.name else ""
        hardened = f", hardened={self._hardened}" if self._hardened else ""
        fields = states.describe_fields(self.reference_type)
        return f"{type(self).__name__}({self.in_type}, {fields}{relax}{keep}{hardened})"
