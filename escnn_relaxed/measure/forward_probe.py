"""The outputs of a network's modules in a forward pass, and where the pixels of their feature maps lie."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
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
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from ..group.points import image_axes
from ..integral.geometry import Geometry, TransposedGeometry
from ..network.modes import in_eval_mode
from .pixel_grid import PixelGrid

__all__ = ["ModuleOutput", "Output", "evaluated", "outputs"]


# A function that picks the tensor to look at from the return value of a module.
Output: TypeAlias = Callable[[Any], Tensor | GeometricTensor] | None


@dataclass(frozen=True)
class ModuleOutput:
    """The output of a module.

    Attributes:
        tensor: (batch, C, …).
        field_type: that of a GeometricTensor, else None.
        grid: where its pixels lie; None without the dimensions of the image.
        passed: the grids that modules up to this one have made, in their order.
        is_torus: whether what these modules pad is padded circularly.
        input: what the module was called with, where that is a GeometricTensor.
    """

    tensor: Tensor
    field_type: FieldType | None
    grid: PixelGrid | None
    passed: tuple[PixelGrid, ...]
    is_torus: bool
    input: GeometricTensor | None


@contextlib.contextmanager
def evaluated(network: nn.Module) -> Iterator[None]:
    """Hold a network in eval mode, without gradients."""
    with in_eval_mode(network), torch.no_grad():
        yield


def outputs(
    network: nn.Module, arguments: Sequence[Any], names: Sequence[str], output: Output = None
) -> dict[str, ModuleOutput]:
    """Return the outputs of some modules by name, ``""`` for the network itself, of one forward pass.

    The first of the arguments is the image. ``output`` picks the tensor of what modules return; by default it is one.

    Strides, kernels and paddings of all modules say where pixels lie; functions in between leave them there, or keep
    the centre where they change the size.

    Raises:
        ValueError: for a module that the forward pass does not call.
        TypeError: for an output that is no tensor.
    """
    grids = _Grids(_tensor(arguments[0]))
    passed: list[PixelGrid] = []
    is_torus = True
    found: dict[str, ModuleOutput] = {}

    def follow(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal is_torus
        if not (inputs and grids.is_map(inputs[0]) and grids.is_map(output)):
            return
        source, target = _tensor(inputs[0]), _tensor(output)
        window = _window(module, grids.dimension)
        if window is None:
            # The module may take maps apart inside, where functions of torch do not see the whole.
            grids.inherit([source], target)
        else:
            passed.append(_after(grids[source], window, tuple(target.shape[2:])))
            grids[target] = passed[-1]
            is_torus = is_torus and window.is_torus

    def keep(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, returned: Any) -> None:
            picked = _picked(returned, output, name)
            field_type = picked.type if isinstance(picked, GeometricTensor) else None
            grid = grids[_tensor(picked)] if grids.is_map(picked) else None
            taken = inputs[0] if inputs and isinstance(inputs[0], GeometricTensor) else None
            found[name] = ModuleOutput(_tensor(picked), field_type, grid, tuple(passed), is_torus, taken)

        return hook

    modules = dict(network.named_modules())
    hooks = [module.register_forward_hook(follow) for module in modules.values()]
    hooks += [modules[name].register_forward_hook(keep(name)) for name in names]
    try:
        # A compiled module would hide functions from the grids, and the hooks are not for compilation.
        with torch.compiler.set_stance("force_eager"), grids:
            network(*arguments)
    finally:
        for hook in hooks:
            hook.remove()
    for name in names:
        if name not in found:
            raise ValueError(f"layer: {name!r} is not called in the forward pass of {type(network).__name__}")
    return found


def _picked(returned: Any, output: Output, name: str) -> Tensor | GeometricTensor:
    """Return the tensor that is looked at of what a module returned."""
    picked = returned if output is None else output(returned)
    if isinstance(picked, (Tensor, GeometricTensor)):
        return picked
    what = f"{name!r} returns" if output is None else "output gives"
    hint = ""
    if isinstance(picked, Mapping):
        hint = f" with the keys {list(picked)}: pick one by output=lambda returned: returned[…]"
    elif isinstance(picked, (tuple, list)):
        hint = f" of {len(picked)}: pick one by output=lambda returned: returned[0]"
    elif output is None:
        hint = ": pick a tensor of it by output="
    raise TypeError(f"output: it must be a tensor or a GeometricTensor, {what} a {type(picked).__name__}{hint}")


class _Grids(TorchFunctionMode):
    """The grids of the tensors of a forward pass, passed on by all functions of torch while it is entered.

    Args:
        image: the input (batch, C, H, W) or (batch, C, D, H, W), whose pixels are those of the image.

    Attributes:
        dimension: of the image.
    """

    def __init__(self, image: Tensor) -> None:
        super().__init__()
        self.dimension = image.dim() - 2
        self._image = PixelGrid.of_image(*self._size(image))
        self._known: MutableMapping[Tensor, PixelGrid] = WeakTensorKeyDictionary()
        self._known[image] = self._image

    def __getitem__(self, tensor: Tensor) -> PixelGrid:
        return self._known.get(tensor) or self._image.resized(self._size(tensor))

    def __setitem__(self, tensor: Tensor, grid: PixelGrid) -> None:
        self._known[tensor] = grid

    def is_map(self, value: Any) -> bool:
        """Return whether a value is a feature map (batch, C, …) with the dimensions of the image."""
        return isinstance(value, (Tensor, GeometricTensor)) and _tensor(value).dim() == 2 + self.dimension

    def _size(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(tensor.shape[-self.dimension :])

    def inherit(self, sources: Sequence[Tensor], result: Tensor) -> None:
        """Put a new tensor where those that it was made of lie, first of all one of its own size."""
        known = [source for source in sources if source in self._known]
        if result.dim() < 2 + self.dimension or result in self._known or not known:
            return
        size = self._size(result)
        alike = (source for source in known if self._size(source) == size)
        self._known[result] = self._known[next(alike, known[0])].resized(size)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = list(_tensors_in(result))
        if made:
            sources = list(_tensors_in((args, tuple((kwargs or {}).values()))))
            for tensor in made:
                self.inherit(sources, tensor)
        return result


@dataclass(frozen=True)
class _Window:
    """The window that a module slides over the image, along each of its axes.

    Attributes:
        extent: pixels from the first to the last that the kernel covers.
        stride: from one place of the window to the next.
        padding: pixels before the first of the image.
        is_transposed: whether it is a transposed convolution, whose stride is that of its output.
        is_torus: whether a map on the torus stays one: circular padding, or none; where the kernel of a transposed
            convolution does not reach beyond the output.
    """

    extent: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    is_transposed: bool
    is_torus: bool


def _window(module: nn.Module, dimension: int) -> _Window | None:
    """Return the window of a module that slides one over the image, None for others."""
    geometry = getattr(module, "geometry", None)
    source: Any = geometry if isinstance(geometry, Geometry) else module
    if not all(hasattr(source, name) for name in ("kernel_size", "stride", "padding")):
        return None

    def along_axes(value: Any) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, (tuple, list)) else dimension * (value,)

    kernel, stride = along_axes(source.kernel_size), along_axes(source.stride)
    if len(kernel) != dimension:
        return None
    dilation = along_axes(getattr(source, "dilation", 1))
    extent = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    if source.padding == "same":
        padding = tuple((e - 1) // 2 for e in extent)
    else:
        padding = along_axes(0 if source.padding == "valid" else source.padding)
    if isinstance(module, (PointwiseMaxPoolAntialiased2D, PointwiseMaxPoolAntialiased3D)):
        # A blur with the stride follows on a maximum without one.
        extent = tuple(e + module.filter.shape[-1] - 1 for e in extent)
        padding = tuple(p + q for p, q in zip(padding, module._pad, strict=True))
    is_transposed = isinstance(source, (TransposedGeometry, R2ConvTransposed, R3ConvTransposed, _ConvTransposeNd))
    if is_transposed:
        # Whether all that a pixel would have added to it on the torus comes from pixels of the image.
        cut = [p - q for p, q in zip(padding, along_axes(source.output_padding), strict=True)]
        is_torus = all(c >= e - s for c, e, s in zip(cut, extent, stride, strict=True))
    else:
        is_torus = not any(padding) or getattr(source, "padding_mode", "zeros") == "circular"
    return _Window(extent, stride, padding, is_transposed, is_torus)


def _after(grid: PixelGrid, window: _Window, size: tuple[int, ...]) -> PixelGrid:
    """Return the grid of a window's output, of a size in pixels, where that of its input is ``grid``."""
    counts, sizes, steps = np.array(grid.size), np.array(size), np.array(grid.spacing)
    stride = np.array(window.stride)
    reach = (np.array(window.extent) - 1) / 2 - np.array(window.padding)
    if window.is_transposed:
        spacing = steps / stride
        middle = ((sizes - 1) / 2 - (stride * (counts - 1) / 2 + reach)) * spacing
    else:
        spacing = steps * stride
        middle = (reach + stride * (sizes - 1) / 2 - (counts - 1) / 2) * steps
    centre = np.array(grid.centre) + middle @ image_axes(len(size))
    return PixelGrid(size, tuple(spacing.tolist()), tuple(centre.tolist()))


def _tensor(value: Tensor | GeometricTensor) -> Tensor:
    tensor: Tensor = value.tensor if isinstance(value, GeometricTensor) else value
    return tensor


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors among arguments or results of a function, in nested tuples and lists too."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors_in(part)
