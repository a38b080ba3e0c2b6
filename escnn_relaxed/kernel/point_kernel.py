"""The kernel of a point convolution: that of an image, known at every edge in place of taps."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from escnn.nn import FieldType
from torch import Tensor, nn

from ..checks import FIBER_SUBGROUPS
from ..group.edges import edge_directions, monomials
from ..group.exact_constants import ExactConstants
from ..group.fields import channels_by_name
from ..group.points import Array
from ..on_escnn.point_sampler import ShellFunctions, in_shell_functions, shell_functions
from .config import KernelConfig, Names
from .edge_modulation import EdgeModulation, NodeModulation
from .steerable_basis import ChannelPair, SteerableBasis, field_named
from .tied import TiedKernel

# The averages of a kernel by their subgroups, with the coefficient of each: a number, or one for each edge, (E, 1).
Coefficients = Mapping[tuple[str, ...], Any]


@dataclass(frozen=True)
class PointConfig(KernelConfig):
    """All that a kernel of clouds is built from.

    Attributes:
        points: the points at which K is known for its softness, (T, d), in the units of coordinates.
        domain_radius: the length that positions are told in; None where translation is strict.
    """

    points: Array = field(kw_only=True)
    domain_radius: float | None = None

    @property
    def taps(self) -> Array:
        """The points, in place of a grid of taps."""
        return self.points


class PointBasis(SteerableBasis):
    """escnn's basis of steerable kernels: ``sampler`` at any edge, and the filter bank at the points of a config."""

    sampler: Any

    def __init__(self, in_type: FieldType, out_type: FieldType, sampler: Any, points: Array) -> None:
        ExactConstants.__init__(self)
        # escnn's layers share the parts of their samplers, and change each other's precision. Here each layer has its
        # own, which is no module of it, since torch looks for parts twice by `==`, and escnn's compare their values.
        self.__dict__["sampler"] = copy.deepcopy(sampler)
        # As escnn has them, in single precision: a cast to half precision and back does not change them.
        cast_buffers(self.sampler, self.like)
        self._held = [(part, name, value.clone()) for _, part, name, value in _buffers(self.sampler)]
        exact = copy.deepcopy(sampler)
        cast_buffers(exact, torch.empty(0, dtype=torch.float64))
        ins, outs = (channels_by_name(fields.representations) for fields in (in_type, out_type))
        pairs, values, fingerprint = list[ChannelPair](), dict[int, Any](), list[float]()
        for number, names in enumerate(sampler._representations_pairs):
            block = getattr(exact, _block_name(names))
            values[number] = _samples(block, points)
            weights, attributes = slice(*sampler._weights_ranges[names]), list(block.get_basis_info())
            sizes = field_named(names[1], out_type).size, field_named(names[0], in_type).size
            pairs.append(ChannelPair(names, outs[names[1]], ins[names[0]], weights, attributes, sizes))
            cosines = torch.arange(values[number].numel(), dtype=torch.float64).cos()
            fingerprint.append(round(float(values[number].flatten() @ cosines), 6))
        self.set_constant("elements", values)
        self.set_constant("orbits", {})
        self.set_constant("points", points)
        self._arrange((in_type, out_type), pairs, fingerprint, len(points))

    def _cast_all(self) -> None:
        super()._cast_all()
        for part, name, value in self._held:
            part._buffers[name] = self._cast_tensor(value)

    def messages(self, weights: Tensor, features: Tensor, offsets: Tensor) -> Tensor:
        """Return K(d) f of each edge, (E, C_out), as escnn does: first the basis, then the weights."""
        messages: Tensor = self.sampler.compute_messages(weights, features, offsets, conv_first=True)
        return messages

    def at(self, weights: Tensor, offsets: Tensor) -> Tensor:
        """Return K at some offsets, (E, C_out, C_in)."""
        kernels: Tensor = self.sampler(weights, offsets)
        return kernels

    @torch.no_grad()
    def in_shell_functions(self, weights: Tensor) -> tuple[ShellFunctions, Tensor]:
        """Return functions φ of an offset and C of K(d) = Σ_s φ_s(d) C_s, (C_out, C_in, S), in float64."""
        exact = copy.deepcopy(self.sampler)
        cast_buffers(exact, torch.empty(0, dtype=torch.float64))
        blocks = [getattr(exact, _block_name(pair.names)) for pair in self.pairs]
        elements = {number: in_shell_functions(block).flatten(3) for number, block in enumerate(blocks)}
        count = elements[0].shape[-1]
        here = {number: values.to(weights.device) for number, values in elements.items()}
        return shell_functions(blocks[0]), super().forward(weights.double(), here, count)

    def saved_samples(self, state: Mapping[str, Tensor], prefix: str, names: tuple[str, str]) -> Tensor | None:
        """Return the samples, at the points of this basis, of the basis that a state of escnn's layer describes."""
        start = f"{prefix}_basissampler.{_block_name(names)}."
        block, is_other = copy.deepcopy(getattr(self.sampler, _block_name(names))), False
        # escnn saves what parts share once, with the first that has it.
        for path, part, name, value in _buffers(block):
            saved = state.get(start + path + name)
            if saved is not None and not saved.is_meta and saved.shape == value.shape:
                is_other = is_other or not torch.equal(saved.to(value), value)
                part._buffers[name] = saved.cpu()
        cast_buffers(block, torch.empty(0, dtype=torch.float64))
        return _samples(block, self.exact.points.numpy()) if is_other else None


def _parts(module: nn.Module, known: dict[int, tuple[str, nn.Module]], path: str = "") -> None:
    """Gather a module and its parts by identity, with the path of the first place of each."""
    if id(module) not in known:
        known[id(module)] = path, module
        for name, part in module._modules.items():
            if part is not None:
                _parts(part, known, f"{path}{name}.")


def _buffers(module: nn.Module) -> list[tuple[str, nn.Module, str, Tensor]]:
    """Return the buffers of a module and its parts: path and module, name and value."""
    known: dict[int, tuple[str, nn.Module]] = {}
    _parts(module, known)
    return [
        (path, part, name, value)
        for path, part in known.values()
        for name, value in part._buffers.items()
        if value is not None
    ]


def cast_buffers(module: nn.Module, like: Tensor) -> None:
    """Move the buffers of a module of escnn's to the device and the dtype of a tensor, as ``to`` may fail to do."""
    for _, part, name, value in _buffers(module):
        part._buffers[name] = value.to(like if value.is_floating_point() else like.device)


def _block_name(names: tuple[str, str]) -> str:
    """Return the name of escnn's module for a pair of representations."""
    return f"block_sampler_{names}"


@torch.no_grad()
def _samples(block: Any, points: Array) -> Tensor:
    """Return the basis of a pair of representations at some points, (B, |A|, |B|, T)."""
    return block(torch.from_numpy(points)).permute(3, 1, 2, 0).contiguous()


class PointKernel(TiedKernel):
    """K(d; x) = K_strict(d) ⊙ (1 + f_G(c, d)) ⊙ (1 + f_T(c; x)) at edges d of nodes x.

    The methods of a kernel that return K return it at the points of ``config``, which stand for its support.

    Args:
        config: fields and sampled group.
        basis: escnn's basis at edges and at the points.
        points: the points, (T, d).
        domain_radius: the length that positions are told in, where translation is soft.
    """

    basis: PointBasis
    modulation: EdgeModulation | None
    position_modulation: NodeModulation | None

    def __init__(
        self, config: KernelConfig, *, basis: PointBasis, points: Array, domain_radius: float | None = None
    ) -> None:
        values = {name: getattr(config, name) for name in KernelConfig.__dataclass_fields__}
        super().__init__(PointConfig(**values, points=points, domain_radius=domain_radius), basis=basis)
        self.public_name = TiedKernel.__name__

    def _element_modulation(self, config: KernelConfig, names: Sequence[str]) -> EdgeModulation:
        return EdgeModulation(config.out_type.representations, config.domain, names, config.taps)

    def _position_modulation(self, config: KernelConfig, all_directions: bool) -> NodeModulation:
        radius = getattr(config, "domain_radius", None)
        if radius is None:
            raise ValueError(
                "domain_radius must be given where translation is soft: the length, in the units of coordinates, of "
                "the disk or ball about the origin in which the points lie"
            )
        return NodeModulation(config.out_type.representations, config.domain, radius)

    def strict_kernel(self) -> PointKernel:
        """Return K_strict, with the same basis."""
        config = replace(self.config, relax={}, learn_relaxation=False)
        strict = PointKernel(config, basis=self.basis, points=config.taps)
        strict.orthogonal_basis = self.orthogonal_basis
        return strict

    def at(self, weights: Tensor, offsets: Tensor, averaged: Names = ()) -> Tensor:
        """Return K(d) without its factor at nodes, at some offsets d, (E, C_out, C_in)."""
        kernels = self.basis.at(weights, offsets)
        if self._varies_over_the_group(averaged):
            if self.modulation is not None:
                f = self.modulation.at_edges(self.frequency, averaged, self.powers(offsets))
                kernels = kernels * (1 + f).unsqueeze(2)
            if self.input_modulation is not None:
                kernels = kernels * (1 + self.of_pairs(averaged))
        return kernels

    def messages(
        self, strict: Tensor, weights: Tensor, features: Tensor, offsets: Tensor, terms: Coefficients, is_all: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return Σ c P K(d) f of each edge, (E, C_out), without factors at nodes, and a factor of their mean, (1, C).

        Args:
            strict: K_strict(d) f, (E, C_out).
            weights: those of the layer.
            features: f at the source of each edge, (E, C_in).
            offsets: d, (E, d).
            terms: subgroups over which K is averaged, with coefficients c.
            is_all: whether these add up to 1.
        """
        messages = strict if is_all else strict * sum(terms.values())
        if self.position_modulation is not None and self.training and not any(map(self.varies, terms)):
            messages = messages + self._zero_of_parameters(self.position_modulation)
        soft = {averaged: c for averaged, c in terms.items() if self._varies_over_the_group(averaged)}
        if not soft:
            return messages, None
        of_mean = None
        if self.modulation is not None:
            powers = self.powers(offsets)
            f = _weighted([(c, self.modulation.at_edges(self.frequency, names, powers)) for names, c in soft.items()])
            if len(f) == 1 and len(messages) != 1 and is_all:
                of_mean = 1 + f
            else:
                messages = torch.addcmul(messages, strict, f)
        if self.input_modulation is not None:
            # Here f is of pairs of channels, so that the products with the features cannot be shared.
            f = _weighted([(c, self.of_pairs(names)) for names, c in soft.items()])
            messages = messages + torch.einsum("eoi,ei->eo", self.basis.at(weights, offsets) * f, features)
        return messages, of_mean

    def of_pairs(self, averaged: Names) -> Tensor:
        """Return f of pairs of channels, (1, C_out, C_in)."""
        if self.input_modulation is None:
            return self.orthogonal_basis.like.new_zeros(1, 1, 1)
        return self.input_modulation(self.frequency, tuple(averaged)).movedim(-1, 0)

    def powers(self, offsets: Tensor) -> Tensor | None:
        """Return the monomials of the directions of edges that f_G is made of, (E, n); None where it has none."""
        degrees = () if self.modulation is None else self.modulation.degrees
        return monomials(edge_directions(offsets), degrees) if degrees else None

    def in_monomials(self, strict: Tensor, terms: Coefficients) -> tuple[Tensor, Tensor]:
        """Return Σ c P K, without factors at nodes, as B and coefficients of the monomials that multiply its channels.

        Args:
            strict: K_strict in some functions, (C_out, C_in, S).
            terms: subgroups over which K is averaged, with numbers c.
        """
        total = sum(terms.values())
        soft = {averaged: c for averaged, c in terms.items() if self._varies_over_the_group(averaged)}
        # Any direction tells the number of monomials.
        powers = self.powers(strict.new_zeros(1, self.config.taps.shape[1]))
        polynomial = strict.new_zeros(len(strict), 1 if powers is None else powers.shape[1])
        if self.modulation is not None and soft:
            parts = [c * self.modulation.edge_coefficients(self.frequency, names) for names, c in soft.items()]
            polynomial += sum(parts[1:], parts[0])
        polynomial[:, 0] += total
        scale = torch.ones_like(strict[:, :, :1])
        if self.input_modulation is not None and soft:
            # Channels of such fields have no f of their own.
            of_pairs = sum(c * self.of_pairs(names) for names, c in soft.items()).movedim(0, -1).to(strict)
            is_of_pairs = of_pairs.flatten(1).any(1)
            scale[is_of_pairs] = total + of_pairs[is_of_pairs]
            polynomial[is_of_pairs] = 0
            polynomial[is_of_pairs, 0] = 1
        if polynomial.shape[1] == 1:
            return strict * scale * polynomial.unsqueeze(2), polynomial
        return strict * scale, polynomial

    def node_factors(self, coordinates: Tensor) -> Tensor:
        """Return 1 + f_T at nodes (n, d), (n, C_out)."""
        if self.position_modulation is None:
            raise RuntimeError("translation is strict")
        return 1 + self.position_modulation.at_nodes(self.frequency, coordinates)

    def _varies_over_the_group(self, averaged: Names) -> bool:
        """Whether f_G may be other than 0 after an average."""
        has_factor = self.modulation is not None or self.input_modulation is not None
        names = [name for name in FIBER_SUBGROUPS if name not in averaged]
        return has_factor and (self.training or any([self.frequency.may_vary(name) for name in names]))


def _weighted(parts: Sequence[tuple[Any, Tensor]]) -> Tensor:
    """Return Σ c f, with numbers c, or one for each edge, (E, 1), of f (E or 1, C, …)."""
    products = []
    for c, f in parts:
        factor = c.view(-1, *[1] * (f.dim() - 1)) if isinstance(c, Tensor) and c.dim() else c
        products.append(f if isinstance(factor, float) and factor == 1 else factor * f)
    return sum(products[1:], products[0])
