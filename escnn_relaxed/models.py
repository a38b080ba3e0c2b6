"""The paper's residual network, on escnn's field types (docs/concepts/ways-to-relax.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.gspaces import GSpace2D
from escnn.nn import EquivariantModule, FieldType, GeometricTensor
from torch import Tensor, nn

from .baselines import LAYERS, STRICT_KEYWORDS
from .checks import check_choice, check_integer
from .continuous import ContinuousKernel, SirenKernel
from .kernel.domain_frequency import Frequency
from .layer.convolution import RelaxedConvolution
from .layer.options import check_kernel
from .layer.relaxed_r2conv import RelaxedR2Conv
from .network.export import export_network
from .network.plain_modules import FieldMaximum, Residual

__all__ = ["RelaxedResNet"]

FIELDS = (32, 64)
KERNEL_SIZE = 7
# Two poolings by 2, then a convolution without padding.
SMALLEST_IMAGE = 4 * KERNEL_SIZE
# The paper's choices, unless the user makes others.
PUBLISHED_KERNEL = ContinuousKernel(net=SirenKernel, rotation_coordinates="log", support="disk")
PUBLISHED_OPTIONS = {"initial_softness": 0.01, "kernel": PUBLISHED_KERNEL}


class RelaxedResNet(nn.Module):
    """The residual network of the paper: lifting, two blocks of two convolutions, one more convolution, a linear layer.

    On images of 32×32: lifting to 32 fields; a block of 32 and one of 64, each followed by max-pooling by 2 (32 → 16 →
    8); a convolution without padding (8 → 2); the maximum over group and positions; a linear layer. Fields are regular,
    kernels 7×7 disks without bias. Inside blocks convolutions are followed by a layer norm without parameters; lifting,
    the sum of each block and the last convolution by batch norm and ReLU. With one rotation the symmetry is T(2), with
    N of them SE(2) sampled by N rotations.

    van der Ouderaa, Romero and van der Wilk (NeurIPS 2022), appendix "Network architecture"; the details are those that
    give its table of parameter counts exactly (test_models.py). A block has a shortcut where the number of fields
    changes, and where rotation may be soft.

    Args:
        classes: number of classes.
        rotations: N.
        layer: how the convolutions are relaxed, a key of :data:`~escnn_relaxed.baselines.LAYERS`: ``"relaxed"``,
            ``"partial"`` (Romero and Lohit; lifting stays strict), ``"residual"`` or ``"weighted"``.
        relax: starting ω′ of each subgroup, ``{"translation": …, "rotation": …}``, as of
            :class:`~escnn_relaxed.RelaxedR2Conv` (of ``"partial"``, the narrowing). None: strict everywhere.
            Default: as of the layer, rotation where there is one.
        in_channels: channels of the images.
        fields: numbers of fields of the two blocks.
        lifting_kernel_size: of the lifting convolution. The published strict and partial networks of SE(2) appear to
            have had a single tap there, which is 1.
        **layer_options: further keyword arguments of the convolutions: ``learn_relaxation=True``,
            ``initial_softness``, ``kernel``, … (``kernel=None``: the default kernel of the layers). Those that shape strict kernels go to
            shortcuts too, with half of the hidden values. Default kernel: sine layers, log
            coordinates and a hard disk.

    Attributes:
        features: images → the last feature maps, a ``SequentialModule``.
        classifier: the linear layer.

    Raises:
        TypeError: for an argument of the wrong type, or an unknown one.
        ValueError: for a value that has no meaning.

    Shape:
        (batch, in_channels, H, W) or a GeometricTensor of ``in_type`` → (batch, classes); H and W at least 28.

    Example:
        >>> network = RelaxedResNet(classes=10, rotations=4, relax={"rotation": 1.0})
        >>> network(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
        >>> # The paper's SE(2), soft in SO(2), on CIFAR-10:
        >>> sum(p.numel() for p in network.parameters())
        469802
    """

    def __init__(
        self,
        classes: int = 10,
        rotations: int = 8,
        *,
        layer: str = "relaxed",
        relax: Mapping[str, Frequency] | str | None = "default",
        in_channels: int = 3,
        fields: tuple[int, int] = FIELDS,
        lifting_kernel_size: int = KERNEL_SIZE,
        **layer_options: Any,
    ) -> None:
        super().__init__()
        check_integer("classes", classes, 1)
        check_integer("in_channels", in_channels, 1)
        count = check_integer("rotations", rotations, 1)
        check_choice("layer", layer, tuple(LAYERS))
        space = gspaces.trivialOnR2() if count == 1 else gspaces.rot2dOnR2(count)
        self.in_type = FieldType(space, [space.trivial_repr] * in_channels)
        if len(fields) != 2:
            raise ValueError(f"fields must be two numbers, one of each block, got {fields!r}")
        few, many = (FieldType(space, [_regular(space)] * check_integer("fields", number, 1)) for number in fields)
        if count == 1 and layer != "relaxed":
            raise ValueError(f"layer={layer!r} relaxes rotations, of which rotations=1 has none: take 'relaxed'")
        build = _Convolutions(layer, relax, layer_options)
        may_turn = count > 1 and (relax == "default" or (isinstance(relax, Mapping) and "rotation" in relax))
        self.features = enn.SequentialModule(
            build.lifting(self.in_type, few, check_integer("lifting_kernel_size", lifting_kernel_size, 1)),
            *_normalized(few),
            _block(few, few, build, has_shortcut=may_turn),
            *_normalized(few),
            enn.PointwiseMaxPool2D(few, kernel_size=2),
            _block(few, many, build, has_shortcut=True),
            *_normalized(many),
            enn.PointwiseMaxPool2D(many, kernel_size=2),
            build.convolution(many, many, padding=0),
            *_normalized(many),
        )
        self.classifier = nn.Linear(len(many), classes)

    def feature_maps(self, images: Tensor | GeometricTensor) -> GeometricTensor:
        """Return the last feature maps, before the maximum over group and positions."""
        plain = images.tensor if isinstance(images, GeometricTensor) else images
        if plain.dim() != 4 or plain.shape[1] != self.in_type.size or min(plain.shape[2:]) < SMALLEST_IMAGE:
            raise ValueError(
                f"images must be (batch, {self.in_type.size}, H, W) with H and W of at least {SMALLEST_IMAGE}, got "
                f"{tuple(plain.shape)}"
            )
        maps: GeometricTensor = self.features(images if isinstance(images, GeometricTensor) else self.in_type(images))
        return maps

    def forward(self, images: Tensor | GeometricTensor) -> Tensor:
        """Return class scores (batch, classes) of images (batch, in_channels, H, W)."""
        maps = self.feature_maps(images)
        scores: Tensor = self.classifier(maps.tensor.unflatten(1, (len(maps.type), -1)).amax(dim=(2, 3, 4)))
        return scores

    @torch.no_grad()
    def export(self) -> nn.Module:
        """Return the network on plain tensors, without escnn, in memory of its own: the same numbers as in eval mode.

        Shape:
            of the result: (batch, in_channels, H, W) → (batch, classes).
        """
        maximum = FieldMaximum([field.size for field in self.features.out_type.representations])
        head = nn.Sequential(maximum, nn.AdaptiveMaxPool2d(1), nn.Flatten(), self.classifier)
        return nn.Sequential(export_network(self.features), export_network(head)).eval()


def _regular(space: GSpace2D) -> Any:
    # The regular field of the trivial group has one channel and no symmetry: a trivial one.
    return space.trivial_repr if space.fibergroup.order() == 1 else space.regular_repr


def _normalized(fields: FieldType) -> list[EquivariantModule]:
    return [enn.InnerBatchNorm(fields), enn.ReLU(fields)]


class _Convolutions:
    """Builds the convolutions of a network, all of them relaxed alike.

    Args:
        layer: key of ``LAYERS``.
        relax: as of the network.
        options: further options of the convolutions.
    """

    def __init__(self, layer: str, relax: Mapping[str, Frequency] | str | None, options: Mapping[str, Any]) -> None:
        self._layer = layer
        self._options: dict[str, Any] = {**PUBLISHED_OPTIONS, "bias": False, **options}
        check_kernel(self._options["kernel"])
        self._kernel = self._options["kernel"]
        self._relaxing: dict[str, Any] = {} if layer != "relaxed" and relax == "default" else {"relax": relax}
        self._is_strict = relax is None

    def lifting(self, in_type: FieldType, out_type: FieldType, kernel_size: int) -> RelaxedConvolution:
        """Return the convolution from images to fields."""
        padding = kernel_size // 2
        if self._layer == "partial":
            return self._strict(in_type, out_type, kernel_size, padding, self._kernel)
        return self._relaxed(in_type, out_type, kernel_size, padding, self._kernel)

    def convolution(self, in_type: FieldType, out_type: FieldType, padding: int) -> RelaxedConvolution:
        """Return a convolution from fields to fields."""
        kernel = self._kernel
        if kernel is not None and kernel.net is SirenKernel:
            kernel = replace(kernel, net=_PublishedSiren)
        return self._relaxed(in_type, out_type, KERNEL_SIZE, padding, kernel)

    def shortcut(self, in_type: FieldType, out_type: FieldType) -> RelaxedConvolution:
        """Return a strict map from fields to fields at each position."""
        kernel = self._kernel
        if kernel is not None:
            net = _PublishedPointwiseSiren if kernel.net is SirenKernel else kernel.net
            kernel = replace(kernel, net=net, hidden_size=kernel.hidden_size // 2)
        return self._strict(in_type, out_type, 1, 0, kernel)

    def _strict(
        self, in_type: FieldType, out_type: FieldType, kernel_size: int, padding: int, kernel: ContinuousKernel | None
    ) -> RelaxedR2Conv:
        options = {name: value for name, value in self._options.items() if name in STRICT_KEYWORDS} | {"kernel": kernel}
        return RelaxedR2Conv(in_type, out_type, kernel_size, padding, relax=None, **options)

    def _relaxed(
        self, in_type: FieldType, out_type: FieldType, kernel_size: int, padding: int, kernel: ContinuousKernel | None
    ) -> RelaxedConvolution:
        make = RelaxedR2Conv if self._is_strict else LAYERS[self._layer]
        options = {**self._relaxing, **self._options, "kernel": kernel}
        return make(in_type, out_type, kernel_size, padding, **options)


class _PublishedSiren(SirenKernel):
    """A SIREN that sees the relative rotation in a network of T(2) too, where it is 0.

    As in the published networks: it does not change what a kernel can be, and counts among the parameters.
    """

    _first = 0

    def __init__(self, filter_dimension: int, domain_dimension: int, hidden_size: int) -> None:
        wanted = max(filter_dimension, 3)
        super().__init__(wanted - self._first, domain_dimension, hidden_size)
        self._missing = wanted - filter_dimension

    def _filter_phase(self, coordinates: Tensor) -> Tensor:
        return super()._filter_phase(nn.functional.pad(coordinates, (0, self._missing))[..., self._first :])


class _PublishedPointwiseSiren(_PublishedSiren):
    """The same net for a 1×1 kernel, which does not see the position: it is 0 there."""

    _first = 2


def _block(in_type: FieldType, out_type: FieldType, build: _Convolutions, has_shortcut: bool) -> _ResidualBlock:
    """Return two convolutions around a ReLU, each with a layer norm, beside a shortcut."""
    padding = KERNEL_SIZE // 2
    body = enn.SequentialModule(
        build.convolution(in_type, out_type, padding),
        _LayerNorm(out_type),
        enn.ReLU(out_type),
        build.convolution(out_type, out_type, padding),
        _LayerNorm(out_type),
    )
    return _ResidualBlock(body, build.shortcut(in_type, out_type) if has_shortcut else enn.IdentityModule(in_type))


class _ResidualBlock(EquivariantModule):
    """The sum of a body and a shortcut."""

    def __init__(self, body: EquivariantModule, shortcut: EquivariantModule) -> None:
        super().__init__()
        self.in_type, self.out_type = body.in_type, body.out_type
        self.body = body
        self.shortcut = shortcut

    def forward(self, input: GeometricTensor) -> GeometricTensor:
        """Fields of ``in_type`` → fields of ``out_type``."""
        return self.body(input) + self.shortcut(input)

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return (batch, C_out, H, W) for (batch, C_in, H, W)."""
        shape: tuple[int, ...] = self.body.evaluate_output_shape(input_shape)
        return shape

    def export(self) -> Residual:
        """Return the block on plain tensors."""
        return Residual(export_network(self.body), export_network(self.shortcut))


class _LayerNorm(EquivariantModule):
    """Mean 0 and variance 1 of each image over all channels and positions, which no symmetry changes."""

    def __init__(self, fields: FieldType) -> None:
        super().__init__()
        self.in_type = self.out_type = fields
        self.norm = nn.GroupNorm(1, fields.size, affine=False)

    def forward(self, input: GeometricTensor) -> GeometricTensor:
        """(batch, C, H, W) → the same."""
        return GeometricTensor(self.norm(input.tensor), self.out_type, coords=None)

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the same shape."""
        return tuple(input_shape)

    def export(self) -> nn.Module:
        """Return the norm on plain tensors."""
        return self.norm
