"""The outputs of a network's modules in a forward pass, and where the pixels of their feature maps lie."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from escnn.nn import (
    FieldType,
    GeometricTensor,
    PointwiseMaxPoolAntialiased2D,
    PointwiseMaxPoolAntialiased3D,
    R2ConvTransposed,
    R3ConvTransposed,
)
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvTransposeNd
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from ..integral.geometry import Geometry, TransposedGeometry
from ..network.relaxed_layers import tensor_of
from .isometry import PixelGrid

# Functions that lay any number of pixels over the whole map.
_CENTRED = ("adaptive_", "interpolate", "upsample")
# A function that picks the tensor to look at from the return value of a module.
OutputSelector: TypeAlias = Callable[[Any], Tensor | GeometricTensor] | None


@dataclass(frozen=True)
class ModuleOutput:
    """The output of a module, and where its pixels lie."""

    tensor: Tensor  # (batch, C, …)
    field_type: FieldType | None  # that of a GeometricTensor
    grid: PixelGrid | None  # None without the dimensions of the image
    passed: tuple[PixelGrid, ...]  # the grids that modules up to this one have made, in their order
    is_torus: bool  # whether what these modules pad is padded circularly


def outputs(
    network: nn.Module,
    arguments: Sequence[Any],
    names: Sequence[str],
    output: OutputSelector = None,
    has_pixels: bool = True,
) -> dict[str, ModuleOutput]:
    """Return the outputs of some modules by name, ``""`` for the network itself; the first argument is the image.

    Without pixels, of a cloud, outputs have no grids.
    """
    grids = _Grids(tensor_of(arguments[0])) if has_pixels else None
    outputs_by_name: dict[str, ModuleOutput] = {}

    def keep(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, returned: Any) -> None:
            picked = _picked(returned, output, name)
            field_type = picked.type if isinstance(picked, GeometricTensor) else None
            if grids is None:
                outputs_by_name[name] = ModuleOutput(tensor_of(picked), field_type, None, (), is_torus=False)
                return
            grid = grids[tensor_of(picked)] if grids.is_map(picked) else None
            outputs_by_name[name] = ModuleOutput(
                tensor_of(picked), field_type, grid, tuple(grids.passed), grids.is_torus
            )

        return hook

    modules = dict(network.named_modules())
    hooks = [] if grids is None else [module.register_forward_hook(grids.follow) for module in modules.values()]
    hooks += [modules[name].register_forward_hook(keep(name)) for name in names]
    try:
        # A compiled module would hide functions from the grids, and the hooks are not for compilation.
        with torch.compiler.set_stance("force_eager"), grids or contextlib.nullcontext():
            network(*arguments)
    finally:
        for hook in hooks:
            hook.remove()
    for name in names:
        if name not in outputs_by_name:
            raise ValueError(f"layer: {name!r} is not called in the forward pass of {type(network).__name__}")
    return outputs_by_name


def _picked(returned: Any, output: OutputSelector, name: str) -> Tensor | GeometricTensor:
    """Return the tensor to measure of a module's output."""
    picked = returned if output is None else output(returned)
    if isinstance(picked, (Tensor, GeometricTensor)):
        return picked
    module = repr(name) if name else "the network"
    source = f"{module} returns" if output is None else "output gives"
    hint = ": pick a tensor of it by output=lambda returned: …" if output is None else ""
    raise TypeError(f"output: it must be a tensor or a GeometricTensor, {source} a {type(picked).__name__}{hint}")


class _Grids(TorchFunctionMode):
    """A torch function mode that tracks the pixel grids of the tensors of a forward pass.

    Hooks of modules alone see neither a padding, a crop nor a permutation of axes that a ``forward`` does by functions:
    strict networks that do so would be called strided.
    """

    def __init__(self, image: Tensor) -> None:
        super().__init__()
        self.dimension = image.dim() - 2
        self.passed: list[PixelGrid] = []
        self.is_torus = True
        self._image = PixelGrid.of_image(*self._size(image))
        self._known: MutableMapping[Tensor, PixelGrid] = WeakTensorKeyDictionary()
        self._known[image] = self._image

    def __getitem__(self, tensor: Tensor) -> PixelGrid:
        return self._known.get(tensor) or self._image.resized(self._size(tensor))

    def is_map(self, value: Any) -> bool:
        """Return whether a value is a feature map (batch, C, …) with the dimensions of the image."""
        is_tensor = isinstance(value, (Tensor, GeometricTensor))
        return is_tensor and self.dimension > 0 and tensor_of(value).dim() == 2 + self.dimension

    def follow(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Forward hook: record the grid of a module's output."""
        if not (inputs and self.is_map(inputs[0]) and self.is_map(output)):
            return
        source, target = tensor_of(inputs[0]), tensor_of(output)
        slid = _slid(module, self[source], self._size(target))
        if slid is None:
            # The module may take maps apart inside, where functions of torch do not see the whole.
            self._inherit([source], target)
        else:
            self._known[target], is_torus = slid
            self.passed.append(self._known[target])
            self.is_torus = self.is_torus and is_torus

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is functional.pad and args[0] in self._known:
            # Numbers of pixels before and behind, from the last axis on.
            self._cut(args[0], result, [(-before, 1) for before in args[1][::2]][::-1])
            self.is_torus = self.is_torus and (kwargs.get("mode") == "circular" or not any(args[1]))
        elif func is Tensor.__getitem__ and args[0] in self._known and result.dim() == args[0].dim():
            self._cut(args[0], result, _starts_and_steps(args[1], args[0].shape))
        results = list(_tensors_in(result))
        if results:
            sources = list(_tensors_in((args, tuple(kwargs.values()))))
            is_centred = getattr(func, "__name__", "").startswith(_CENTRED) and not kwargs.get("align_corners")
            for tensor in results:
                self._inherit(sources, tensor, is_centred)
        return result

    def _cut(self, source: Tensor, result: Tensor, bounds: Sequence[tuple[int, int]] | None) -> None:
        """Record the grid of a strided slice of another map, along the last axes."""
        if bounds is not None:
            all_axes = [*[(0, 1)] * self.dimension, *bounds][-self.dimension :]
            first, step = np.array(all_axes).T
            self._known[result] = self._known[source].part(first, step, self._size(result))
            self.passed.append(self._known[result])

    def _inherit(self, sources: Sequence[Tensor], result: Tensor, is_centred: bool = False) -> None:
        """Record for a new tensor the grid of its sources, preferably one of its own size."""
        known = [source for source in sources if source in self._known]
        if result.dim() < 2 + self.dimension or result in self._known or not known:
            return
        size = self._size(result)
        alike = (source for source in known if self._size(source) == size)
        source = self._known[next(alike, known[0])]
        resized = source.resized(size)
        self._known[result] = replace(resized, is_guess=source.is_guess) if is_centred else resized

    def _size(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(tensor.shape[-self.dimension :])


def _starts_and_steps(index: Any, shape: tuple[int, ...]) -> list[tuple[int, int]] | None:
    """Return the start and step along each axis of an index made of slices; None for other indices."""
    slices = list(index) if isinstance(index, tuple) else [index]
    at = next((number for number, item in enumerate(slices) if item is Ellipsis), len(slices))
    slices[at : at + 1] = [slice(None)] * (len(shape) - len(slices) + (at < len(slices)))
    if len(slices) != len(shape) or not all(isinstance(item, slice) and (item.step or 1) > 0 for item in slices):
        return None
    return [item.indices(size)[::2] for item, size in zip(slices, shape, strict=True)]


def _slid(module: nn.Module, grid: PixelGrid, size: tuple[int, ...]) -> tuple[PixelGrid, bool] | None:
    """Return the output grid of a sliding-window module, and whether a torus stays one; None for other modules."""
    geometry = getattr(module, "geometry", None)
    source: Any = geometry if isinstance(geometry, Geometry) else module
    if not all(hasattr(source, name) for name in ("kernel_size", "stride", "padding")):
        return None

    def along_axes(value: Any) -> NDArray[np.float64]:
        return np.array(value if isinstance(value, (tuple, list)) else len(size) * (value,), dtype=np.float64)

    kernel, stride = along_axes(source.kernel_size), along_axes(source.stride)
    if len(kernel) != len(size):
        return None
    # Pixels from the first to the last that the kernel covers.
    extent = along_axes(getattr(source, "dilation", 1)) * (kernel - 1) + 1
    named = {"same": (extent - 1) // 2, "valid": 0 * extent}
    padding = named[source.padding] if isinstance(source.padding, str) else along_axes(source.padding)
    if isinstance(module, (PointwiseMaxPoolAntialiased2D, PointwiseMaxPoolAntialiased3D)):
        # A blur with the stride follows on a maximum without one.
        extent, padding = extent + module.filter.shape[-1] - 1, padding + along_axes(module._pad)
    reach = (extent - 1) / 2 - padding
    if isinstance(source, (TransposedGeometry, R2ConvTransposed, R3ConvTransposed, _ConvTransposeNd)):
        # Whether all that a pixel would have added to it on the torus comes from pixels of the image.
        is_torus = bool((padding - along_axes(source.output_padding) >= extent - stride).all())
        return grid.part(-reach / stride, 1 / stride, size), is_torus
    is_torus = not padding.any() or getattr(source, "padding_mode", "zeros") == "circular"
    return grid.part(reach, stride, size), is_torus


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors among arguments or results of a function, in nested tuples and lists too."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors_in(part)
