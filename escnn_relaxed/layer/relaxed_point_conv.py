"""`RelaxedR2PointConv` and `RelaxedR3PointConv`, which replace escnn's convolutions of clouds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, cast

import torch
from escnn.group import GroupElement
from escnn.gspaces import GSpace, GSpace2D, GSpace3D
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn
from typing_extensions import Unpack

from ..checks import check_integer, check_no_hooks, check_positive
from ..group.edges import shells
from ..integral.geometry import ConvolutionGeometry
from ..kernel.kernel import Kernel
from ..kernel.point_kernel import PointBasis, PointKernel
from ..on_escnn.point_sampler import OF_BASIS, POINT_CONVOLUTIONS, strict_point_convolution
from ..on_escnn.sampled_basis import built_on_the_cpu
from .arguments import check_field_types
from .clouds import check_cloud, check_vectors, checked_edges
from .equivariance_check import check_equivariance
from .gate import check_for_all, gated_sum, gated_terms, gates_at_nodes, is_of_nodes
from .plain_cloud import plain_convolution
from .relaxed_layer import RelaxedLayer
from .softness_options import SoftnessOptions, build_kernel, shows_softness_options
from .state_dict import describe_fields


class PointConvolution(RelaxedLayer):
    """Base of the convolutions of clouds of the plane and of space."""

    _space: ClassVar[type[GSpace]]
    _rings: list[float]
    is_of_clouds = True

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        # As in escnn's layers, no forward calls expand_parameters.
        cls.expands_itself = False

    @built_on_the_cpu
    @shows_softness_options
    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        groups: int = 1,
        bias: bool = True,
        sigma: list[float] | float | None = None,
        width: float | None = None,
        n_rings: int | None = None,
        frequencies_cutoff: float | Callable[[float], int] | None = None,
        rings: list[float] | None = None,
        basis_filter: Callable[[dict[str, Any]], bool] | None = None,
        recompute: bool = False,
        initialize: bool = True,
        domain_radius: float | None = None,
        **softness: Unpack[SoftnessOptions],
    ) -> None:
        check_field_types(in_type, out_type, self._space)
        if check_integer("groups", groups, 1) != 1:
            raise ValueError(f"groups must be 1, since escnn's convolutions of clouds have no groups, got {groups!r}")
        if softness.get("kernel") is not None:
            raise ValueError(f"kernel must be None for a {type(self).__name__}, got {softness['kernel']!r}")
        radius = None if domain_radius is None else check_positive("domain_radius", domain_radius)
        basis: dict[str, Any] = {"sigma": sigma, "width": width, "n_rings": n_rings, "rings": rings}
        basis |= {"frequencies_cutoff": frequencies_cutoff, "basis_filter": basis_filter, "recompute": recompute}
        # There are neither taps nor pixels.
        geometry = ConvolutionGeometry(kernel_size=1, padding=())
        basis["domain_radius"] = radius
        super().__init__(in_type, out_type, geometry, bias, basis, initialize, softness)

    def _build_kernel(self, softness: SoftnessOptions, basis_arguments: Mapping[str, Any]) -> Kernel:
        self.groups, self.d = 1, self.in_type.gspace.dimensionality
        arguments = {**basis_arguments}
        radius = arguments.pop("domain_radius")
        strict = strict_point_convolution(type(self).__name__, self.in_type, self.out_type, arguments)
        for name in OF_BASIS:
            setattr(self, name, getattr(strict, name))
        points = shells(self._rings, self.d)
        basis = PointBasis(self.in_type, self.out_type, strict.basissampler, points)
        build = partial(PointKernel, basis=basis, points=points, domain_radius=radius)
        return build_kernel(softness, *self.kernel_types, 1, 1, {}, build)

    def _basis_of(self, strict: Any) -> PointBasis:
        points = self._of_points.config.taps
        return PointBasis(self.in_type, self.out_type, strict.basissampler, points)

    @property
    def _of_points(self) -> PointKernel:
        return cast(PointKernel, self.kernel)

    def forward(  # type: ignore[override]
        self, x: GeometricTensor, edge_index: Tensor, edge_delta: Tensor | None = None
    ) -> GeometricTensor:
        """Return the mean of the messages to each node, with the bias: 0 and the bias for a node without an edge.

        Args:
            x: features (nodes, C_in) of ``in_type``, with ``coords`` (nodes, d). Several clouds are one cloud, whose
                nodes stand one after the other and whose edges do not connect them, as in torch_geometric.
            edge_index: integers (2, edges): a message goes from the node ``edge_index[0]`` to ``edge_index[1]``.
            edge_delta: coordinates of the source less those of the target, (edges, d), where they are known.

        Raises:
            TypeError: for anything but a floating-point GeometricTensor of ``in_type``, and for edges of another type.
            ValueError: without coordinates, or for another shape, or an edge from or to a node that is not there.
        """
        kernel, coordinates = self._of_points, check_cloud(x, self.in_type, self.like)
        features = x.tensor
        source, target = checked_edges(edge_index, len(features), features.device)
        if edge_delta is None:
            edge_delta = coordinates.index_select(0, source) - coordinates.index_select(0, target)
        check_vectors("edge_delta", edge_delta, len(source), "edges", self.d, features)
        terms = gated_terms(gates_at_nodes(self.gates, len(features)), self._hardened)
        output = features.new_zeros(len(features), self.out_type.size)
        if len(source):
            sent = features.index_select(0, source)
            strict = kernel.basis.messages(self.weights, sent, edge_delta)
            counts = torch.bincount(target, minlength=len(features)).clamp_min_(1).to(features.dtype).unsqueeze(1)
            for has_factors in (False, True):
                # K is linear in its averages, and factors at the nodes are the same for those that have some.
                some = {names: c for names, c in terms.items() if kernel.varies(names) is has_factors}
                if not some:
                    continue
                at_edges = {names: c[target] if is_of_nodes(c) else c for names, c in some.items()}
                is_all = len(some) == len(terms)
                messages, factor = kernel.messages(strict, self.weights, sent, edge_delta, at_edges, is_all)
                mean = messages.new_zeros(output.shape).index_add(0, target, messages) / counts
                mean = mean if factor is None else mean * factor
                mean = mean * kernel.node_factors(coordinates) if has_factors else mean
                output = mean if is_all else output + mean
        bias = self.expanded_bias
        output = output if bias is None else output + bias.to(output.dtype)
        return GeometricTensor(output, self.out_type, coords=coordinates)

    @property
    def basissampler(self) -> Any:
        """Escnn's sampler of the basis that ``weights`` multiply, as in ``R2PointConv``, for ``escnn.nn.init``.

        Example:
            >>> from escnn import gspaces
            >>> scalar = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> layer = RelaxedR2PointConv(scalar, scalar, width=2.0, n_rings=3)
            >>> layer.basissampler.dimension() == len(layer.weights)
            True
        """
        return self._of_points.basis.sampler

    @property
    def basisexpansion(self) -> Any:
        """Alias of ``basissampler``."""
        return self.basissampler

    def expand_filter(self, points: Tensor) -> Tensor:
        """Return K at some offsets, (points, C_out, C_in), without its factors at nodes, as ``R2PointConv`` does.

        Args:
            points: coordinates of the source less those of the target, (points, d).

        Example:
            >>> import torch
            >>> from escnn import gspaces
            >>> scalar = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> layer = RelaxedR2PointConv(scalar, scalar, width=2.0, n_rings=3)
            >>> layer.expand_filter(torch.randn(5, 2)).shape
            torch.Size([5, 1, 1])
        """
        check_for_all("expand_filter", self.gates)
        check_vectors("points", points, len(points), "points", self.d, self.like)
        terms = gated_terms(self.gates, self._hardened)
        return gated_sum(terms, [self._of_points.at(self.weights, points, averaged) for averaged in terms])

    def expand_parameters(self, points: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        """Return K at some offsets and the bias of each channel, as ``R2PointConv`` does."""
        return self.expand_filter(points), self.expanded_bias

    def filter_bank(self) -> Tensor:
        """Raise a ``RuntimeError``: a cloud has no taps, see :meth:`expand_filter`."""
        raise RuntimeError("filter_bank: a convolution of clouds has no taps, see expand_filter(points)")

    def check_equivariance(
        self, atol: float = 1e-5, rtol: float = 5e-6, assertion: bool = True, verbose: bool = True, device: str = "cpu"
    ) -> list[tuple[GroupElement, float]]:
        """Check that the layer is equivariant where it is strict, as ``R2PointConv.check_equivariance``, on a cloud.

        Of a soft layer the elements in which it is strict are checked, and a warning names the rest.

        Example:
            >>> from escnn import gspaces
            >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
            >>> layer = RelaxedR2PointConv(fields, fields, width=2.0, n_rings=3, relax=None)
            >>> [round(error, 4) for _, error in layer.check_equivariance(verbose=False)]
            [0.0, 0.0, 0.0, 0.0]
        """
        return check_equivariance(self, atol, rtol, assertion, verbose, device)

    @torch.no_grad()
    def export(self) -> nn.Module:
        """Return a copy of this layer on plain tensors, which needs neither escnn nor torch_geometric.

        It shares no memory with this layer, and takes ``(features, coordinates, edge_index, edge_delta=None)``, any
        number of nodes and edges. Nothing is checked there.

        Example:
            >>> import torch
            >>> from escnn import gspaces
            >>> scalar = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> plain = RelaxedR2PointConv(scalar, scalar, width=2.0, n_rings=3).export()
            >>> plain(torch.randn(5, 1), torch.randn(5, 2), torch.tensor([[0, 1], [1, 2]])).shape
            torch.Size([5, 1])
        """
        check_no_hooks(type(self).__name__, self, "remove them, and register them on the result")
        check_for_all("export", self.gates)
        terms = gated_terms(self.gates, self._hardened)
        return plain_convolution(self._of_points, self.weights, self.expanded_bias, terms)

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the output, (nodes, C_in) → (nodes, C_out), or a ``ValueError``."""
        shape = tuple(input_shape)
        if len(shape) != 2 or shape[1] != self.in_type.size:
            raise ValueError(f"input_shape must be (nodes, {self.in_type.size}), got {shape}")
        return shape[0], self.out_type.size

    def describe(self) -> dict[str, Any]:
        """Return the settings on which the meaning of a state dict depends; kept in its metadata."""
        return {
            "operator": "convolution of clouds",
            "group": self.space.name,
            "input": describe_fields(self.in_type),
            "output": describe_fields(self.out_type),
            "rings": list(self._rings),
            **(
                {"domain radius": [radius]}
                if (radius := getattr(self.kernel.config, "domain_radius", None)) is not None
                else {}
            ),
            **self.kernel.describe(),
        }


class RelaxedR2PointConv(PointConvolution):
    r"""A convolution of clouds of the plane whose equivariance can be relaxed, in place of escnn's ``R2PointConv``.

    A node gets the mean of the messages along its edges, h(xᵢ) = meanⱼ K(xⱼ − xᵢ; xᵢ) f(xⱼ), with

    .. math::
        K(d; x) = K_{\mathrm{strict}}(d) \odot \bigl(1 + f_G(c, d)\bigr) \odot \bigl(1 + f_T(c; x)\bigr)

    K_strict is a kernel in ``R2PointConv``'s own basis, with its weights. f_G depends on the absolute group element of
    the output channel c and on the direction of the edge, f_T on the position of the node in units of
    ``domain_radius``; their means are 0. With ``relax=None`` the layer is ``R2PointConv``, and state dicts of
    ``R2PointConv`` load. escnn's class, and so this one, needs torch_geometric: ``pip install
    'escnn_relaxed[points]'``.

    The softness is that of K as a function on space: its norm is over all directions, on the circles of the radii in
    ``rings`` (or ``width`` and ``n_rings``), each of which counts the same, over the entries, and over positions in the
    disk of ``domain_radius``.

    Arguments up to ``initialize`` are those of ``R2PointConv``, in its order and with its meaning.

    Args:
        in_type: field type of the input.
        out_type: field type of the output, on the same gspace.
        groups: 1, as escnn's layer has no groups.
        bias: add a bias to the trivial irreps of the output.
        sigma: widths of the rings of the steerable basis.
        width: radius of the support; with ``n_rings`` it replaces ``rings``.
        n_rings: number of rings, from 0 to ``width``.
        frequencies_cutoff: highest frequency of the basis at each radius.
        rings: radii of the basis.
        basis_filter: a function that says which elements of the basis to keep.
        recompute: build the basis anew instead of taking escnn's cached one.
        initialize: draw the strict weights; otherwise they are 0.
        domain_radius: radius, in the units of ``coords``, of the disk about the origin in which the nodes lie. It must
            be given where ``relax`` names translation. Nodes outside of it are taken, too.
        relax, learn_relaxation, keep, initial_softness, samples: as in :class:`~escnn_relaxed.RelaxedR2Conv`.
        kernel: None, as the form above is the only one.

    Raises:
        ImportError: where torch_geometric is not installed.
        TypeError: for an argument of the wrong type.
        ValueError: for a value that has no meaning for these field types.

    Shape:
        GeometricTensor (nodes, C_in) with coords (nodes, 2), edges (2, E) → (nodes, C_out) with the same coords.

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot2dOnR2(8)
        >>> scalar = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> hidden = nn.FieldType(gspace, [gspace.regular_repr] * 4)
        >>> layer = RelaxedR2PointConv(scalar, hidden, width=1.5, n_rings=3, relax="rotation")
        >>> cloud = nn.GeometricTensor(torch.randn(10, 1), scalar, coords=torch.randn(10, 2))
        >>> edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> layer(cloud, edges).shape
        torch.Size([10, 32])
    """

    _space = GSpace2D


class RelaxedR3PointConv(PointConvolution):
    """A convolution of clouds in space whose equivariance can be relaxed, in place of escnn's ``R3PointConv``.

    It is :class:`~escnn_relaxed.RelaxedR2PointConv` in three dimensions. ``keep="SO(2)"`` keeps all turns about the
    axis z exactly, as gravity does. With ``relax=None`` the layer is ``R3PointConv``, and its state dicts load. It
    needs torch_geometric: ``pip install 'escnn_relaxed[points]'``.

    The norm of K is over all directions, on the spheres of the radii in ``rings``, each of which counts the same, over
    the entries, and over positions in the ball of ``domain_radius``.

    Args:
        in_type, out_type, groups, bias, sigma, width, n_rings: as in :class:`~escnn_relaxed.RelaxedR2PointConv`.
        frequencies_cutoff, rings, basis_filter, recompute, initialize: as in ``RelaxedR2PointConv``.
        domain_radius: radius, in the units of ``coords``, of the ball about the origin in which the nodes lie, where
            translation is soft.
        relax, learn_relaxation, initial_softness: as in :class:`~escnn_relaxed.RelaxedR2Conv`.
        keep, samples: as in :class:`~escnn_relaxed.RelaxedR3Conv`.
        kernel: None, as the form of ``RelaxedR2PointConv`` is the only one.

    Shape:
        GeometricTensor (nodes, C_in) with coords (nodes, 3), edges (2, E) → (nodes, C_out) with the same coords.

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> gspace = gspaces.rot3dOnR3()
        >>> scalar = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> vectors = nn.FieldType(gspace, [gspace.irrep(1)] * 2)
        >>> layer = RelaxedR3PointConv(scalar, vectors, width=1.5, n_rings=2, keep="SO(2)")
        >>> cloud = nn.GeometricTensor(torch.randn(10, 1), scalar, coords=torch.randn(10, 3))
        >>> edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> layer(cloud, edges).shape
        torch.Size([10, 6])
    """

    _space = GSpace3D


# Code that asks isinstance(layer, R2PointConv), as loops that draw weights do, means this layer too.
for _axes, _convolution in POINT_CONVOLUTIONS.items():
    _convolution.register({2: RelaxedR2PointConv, 3: RelaxedR3PointConv}[_axes])
