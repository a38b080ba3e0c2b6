"""A network to measure: its arguments, their isometries, and the outputs of the network and its modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from escnn.group import GroupElement
from escnn.gspaces import GSpace, GSpace0D, GSpace2D, GSpace3D
from escnn.nn import EquivariantModule, FieldType, GeometricTensor
from torch import Tensor, nn

from ..checks import check_callable, check_integer, check_module, check_number, check_sequence, check_size
from ..group.points import centred_grid, support_window
from ..layer.arguments import check_field_type
from ..layer.relaxed_layer import RelaxedLayer
from ..network.relaxed_layers import first_module
from .forward_probe import ModuleOutput, OutputSelector, outputs
from .isometry import Isometry, PixelGrid, isometries_of, moved, on_fibers, rotation, shift

# Images, or a tuple of all arguments of the network, the images first.
Data: TypeAlias = "Tensor | GeometricTensor | tuple[Any, ...] | None"
Shifts = Sequence[tuple[int, ...]]

# Noise: images, the seed, and the width of the Gaussian of smooth noise in pixels. Cubic interpolation turns such noise
# at a cost of about a percent.
_BATCH, _SEED, _BLUR = 16, 0, 2.0
# Radians are told by their multiples of 2.5°, in float32 too, and as they are typed, 1.5708.
_STEP, _RADIANS_ERROR = 2.5, 1e-5
# The part of the radius of the inscribed circle or ball over which an image is faded.
_EDGE = 0.25


@dataclass(frozen=True)
class _Argument:
    """One argument of a network's forward pass."""

    value: Any  # a tensor where ``field_type`` is given, else anything
    field_type: FieldType | None = None  # None for what no isometry changes
    is_image: bool = False  # whether the value has pixels, (batch, C, …), which an isometry moves
    is_wrapped: bool = False  # whether the network takes it as a GeometricTensor

    def with_pixels(self, change: Callable[[Tensor], Tensor]) -> _Argument:
        """Return the argument with another image; unchanged if it has none."""
        return replace(self, value=change(self.value)) if self.is_image else self

    def carried(self, isometry: Isometry, source: PixelGrid, target: PixelGrid, on_torus: bool) -> _Argument:
        """Return the argument after an isometry, which acts on its channels and on the pixels of an image."""
        if self.field_type is None:
            return self
        turned = replace(self, value=on_fibers(self.value, self.field_type, isometry, "input"))
        return turned.with_pixels(lambda image: moved(image, source, target, isometry, on_torus)[0])


@dataclass(frozen=True)
class Pass:
    """The outputs of modules by name, for one isometry g of an input x."""

    isometry: Isometry
    before: dict[str, ModuleOutput]  # f(x)
    after: dict[str, ModuleOutput]  # f(gx)
    returned: dict[str, ModuleOutput]  # f(g⁻¹gx), f(x) where nothing is interpolated
    image: PixelGrid  # the pixels of x, none of a cloud
    on_torus: bool  # whether what g pushes out of x comes in again on the other side

    def description(self, name: str) -> tuple[str, str, float, str]:
        """Return the first columns of a module's row: name, subgroup and degrees of the isometry, and the kind."""
        return self.isometry.name, self.isometry.subgroup, self.isometry.degrees, self.kind(name)

    def kind(self, name: str) -> str:
        """Return "exact", "strided" or "interpolated", by the grids of all maps up to a module's output."""
        if not self.isometry.keeps_axes:
            return "interpolated"
        before, after = self.before[name], self.after[name]
        grids = zip((*before.passed, before.grid), (*after.passed, after.grid), strict=True)
        fits = all(a is None or b is None or a.is_carried_to(b, self.isometry) for a, b in grids)
        return "exact" if fits else "strided"


class MeasuredNetwork:
    """A network, an input for it, and the names of the modules to measure; to be used in eval mode."""

    _shifts = "tuples of pixels"

    def __init__(
        self,
        module: Any,
        input_size: Any,
        data: Data,
        in_type: FieldType | None,
        out_type: FieldType | None,
        layers: Sequence[str],
        output: OutputSelector = None,
    ) -> None:
        check_layers(module, layers)
        is_given = input_size is not None, data is not None
        if all(is_given):
            raise ValueError(f"give input_size or data, one of them; got input_size={input_size!r}")
        self._look_at(module, layers, output)
        images, *others = data if isinstance(data, tuple) and data else (data,)
        is_wrapped = isinstance(images, GeometricTensor)
        self._in_type = input_type_of(
            module, images.type if is_wrapped else in_type, "data" if is_wrapped else "in_type"
        )
        self.space = space = self._in_type.gspace
        # Vectors have no size.
        if not any(is_given) and space.dimensionality:
            raise ValueError(f"give input_size or data, one of them; got input_size={input_size!r}")
        self._out_type = None if out_type is None else check_field_type("out_type", out_type, type(space))
        if data is None:
            white, smooth = _noise(module, self._in_type, input_size)
        else:
            white = smooth = _batch(images, self._in_type)
        takes_fields = isinstance(first_module(module), EquivariantModule)
        first = _Argument(
            white, self._in_type, is_image=bool(space.dimensionality), is_wrapped=is_wrapped or takes_fields
        )
        further = [_argument_beside(white, value, space, number) for number, value in enumerate(others, start=1)]
        self._image = PixelGrid.of_image(*white.shape[2:])
        self._white, self._smooth = [first, *further], [replace(first, value=smooth), *further]

    def _look_at(self, module: nn.Module, layers: Sequence[str], output: OutputSelector) -> None:
        """Take the network, and the modules inside whose outputs are measured."""
        if output is not None:
            check_callable("output", output)
        self._module, self._layers, self._output = module, tuple(layers), output

    def isometries(
        self, elements: Sequence[GroupElement] | None, angles: Sequence[float], shifts: Shifts
    ) -> list[Isometry]:
        """Return the requested isometries, checked."""
        isometries = isometries_of(self.space, elements)
        if self.space.dimensionality == 0 and (len(angles) or len(shifts)):
            raise ValueError(
                f"angles and shifts must be left out for features without a base space, got {angles!r} and {shifts!r}: "
                f"name elements of {self.space.name}"
            )
        for angle in check_sequence("angles", angles, "numbers in degrees"):
            isometries.append(rotation(radians_of(angle), self.space.dimensionality))
        return isometries + [self._shift(pair) for pair in check_sequence("shifts", shifts, self._shifts)]

    def passes(
        self, elements: Sequence[GroupElement] | None, angles: Sequence[float], shifts: Shifts
    ) -> Iterator[Pass]:
        """Yield the outputs under each requested isometry, at least one."""
        isometries = self.isometries(elements, angles, shifts)
        if not isometries:
            raise ValueError(f"nothing to measure: {self.space.name} gives no elements; name angles or shifts")
        yield from map(self.transformed, isometries)

    def is_exact(self, isometry: Isometry) -> bool:
        """Return whether an isometry brings pixels of the input to pixels."""
        return isometry.keeps_axes

    def _shift(self, pixels: Any) -> Isometry:
        sides = self._image.size
        if not isinstance(pixels, (tuple, list)) or len(pixels) != len(sides):
            kinds = {2: "pairs of pixels (rows, columns)", 3: "triples of pixels (planes, rows, columns)"}[len(sides)]
            raise TypeError(f"shifts must be {kinds}, got {pixels!r}")
        steps = [check_integer("shifts", step, 1 - side) for step, side in zip(pixels, sides, strict=True)]
        if any(step >= side for step, side in zip(steps, sides, strict=True)):
            raise ValueError(f"shifts must be smaller than the image, {sides}, got {pixels!r}")
        return shift(*steps)

    def fields_of(self, output: ModuleOutput) -> FieldType | None:
        """Return the field type of an output; None for one without base space that should be invariant."""
        fields = self._out_type if output.field_type is None else output.field_type
        if fields is None and output.grid is not None:
            raise ValueError(
                f"out_type: the output is a plain tensor {tuple(output.tensor.shape)} and nothing says which fields "
                f"it holds; give out_type=FieldType(…), or measure a module inside that returns fields by layer="
            )
        return fields

    def transformed(self, isometry: Isometry) -> Pass:
        """Return the outputs for an input, for it after an isometry, and after the isometry and its inverse."""
        on_torus = isometry.subgroup == "translation"
        arguments, before = self._input(isometry)
        image, target = self._image, self._image.of_moved_image(isometry)
        there = [argument.carried(isometry, image, target, on_torus) for argument in arguments]
        returned = before
        if not isometry.keeps_axes:
            back = isometry.inverse()
            returned = self._outputs([argument.carried(back, target, image, on_torus) for argument in there])
        return Pass(isometry, before, self._outputs(there), returned, image, on_torus and _are_on_torus(before))

    def _input(self, isometry: Isometry) -> tuple[list[_Argument], dict[str, ModuleOutput]]:
        """Return the arguments on which an isometry is measured, and the network's outputs for them."""
        if not isometry.keeps_axes:
            return self._faded
        if isometry.subgroup != "translation" or _are_on_torus(self.whole):
            return self._white, self.whole
        kept = [a.with_pixels(lambda image: _inside_after_shift(image, isometry.pixels)) for a in self._white]
        return kept, self._outputs(kept)

    @cached_property
    def whole(self) -> dict[str, ModuleOutput]:
        """The outputs of the modules for the untransformed input."""
        return self._outputs(self._white)

    @cached_property
    def _faded(self) -> tuple[list[_Argument], dict[str, ModuleOutput]]:
        arguments = [argument.with_pixels(_times_window) for argument in self._smooth]
        return arguments, self._outputs(arguments)

    def _outputs(self, arguments: Sequence[_Argument]) -> dict[str, ModuleOutput]:
        # A network may change its input in place.
        copies = [a.value.clone() if isinstance(a.value, Tensor) else a.value for a in arguments]
        pairs = zip(arguments, copies, strict=True)
        values = [a.field_type(value) if a.is_wrapped and a.field_type else value for a, value in pairs]
        return outputs(self._module, values, self._layers, self._output)


def check_layers(module: Any, layers: Sequence[str]) -> None:
    """Raise unless the argument is a module with submodules of these names."""
    known = dict(check_module("module", module).named_modules())
    unknown = [name for name in layers if not isinstance(name, str) or name not in known]
    if unknown:
        # The parts of a relaxed layer give no output of the network.
        prefixes = tuple(f"{name}." for name, module in known.items() if isinstance(module, RelaxedLayer))
        names = [name for name in known if name and not name.startswith(prefixes)]
        raise ValueError(f"layer must be the name of a module inside, got {unknown[0]!r}; there are {names}")


def radians_of(degrees: Any) -> float:
    """Return an angle that was given in degrees, checked."""
    number = check_number("angles", degrees)
    if not math.isfinite(number):
        raise ValueError(f"angles must be finite numbers in degrees, got {degrees!r}")
    # 90° as 1.5708: nobody means a turn by 1.5708°.
    nearest = round(math.degrees(number) / _STEP)
    is_near = abs(number - math.radians(nearest * _STEP)) < _RADIANS_ERROR
    if nearest and abs(number) < math.tau + _RADIANS_ERROR and is_near:
        raise ValueError(f"angles must be in degrees, got {degrees!r}, which is {nearest * _STEP:g}° in radians")
    return math.radians(number)


def _are_on_torus(found: dict[str, ModuleOutput]) -> bool:
    return all(output.is_torus for output in found.values())


def input_type_of(network: nn.Module, given: Any, name: str) -> FieldType:
    """Return the fields of a network's input: those given, its own, or those of the first module inside with some."""
    known = (getattr(module, "in_type", None) for module in network.modules())
    found = next((field_type for field_type in known if isinstance(field_type, FieldType)), None)
    if given is None and found is None:
        kind = type(network).__name__
        raise ValueError(f"in_type: {kind} does not say which fields it takes; give in_type=FieldType(…)")
    in_type = check_field_type("in_type", found if given is None else given, GSpace2D, GSpace3D, GSpace0D)
    own = getattr(network, "in_type", None)
    if isinstance(network, EquivariantModule) and isinstance(own, FieldType) and own != in_type:
        raise ValueError(f"{name}: the fields must be those of the module, {own}, got {in_type}")
    return in_type


def _batch(data: Any, in_type: FieldType) -> Tensor:
    """Return the images of a batch, checked."""
    tensor = data.tensor if isinstance(data, GeometricTensor) else data
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise TypeError(f"data must be a floating-point tensor or GeometricTensor, got {type(data).__name__}")
    dimension = in_type.gspace.dimensionality
    if tensor.dim() != 2 + dimension or tensor.shape[1] != in_type.size or not tensor.numel():
        sides = ", ".join([str(in_type.size), *"DHW"[3 - dimension :]])
        raise ValueError(
            f"data must be (batch, {sides}), got {tuple(tensor.shape)}: the channels of {in_type}, "
            f"which are the fields of the first module inside that has some unless in_type= names those of the input"
        )
    return tensor


def _argument_beside(images: Tensor, value: Any, gspace: GSpace, number: int) -> _Argument:
    """Return a further argument beside the images (batch, C, …): fields and images transform, others do not."""
    size = images.shape[2:]
    if isinstance(value, Tensor) and value.shape[2:] == size and size:
        return _Argument(value, FieldType(gspace, value.shape[1] * [gspace.trivial_repr]), is_image=True)
    if not isinstance(value, GeometricTensor):
        return _Argument(value)
    shape = tuple(value.tensor.shape)
    if shape[2:] != tuple(size) and math.prod(shape[2:]) != 1:
        raise ValueError(f"data[{number}] must have {tuple(size)} pixels as data[0] has, or one, got {shape}")
    return _Argument(value.tensor, value.type, bool(size) and shape[2:] == tuple(size), is_wrapped=True)


def _noise(module: nn.Module, in_type: FieldType, input_size: Any) -> tuple[Tensor, Tensor]:
    """Return white and smooth noise of unit variance for a module, (16, C, …) each, the same in every call."""
    dimension = in_type.gspace.dimensionality
    size = check_size("input_size", input_size, dimension) if dimension else ()
    # Measuring draws no random numbers of a training.
    generator = torch.Generator().manual_seed(_SEED)
    floats: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
    white = torch.randn(_BATCH, in_type.size, *size, generator=generator, **floats)
    tensors = (*module.parameters(), *module.buffers(), torch.zeros(()))
    like = next(tensor for tensor in tensors if tensor.is_floating_point())
    if not size:
        return white.to(like), white.to(like)
    axes = tuple(range(2, white.dim()))
    frequencies = torch.stack(torch.meshgrid(*(torch.fft.fftfreq(count, **floats) for count in size), indexing="ij"))
    response = torch.exp(-2 * (math.pi * _BLUR) ** 2 * frequencies.square().sum(0))
    smooth = torch.fft.ifftn(torch.fft.fftn(white, dim=axes) * response, dim=axes).real
    smooth = smooth / smooth.square().mean().sqrt()
    return white.to(like), smooth.to(like)


def _times_window(images: Tensor) -> Tensor:
    """Return images (batch, C, …) that fall as cos² to 0 on the circle of the outermost pixels, of volumes the ball."""
    size = images.shape[2:]
    radius = max(min(size) - 1, 1) / 2
    window = support_window(centred_grid(size), radius, _EDGE * radius).reshape(size)
    return images * torch.from_numpy(window).to(images)


def _inside_after_shift(images: Tensor, pixels: Sequence[int]) -> Tensor:
    """Return images (batch, C, …) with 0 where a shift by pixels along their axes would push them out."""
    kept = torch.zeros_like(images)
    sides = zip(pixels, images.shape[2:], strict=True)
    inside = [slice(max(0, -steps), max(0, size - max(0, steps))) for steps, size in sides]
    everywhere = slice(None), slice(None), *inside
    kept[everywhere] = images[everywhere]
    return kept
