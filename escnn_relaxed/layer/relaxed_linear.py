"""`RelaxedLinear`: `escnn.nn.Linear` with a matrix that may be soft in any subgroup of its group."""

from __future__ import annotations

import torch
from escnn.group import GroupElement
from escnn.gspaces import GSpace0D
from escnn.nn import FieldType, Linear
from torch import Tensor, nn
from typing_extensions import Unpack

from ..checks import check_choice, check_no_hooks
from ..integral.geometry import ConvolutionGeometry, as_convolution
from ..on_escnn.sampled_basis import built_on_the_cpu
from .arguments import check_derived_tensor, check_field_types
from .equivariance_check import check_equivariance
from .relaxed_layer import RelaxedLayer
from .softness_options import SoftnessOptions, shows_softness_options


class RelaxedLinear(RelaxedLayer):
    """A linear map of features whose equivariance can be relaxed, in place of :class:`escnn.nn.Linear`.

    The matrix is W = W_strict ⊙ (1 + f). For an output channel that belongs to a group element, f is that
    of :class:`~escnn_relaxed.RelaxedR2Conv`. For other output fields, such as the trivial ones of class scores, f is a
    function of the input channel's element. Such a head lies between a linear map of each field's mean, where it is
    strict, and a linear layer on all channels. With ``relax=None`` the layer is ``Linear``, and its state dicts load.

    Where no channel belongs to an element, as between irreps and Fourier fields, W = W_strict + F − PF with a free
    matrix F of C_out·C_in weights. PF, its mean over the group, is exact for continuous groups too. There is no ω′.

    Features have no positions, so the field types are on ``escnn.gspaces.no_base_space(group)``. Each group element is
    represented by its usual matrix: Cₙ, Dₙ, SO(2) and O(2) on the plane; SO(3), O(3), the octahedral and the
    icosahedral groups on space. Elements of Dₙ and O(2) that flip are reflections. (In some gspaces of space the same
    group acts by half turns.) The group of two elements has a half turn. Elements of any other group, such as a direct
    product or the Klein four-group, are represented by its smallest irreps that together tell them apart. They are no
    rotations or reflections: the only subgroup with a name is ``"group"``, all of it.

    Take the mean over the pixels of a network's last layer, as in the example, and give it fields of the same
    representations on ``no_base_space(gspace.fibergroup)``.

    Args:
        in_type, out_type: field types of the input and the output, of one group.
        basisexpansion: ``"blocks"``, the only one that ``Linear`` knows.
        bias, recompute, initialize: as in :class:`~escnn_relaxed.RelaxedR2Conv`.
        relax: the subgroups that may be soft, of ``"rotation"`` and ``"reflection"``, or a dict from them to ω′;
            ``"group"`` is the whole group. None: strict. Default: all that the group has, at 0.25.
        learn_relaxation, initial_softness: as in :class:`~escnn_relaxed.RelaxedR2Conv`.
        keep: group to which the layer stays exactly equivariant: as in :class:`~escnn_relaxed.RelaxedR3Conv`, or of Cₙ,
            Dₙ, SO(2) and O(2) as in :class:`~escnn_relaxed.RelaxedR2Conv`. Of any other finite group escnn's id of a
            subgroup, or elements that generate it. Default: no such group.
        samples: number of rotations by which a continuous group is sampled. Default: 16, of SO(3) and O(3) 24.
        kernel: the form of the kernel, as in :class:`~escnn_relaxed.RelaxedR2Conv`. Default: the form above. A
            ``ContinuousKernel`` is not for SO(3) and O(3), whose samples do not make its strict part exact.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a value that has no meaning for these field types, ``relax`` with translation for instance.

    Shape:
        GeometricTensor (batch, C_in) → (batch, C_out).

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedLinear, RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(8)
        >>> image = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> maps = nn.FieldType(gspace, [gspace.regular_repr] * 4)
        >>> body = nn.SequentialModule(RelaxedR2Conv(image, maps, 5), nn.ReLU(maps))
        >>> space = gspaces.no_base_space(gspace.fibergroup)
        >>> features = nn.FieldType(space, maps.representations)
        >>> classes = nn.FieldType(space, [space.trivial_repr] * 10)
        >>> head = RelaxedLinear(features, classes, relax="rotation")
        >>> pooled = body(image(torch.randn(2, 1, 28, 28))).tensor.mean(dim=(2, 3))
        >>> head(features(pooled)).shape
        torch.Size([2, 10])
    """

    @built_on_the_cpu
    @shows_softness_options
    def __init__(
        self,
        in_type: FieldType,
        out_type: FieldType,
        bias: bool = True,
        basisexpansion: str = "blocks",
        recompute: bool = False,
        initialize: bool = True,
        **softness: Unpack[SoftnessOptions],
    ) -> None:
        check_field_types(in_type, out_type, GSpace0D)
        check_choice("basisexpansion", basisexpansion, ("blocks",))
        geometry = ConvolutionGeometry(kernel_size=1, padding=())
        super().__init__(in_type, out_type, geometry, bias, {"recompute": recompute}, initialize, softness)

    @property
    def matrix(self) -> Tensor:
        """The matrix (C_out, C_in), as in ``Linear``; computed from the weights in training mode, too.

        Example:
            >>> from escnn import gspaces, group, nn
            >>> space = gspaces.no_base_space(group.cyclic_group(4))
            >>> fields = nn.FieldType(space, [space.regular_repr])
            >>> RelaxedLinear(fields, fields).matrix.shape
            torch.Size([4, 4])
        """
        return self.expand_parameters()[0]

    @matrix.setter
    def matrix(self, value: Tensor) -> None:
        check_derived_tensor("matrix", value, self.filter_bank(), "weights")

    @torch.no_grad()
    def export(self) -> nn.Module:
        """Return a copy of this layer as a ``Linear`` of torch, which shares no memory with it."""
        check_no_hooks(type(self).__name__, self, "remove them, and register them on the result")
        return as_convolution(*self.one_filter_bank(), self.geometry)

    def check_equivariance(
        self, atol: float = 1e-5, rtol: float = 1e-5, assertion: bool = True, verbose: bool = True, device: str = "cpu"
    ) -> list[tuple[GroupElement, float]]:
        """Check that the map is equivariant where it is strict, as ``Linear.check_equivariance``.

        Of a soft map the elements in which it is strict are checked, and a warning names the rest.

        Example:
            >>> from escnn import gspaces, group, nn
            >>> space = gspaces.no_base_space(group.cyclic_group(4))
            >>> fields = nn.FieldType(space, [space.regular_repr])
            >>> layer = RelaxedLinear(fields, fields, relax=None)
            >>> [round(error, 4) for _, error in layer.check_equivariance(verbose=False)]
            [0.0, 0.0, 0.0, 0.0]
        """
        return check_equivariance(self, atol, rtol, assertion, verbose, device)


# Code that asks isinstance(layer, Linear), as loops that draw weights do, means this layer too.
Linear.register(RelaxedLinear)
