"""The paper's residual network, on escnn's field types (docs/results/paper.md)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import EquivariantModule, FieldType, GeometricTensor
from torch import Tensor, nn

from .baselines import LAYERS, STRICT_KEYWORDS, PartialR2Conv
from .checks import check_choice, check_integer
from .continuous import ContinuousKernel, KernelNet, SirenKernel, draw_samples
from .kernel.domain_frequency import Frequency
from .layer.convolution import RelaxedConvolution
from .layer.relaxed_r2conv import RelaxedR2Conv
from .layer.softness_options import check_kernel
from .network.export import export_network
from .network.plain_modules import FieldMaximum, Residual

__all__ = ["RelaxedResNet"]

KERNEL_SIZE = 7
SMALLEST_IMAGE = 4 * KERNEL_SIZE  # two poolings by 2, then a convolution without padding
# The paper's choices, unless the user makes others.
KERNEL = ContinuousKernel(net=SirenKernel, rotation_coordinates="log", support="disk")
OPTIONS = {"initial_softness": 0.01, "bias": False, "kernel": KERNEL}


class RelaxedResNet(nn.Module):
    """The residual network of the paper: lifting, two blocks of two convolutions, one more convolution, a linear layer.

    On images of 32×32: lifting to 32 fields; a block of 32 and one of 64, each followed by max-pooling by 2 (32 → 16 →
    8); a convolution without padding (8 → 2); the maximum over group and positions; a linear layer. Fields are regular,
    kernels 7×7 disks without bias. Inside blocks a layer norm without parameters follows on each convolution; batch
    norm and ReLU follow on lifting, each block and the last convolution. A block has a shortcut where the number of
    fields changes, and where rotation may be soft. With one rotation the symmetry is T(2), with N of them SE(2).

    The parameter counts are exactly those of the paper's table. Its parts are ``features`` and ``classifier``.

    Args:
        classes: number of classes.
        rotations: N.
        layer: how the convolutions are relaxed, a key of :data:`~escnn_relaxed.baselines.LAYERS`: ``"relaxed"``,
            ``"partial"`` (lifting stays strict), ``"residual"`` or ``"weighted"``.
        relax: the subgroups that may be soft, ``("translation", "rotation")``, or a dict from them to the starting ω′,
            of ``"partial"`` to the narrowing; None: strict everywhere. Default: that of the layer.
        in_channels: channels of the images.
        fields: numbers of fields of the two blocks.
        lifting_kernel_size: it appears to have been 1 in the published strict and partial networks of SE(2).
        **layer_options: of the convolutions: ``learn_relaxation=True``, ``initial_softness``, ``kernel``, … Those that
            shape strict kernels go to shortcuts too, with half of the hidden values. Default kernel: sine layers, log
            coordinates and a hard disk. ``kernel=None`` is the default kernel of the layers.

    Shape:
        (batch, in_channels, H, W) or a GeometricTensor of ``in_type`` → (batch, classes); H and W at least 28.

    Example:
        >>> network = RelaxedResNet(classes=10, rotations=4, relax={"rotation": 1.0})
        >>> sum(p.numel() for p in network.parameters())  # the paper's, soft in SO(2)
        469802
    """

    def __init__(
        self,
        classes: int = 10,
        rotations: int = 8,
        *,
        layer: str = "relaxed",
        relax: Mapping[str, Frequency] | Sequence[str] | Set[str] | str | None = "default",
        in_channels: int = 3,
        fields: tuple[int, int] = (32, 64),
        lifting_kernel_size: int = KERNEL_SIZE,
        **layer_options: Any,
    ) -> None:
        super().__init__()
        count = check_integer("rotations", rotations, 1)
        check_choice("layer", layer, tuple(LAYERS))
        if count == 1 and layer != "relaxed":
            raise ValueError(f"layer={layer!r} relaxes rotations, of which rotations=1 has none: take 'relaxed'")
        if len(fields) != 2:
            raise ValueError(f"fields must be two numbers, one of each block, got {fields!r}")
        space = gspaces.trivialOnR2() if count == 1 else gspaces.rot2dOnR2(count)
        # The regular field of the trivial group has one channel and no symmetry: a trivial one.
        regular = space.trivial_repr if count == 1 else space.regular_repr
        self.in_type = FieldType(space, [space.trivial_repr] * check_integer("in_channels", in_channels, 1))
        few, many = (FieldType(space, [regular] * check_integer("fields", number, 1)) for number in fields)
        build = _Convolutions(layer, relax, layer_options)
        may_turn = count > 1 and (relax == "default" or (isinstance(relax, Collection) and "rotation" in relax))
        self.features = enn.SequentialModule(
            build.lifting(self.in_type, few, check_integer("lifting_kernel_size", lifting_kernel_size, 1)),
            *_normalized(few),
            _ResidualBlock(few, few, build, has_shortcut=may_turn),
            *_normalized(few),
            enn.PointwiseMaxPool2D(few, kernel_size=2),
            _ResidualBlock(few, many, build, has_shortcut=True),
            *_normalized(many),
            enn.PointwiseMaxPool2D(many, kernel_size=2),
            build.wide(many, many, padding=0),
            *_normalized(many),
        )
        self.classifier = nn.Linear(len(many), check_integer("classes", classes, 1))

    def forward(self, images: Tensor | GeometricTensor) -> Tensor:
        """Return class scores (batch, classes) of images (batch, in_channels, H, W)."""
        shape = tuple(images.shape)
        if len(shape) != 4 or shape[1] != self.in_type.size or min(shape[2:]) < SMALLEST_IMAGE:
            sizes = f"(batch, {self.in_type.size}, H, W) with H and W of at least {SMALLEST_IMAGE}"
            raise ValueError(f"images must be {sizes}, got {shape}")
        draw_samples(self)
        maps = self.features(images if isinstance(images, GeometricTensor) else self.in_type(images))
        return self.classifier(maps.tensor.unflatten(1, (len(maps.type), -1)).amax(dim=(2, 3, 4)))

    @torch.no_grad()
    def export(self) -> nn.Module:
        """Return a copy of the network on plain tensors, without escnn, with the same numbers as in eval mode."""
        maximum = FieldMaximum([field.size for field in self.features.out_type.representations])
        head = nn.Sequential(maximum, nn.AdaptiveMaxPool2d(1), nn.Flatten(), self.classifier)
        return nn.Sequential(export_network(self.features), export_network(head)).eval()


def _normalized(fields: FieldType) -> list[EquivariantModule]:
    return [enn.InnerBatchNorm(fields), enn.ReLU(fields)]


class _PublishedSiren(SirenKernel):
    """A SIREN with a relative rotation as input even for T(2), where it is 0 but adds parameters."""

    _first = 0

    def __init__(self, filter_dimension: int, domain_dimension: int, hidden_size: int) -> None:
        wanted = max(filter_dimension, 3)
        super().__init__(wanted - self._first, domain_dimension, hidden_size)
        self._missing = wanted - filter_dimension

    def _filter_phase(self, coordinates: Tensor) -> Tensor:
        return super()._filter_phase(nn.functional.pad(coordinates, (0, self._missing))[..., self._first :])


class _PublishedPointwiseSiren(_PublishedSiren):
    """The same net for a 1×1 kernel, without the position, which is 0 there."""

    _first = 2


class _Convolutions:
    """Builds the convolutions of a network, all with the same relaxation."""

    def __init__(self, layer: str, relax: Any, options: Mapping[str, Any]) -> None:
        self._options: dict[str, Any] = {**OPTIONS, **options}
        check_kernel(self._options["kernel"])
        self._strict: dict[str, Any] = {key: value for key, value in self._options.items() if key in STRICT_KEYWORDS}
        self._strict["relax"] = None
        if layer == "relaxed" or relax != "default":
            self._options["relax"] = relax
        self._layer: Callable[..., RelaxedConvolution] = RelaxedR2Conv if relax is None else LAYERS[layer]

    def wide(self, in_type: FieldType, out_type: FieldType, padding: int = KERNEL_SIZE // 2) -> RelaxedConvolution:
        """Return a convolution of 7×7."""
        kernel = self._with_net(_PublishedSiren)
        return self._layer(in_type, out_type, KERNEL_SIZE, padding, **{**self._options, "kernel": kernel})

    def lifting(self, in_type: FieldType, out_type: FieldType, size: int) -> RelaxedConvolution:
        """Return the lifting convolution from images to fields, which no partial kernel can replace."""
        if self._layer is PartialR2Conv:
            return RelaxedR2Conv(in_type, out_type, size, size // 2, **self._strict)
        return self._layer(in_type, out_type, size, size // 2, **self._options)

    def shortcut(self, in_type: FieldType, out_type: FieldType) -> RelaxedConvolution:
        """Return a strict map from fields to fields at each position."""
        kernel = self._with_net(_PublishedPointwiseSiren, part=2)
        return RelaxedR2Conv(in_type, out_type, 1, **{**self._strict, "kernel": kernel})

    def _with_net(self, net: type[KernelNet], part: int = 1) -> ContinuousKernel | None:
        """Return the kernel options with the given net in place of the SIREN, and 1/``part`` of the hidden values."""
        if (kernel := self._options["kernel"]) is None:
            return None
        net = net if kernel.net is SirenKernel else kernel.net
        return replace(kernel, net=net, hidden_size=kernel.hidden_size // part)


class _ResidualBlock(EquivariantModule):
    """Two convolutions around a ReLU, each with a layer norm, beside a shortcut."""

    def __init__(self, in_type: FieldType, out_type: FieldType, build: _Convolutions, has_shortcut: bool) -> None:
        super().__init__()
        self.in_type, self.out_type = in_type, out_type
        first, second = build.wide(in_type, out_type), build.wide(out_type, out_type)
        self.body = enn.SequentialModule(first, _LayerNorm(out_type), enn.ReLU(out_type), second, _LayerNorm(out_type))
        self.shortcut = build.shortcut(in_type, out_type) if has_shortcut else enn.IdentityModule(in_type)

    def forward(self, input: GeometricTensor) -> GeometricTensor:
        return self.body(input) + self.shortcut(input)

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.body.evaluate_output_shape(input_shape))

    def export(self) -> Residual:
        return Residual(export_network(self.body), export_network(self.shortcut))


class _LayerNorm(EquivariantModule):
    """Mean 0 and variance 1 of each image over all channels and positions, which no symmetry changes."""

    def __init__(self, fields: FieldType) -> None:
        super().__init__()
        self.in_type = self.out_type = fields
        self.norm = nn.GroupNorm(1, fields.size, affine=False)

    def forward(self, input: GeometricTensor) -> GeometricTensor:
        return GeometricTensor(self.norm(input.tensor), self.out_type, coords=None)

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        return input_shape

    def export(self) -> nn.Module:
        return self.norm
