"""The outputs of a network's modules in a forward pass, and the strides that their feature maps have seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

from ..group.points import image_axes
from ..integral.geometry import Geometry, TransposedGeometry
from .isometry import TOLERANCE, Array, Isometry, PixelGrid

# A function that picks the tensor to look at from the return value of a module.
Output: TypeAlias = Callable[[Any], Tensor | GeometricTensor] | None


@dataclass(frozen=True)
class Step:
    """A module that slides a window over a feature map."""

    grid: PixelGrid  # of its output
    offset: Array  # middle of the output from that of the input, (x, y, …); not 0 where the stride does not fit
    keeps_torus: bool  # whether shifts of a torus stay shifts

    def fits(self, moved: Step, isometry: Isometry) -> bool:
        """Return whether an isometry of the image moves the output to that of ``moved``, pixel to pixel or between."""
        is_centred = np.allclose(isometry.matrix @ self.offset, moved.offset, rtol=0, atol=TOLERANCE)
        return is_centred and (not isometry.keeps_axes or self.grid.is_carried_to(moved.grid, isometry))


@dataclass(frozen=True)
class ModuleOutput:
    """The output of a module, and the pixels of it."""

    tensor: Tensor  # (batch, C, …)
    field_type: FieldType | None  # that of a GeometricTensor
    grid: PixelGrid | None  # None without the dimensions of the image
    steps: tuple[Step, ...]  # of all modules up to this one
    input: GeometricTensor | None  # what the module was called with, where that is one


class _Grids(dict[tuple[int, ...], PixelGrid]):
    """The pixels of feature maps by their size: of two maps of one size those of the later one."""

    def __init__(self, image: PixelGrid) -> None:
        super().__init__({image.size: image})
        self._image = image

    def __missing__(self, size: tuple[int, ...]) -> PixelGrid:
        return self._image.resized(size)


def outputs(
    network: nn.Module, arguments: Sequence[Any], names: Sequence[str], output: Output = None
) -> dict[str, ModuleOutput]:
    """Return the outputs of some modules by name, ``""`` for the network itself; the first argument is the image."""
    image = _tensor(arguments[0])
    grids, steps = _Grids(PixelGrid.of_image(*image.shape[2:])), list[Step]()
    found: dict[str, ModuleOutput] = {}

    def is_map(value: Any) -> bool:
        return isinstance(value, (Tensor, GeometricTensor)) and _tensor(value).dim() == image.dim()

    def follow(module: nn.Module, inputs: Any, returned: Any) -> None:
        if inputs and is_map(inputs[0]) and is_map(returned):
            source, size = (tuple(_tensor(value).shape[2:]) for value in (inputs[0], returned))
            step = _step(module, grids[source], size)
            if step is not None:
                steps.append(step)
                grids[size] = step.grid
            elif size not in grids:
                grids[size] = grids[source].resized(size)

    def keep(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, returned: Any) -> None:
            picked = _picked(returned, output, name)
            tensor = _tensor(picked)
            field_type = picked.type if isinstance(picked, GeometricTensor) else None
            grid = grids[tuple(tensor.shape[2:])] if is_map(picked) else None
            taken = inputs[0] if inputs and isinstance(inputs[0], GeometricTensor) else None
            found[name] = ModuleOutput(tensor, field_type, grid, tuple(steps), taken)

        return hook

    modules = dict(network.named_modules())
    hooks = [module.register_forward_hook(follow) for module in modules.values()]
    hooks += [modules[name].register_forward_hook(keep(name)) for name in names]
    try:
        # A compiled module would hide the modules inside.
        with torch.compiler.set_stance("force_eager"):
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
    source = f"{name!r} returns" if output is None else "output gives"
    hint = ": pick a tensor of it by output=lambda returned: …" if output is None else ""
    raise TypeError(f"output: it must be a tensor or a GeometricTensor, {source} a {type(picked).__name__}{hint}")


def _step(module: nn.Module, grid: PixelGrid, size: tuple[int, ...]) -> Step | None:
    """Return the step of a module from a map to one of another size, None where it slides no window."""
    geometry = getattr(module, "geometry", None)
    source: Any = geometry if isinstance(geometry, Geometry) else module
    if not all(hasattr(source, name) for name in ("kernel_size", "stride", "padding")):
        return None

    def along_axes(value: Any) -> Array:
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
    before, after, spacing = np.array(grid.size), np.array(size), np.array(grid.spacing)
    if isinstance(source, (TransposedGeometry, R2ConvTransposed, R3ConvTransposed, _ConvTransposeNd)):
        spacing = spacing / stride
        offset = spacing * (after - stride * (before - 1) - extent + 2 * padding) / 2
        # Whether all that a pixel would have added to it on the torus comes from pixels of the image.
        keeps_torus = bool((padding - along_axes(source.output_padding) >= extent - stride).all())
    else:
        offset = spacing * (stride * (after - 1) + extent - 2 * padding - before) / 2
        spacing = spacing * stride
        keeps_torus = not padding.any() or getattr(source, "padding_mode", "zeros") == "circular"
    return Step(PixelGrid(size, tuple(spacing.tolist())), offset @ image_axes(len(size)), keeps_torus)


def _tensor(value: Tensor | GeometricTensor) -> Tensor:
    tensor: Tensor = value.tensor if isinstance(value, GeometricTensor) else value
    return tensor
