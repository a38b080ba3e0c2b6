"""A network that is measured: its arguments, the isometries of them, and the outputs of it and of modules inside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from escnn.group import GroupElement
from escnn.nn import EquivariantModule, FieldType, GeometricTensor
from torch import Tensor, nn

from ..checks import check_callable, check_integer, check_module, check_sequence, is_number
from ..layer.arguments import check_field_type
from .field_action import input_type, isometries_of, takes_geometric_tensor
from .forward_probe import ModuleOutput, Output, outputs
from .input_images import Argument, argument_beside, faded, noise, without_what_leaves
from .isometry import Isometry, rotation, shift
from .pixel_grid import PixelGrid

__all__ = ["Data", "MeasuredNetwork", "Pass", "Shifts"]

# Images, or a tuple of all arguments of the network, the images first.
Data: TypeAlias = "Tensor | GeometricTensor | tuple[Any, ...] | None"
Shifts = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Pass:
    """The outputs of modules by name, for one isometry g.

    Attributes:
        isometry: g.
        before: f(x).
        after: f(gx).
        returned: f(g⁻¹gx), f(x) where nothing is interpolated.
        image: the grid of x.
        is_exact: whether pixels of x go to pixels.
        on_torus: whether what g pushes out of x comes in again on the other side.
    """

    isometry: Isometry
    before: dict[str, ModuleOutput]
    after: dict[str, ModuleOutput]
    returned: dict[str, ModuleOutput]
    image: PixelGrid
    is_exact: bool
    on_torus: bool

    def kind(self, name: str) -> str:
        """Return how pixels go to pixels up to a module's output.

        ``"exact"`` in every map, ``"strided"`` in x alone, ``"interpolated"`` not even there.
        """
        if not self.is_exact:
            return "interpolated"
        before, after = self.before[name], self.after[name]
        grids = zip((*before.passed, before.grid), (*after.passed, after.grid), strict=True)
        fits = all(a is None or b is None or a.is_carried_to(b, self.isometry) for a, b in grids)
        return "exact" if fits else "strided"


class MeasuredNetwork:
    """A network, an input for it, and the modules whose outputs are looked at; to be used in eval mode.

    Args:
        module: the network.
        input_size: height and width of noise, depth before them of volumes, or None.
        data: a batch, a tuple of all arguments that starts with one, or None.
        in_type: fields of the input, where the network does not say.
        out_type: fields of outputs that are plain maps.
        layers: names of the modules, ``""`` for the network.
        output: what picks the tensor of what they return, if they return more.
    """

    def __init__(
        self,
        module: Any,
        input_size: Any,
        data: Data,
        in_type: FieldType | None,
        out_type: FieldType | None,
        layers: Sequence[str],
        output: Output = None,
    ) -> None:
        check_module("module", module)
        known = dict(module.named_modules())
        unknown = [name for name in layers if not isinstance(name, str) or name not in known]
        if unknown:
            names = [name for name, _ in module.named_modules() if name]
            raise ValueError(f"layer must be the name of a module inside, got {unknown[0]!r}; there are {names}")
        if (input_size is None) == (data is None):
            raise ValueError(f"give input_size or data, one of them; got input_size={input_size!r}")
        self._module = module
        self._layers = tuple(layers)
        if output is not None:
            check_callable("output", output)
        self._output = output
        images, *others = data if isinstance(data, tuple) and data else (data,)
        self._in_type = input_type(module, images.type if isinstance(images, GeometricTensor) else in_type)
        _check_fields(module, self._in_type, "data" if isinstance(images, GeometricTensor) else "in_type")
        space = self._in_type.gspace
        self._dimension = space.dimensionality
        self._out_type = None if out_type is None else check_field_type("out_type", out_type, type(space))
        if data is None:
            white, smooth = noise(module, self._in_type, input_size)
        else:
            white = smooth = _batch(images, self._in_type)
        first = Argument(white, self._in_type, is_image=True, is_wrapped=takes_geometric_tensor(module, images))
        rest = [argument_beside(white, value, space, place) for place, value in enumerate(others, start=1)]
        self._image = PixelGrid.of_image(*white.shape[2:])
        self._white, self._smooth = (first, *rest), (replace(first, value=smooth), *rest)
        self._known: dict[str, dict[str, ModuleOutput]] = {}

    def isometries(
        self, elements: Sequence[GroupElement] | None, angles: Sequence[float], shifts: Shifts
    ) -> list[Isometry]:
        """Return the isometries that are asked for, checked.

        Raises:
            TypeError: for an element of another group, an angle that is no number, a shift that is no tuple of as many
                integers as the image has axes.
            ValueError: for a shift by more than the image.
        """
        isometries = isometries_of(self._in_type.gspace, elements)
        for angle in check_sequence("angles", angles, "numbers in radians"):
            if not is_number(angle) or not math.isfinite(angle):
                raise TypeError(f"angles must be finite numbers in radians, got {angle!r}")
            isometries.append(rotation(angle, self._dimension))
        return isometries + [self._shift(pair) for pair in check_sequence("shifts", shifts, "tuples of pixels")]

    def required_isometries(
        self, elements: Sequence[GroupElement] | None, angles: Sequence[float], shifts: Shifts
    ) -> list[Isometry]:
        """Return the same, at least one.

        Raises:
            ValueError: if there is none, and as :meth:`isometries`.
        """
        isometries = self.isometries(elements, angles, shifts)
        if not isometries:
            raise ValueError(
                f"nothing to measure: {self._in_type.gspace.name} gives no elements; name angles or shifts"
            )
        return isometries

    def _shift(self, pixels: Any) -> Isometry:
        sides = self._image.size
        if not isinstance(pixels, (tuple, list)) or len(pixels) != len(sides):
            kinds = {2: "pairs of pixels (rows, columns)", 3: "triples of pixels (planes, rows, columns)"}[len(sides)]
            raise TypeError(f"shifts must be {kinds}, got {pixels!r}")
        steps = [check_integer("shifts", step, 1 - side) for step, side in zip(pixels, sides, strict=True)]
        if any(step >= side for step, side in zip(steps, sides, strict=True)):
            raise ValueError(f"shifts must be smaller than the image, {sides}, got {pixels!r}")
        return shift(*steps)

    def knows_fields_of(self, found: ModuleOutput) -> bool:
        """Return whether the fields of an output are known; one without space has none and should not change."""
        return found.grid is None or found.field_type is not None or self._out_type is not None

    def fields_of(self, found: ModuleOutput) -> FieldType | None:
        """Return the fields of an output, None for one without space.

        Raises:
            ValueError: if nothing says what they are.
        """
        if not self.knows_fields_of(found):
            raise ValueError(
                f"out_type: the output is a plain tensor {tuple(found.tensor.shape)} and nothing says which fields "
                f"it holds; give out_type=FieldType(…)"
            )
        return self._out_type if found.field_type is None else found.field_type

    def transformed(self, isometry: Isometry) -> Pass:
        """Run the network before an isometry, after it, and after it and its inverse."""
        on_torus = isometry.subgroup == "translation"
        is_exact = isometry.keeps_axes
        arguments, before = self._input(isometry)
        image, target = self._image, self._image.of_moved_image(isometry)
        there = [argument.carried(isometry, image, target, on_torus) for argument in arguments]
        returned = before
        if not is_exact:
            back = isometry.inverse()
            returned = self._outputs([argument.carried(back, target, image, on_torus) for argument in there])
        wraps = on_torus and all(found.is_torus for found in before.values())
        return Pass(isometry, before, self._outputs(there), returned, image, is_exact, wraps)

    def _input(self, isometry: Isometry) -> tuple[Sequence[Argument], dict[str, ModuleOutput]]:
        """Return the arguments on which an isometry is measured, and the network's outputs to them.

        Smooth and faded where the isometry interpolates; without the pixels that a shift would push out.
        """
        if not isometry.keeps_axes:
            return self._remembered("faded", [argument.with_pixels(faded) for argument in self._smooth])
        arguments, before = self._remembered("whole", self._white)
        if isometry.subgroup != "translation" or all(found.is_torus for found in before.values()):
            return arguments, before
        kept = [a.with_pixels(lambda image: without_what_leaves(image, isometry.pixels)) for a in arguments]
        return kept, self._outputs(kept)

    def _remembered(
        self, name: str, arguments: Sequence[Argument]
    ) -> tuple[Sequence[Argument], dict[str, ModuleOutput]]:
        if name not in self._known:
            self._known[name] = self._outputs(arguments)
        return arguments, self._known[name]

    def inputs(self) -> dict[str, GeometricTensor]:
        """Return what reaches the modules, for those that are called with a GeometricTensor."""
        return {name: found.input for name, found in self._outputs(self._white).items() if found.input is not None}

    def _outputs(self, arguments: Sequence[Argument]) -> dict[str, ModuleOutput]:
        return outputs(self._module, [argument.passed() for argument in arguments], self._layers, self._output)


def _check_fields(module: nn.Module, in_type: FieldType, name: str) -> None:
    """Refuse other fields than those that an escnn module says it takes."""
    own = getattr(module, "in_type", None)
    if isinstance(module, EquivariantModule) and isinstance(own, FieldType) and own != in_type:
        raise ValueError(f"{name}: the fields must be those of the module, {own}, got {in_type}")


def _batch(data: Any, in_type: FieldType) -> Tensor:
    """Return the images of a batch, checked."""
    tensor = data.tensor if isinstance(data, GeometricTensor) else data
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise TypeError(f"data must be a floating-point tensor or GeometricTensor, got {type(data).__name__}")
    dimension = in_type.gspace.dimensionality
    if tensor.dim() != 2 + dimension or tensor.shape[1] != in_type.size or not tensor.numel():
        sides = ", ".join("DHW"[-dimension:])
        raise ValueError(
            f"data must be (batch, {in_type.size}, {sides}), got {tuple(tensor.shape)}: the channels of {in_type}, "
            f"which are the fields of the first module inside that has some unless in_type= names those of the input"
        )
    return tensor
