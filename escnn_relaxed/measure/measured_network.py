"""A network that is measured: what goes in, what is done to it, and what comes out of it and of modules inside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from escnn.group import GroupElement
from escnn.nn import EquivariantModule, FieldType, GeometricTensor
from torch import Tensor

from ..checks import check_callable, check_integer, check_module, check_sequence, is_number
from ..layer.arguments import check_field_type
from .field_action import input_type, isometries_of, on_fibers, takes_geometric_tensor
from .forward_probe import ModuleOutput, Output, inputs_of, outputs
from .input_images import faded, noise, without_what_leaves
from .pixel_grid import Isometry, PixelGrid, moved, rotation, shift

__all__ = ["Data", "MeasuredNetwork", "Pass", "Shifts"]

Data: TypeAlias = "Tensor | GeometricTensor | None"
Shifts = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Pass:
    """What came out by name of a module, for one isometry g.

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
        """How pixels go to pixels up to a module's output.

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
        input_size: of noise, or None.
        data: a batch, or None.
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
        self._takes_fields = takes_geometric_tensor(module, data)
        self._in_type = input_type(module, data.type if isinstance(data, GeometricTensor) else in_type)
        self._check_fields(data)
        self._out_type = None if out_type is None else check_field_type("out_type", out_type)
        if data is None:
            self._white, self._smooth = noise(module, self._in_type.size, input_size)
        else:
            self._white = self._smooth = _batch(data, self._in_type)
        self._known: dict[str, dict[str, ModuleOutput]] = {}

    def _check_fields(self, data: Data) -> None:
        """An escnn module says itself which fields it takes."""
        own = getattr(self._module, "in_type", None)
        if isinstance(self._module, EquivariantModule) and isinstance(own, FieldType) and own != self._in_type:
            name = "data" if isinstance(data, GeometricTensor) else "in_type"
            raise ValueError(f"{name}: the fields must be those of the module, {own}, got {self._in_type}")

    def isometries(
        self, elements: Sequence[GroupElement] | None, angles: Sequence[float], shifts: Shifts
    ) -> list[Isometry]:
        """What is asked for, checked.

        Raises:
            TypeError: for an element of another group, an angle that is no number, a shift that is no pair of integers.
            ValueError: for a shift by more than the image.
        """
        isometries = isometries_of(self._in_type.gspace, elements)
        for angle in check_sequence("angles", angles, "numbers in radians"):
            if not is_number(angle) or not math.isfinite(angle):
                raise TypeError(f"angles must be finite numbers in radians, got {angle!r}")
            isometries.append(rotation(angle))
        return isometries + [self._shift(pair) for pair in check_sequence("shifts", shifts, "pairs of pixels")]

    def required_isometries(
        self, elements: Sequence[GroupElement] | None, angles: Sequence[float], shifts: Shifts
    ) -> list[Isometry]:
        """The same, at least one.

        Raises:
            ValueError: if there is none, and as :meth:`isometries`.
        """
        isometries = self.isometries(elements, angles, shifts)
        if not isometries:
            raise ValueError(
                f"nothing to measure: {self._in_type.gspace.name} gives no elements; name angles or shifts"
            )
        return isometries

    def _shift(self, pair: Any) -> Isometry:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"shifts must be pairs of pixels (rows, columns), got {pair!r}")
        sides = self._white.shape[-2:]
        rows, columns = (check_integer("shifts", pixels, 1 - side) for pixels, side in zip(pair, sides, strict=True))
        if rows >= sides[0] or columns >= sides[1]:
            raise ValueError(f"shifts must be smaller than the image, {tuple(sides)}, got {pair!r}")
        return shift(rows, columns)

    def knows_fields_of(self, found: ModuleOutput) -> bool:
        """Whether it is known what an output should do; one without space should not change."""
        return found.grid is None or found.field_type is not None or self._out_type is not None

    def fields_of(self, found: ModuleOutput) -> FieldType | None:
        """The fields of an output, None for one without space.

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
        """The network before and after an isometry, and there and back."""
        on_torus = isometry.subgroup == "translation"
        is_exact = isometry.keeps_axes
        features, before = self._input(isometry)
        image = PixelGrid(features.shape[2], features.shape[3])
        target = image.of_moved_image(isometry)
        there, _ = moved(on_fibers(features, self._in_type, isometry, "input"), image, target, isometry, on_torus)
        returned = before
        if not is_exact:
            back = isometry.inverse()
            again, _ = moved(on_fibers(there, self._in_type, back, "input"), target, image, back, on_torus)
            returned = self._outputs(again)
        wraps = on_torus and all(found.is_torus for found in before.values())
        return Pass(isometry, before, self._outputs(there), returned, image, is_exact, wraps)

    def _input(self, isometry: Isometry) -> tuple[Tensor, dict[str, ModuleOutput]]:
        """The images on which an isometry is measured, and the network's outputs to them.

        Smooth and faded where the isometry interpolates; without the pixels that a shift would push out.
        """
        if not isometry.keeps_axes:
            return self._remembered("faded", faded(self._smooth))
        features, before = self._remembered("whole", self._white)
        if isometry.subgroup != "translation" or all(found.is_torus for found in before.values()):
            return features, before
        kept = without_what_leaves(features, round(-isometry.translation[1]), round(isometry.translation[0]))
        return kept, self._outputs(kept)

    def _remembered(self, name: str, features: Tensor) -> tuple[Tensor, dict[str, ModuleOutput]]:
        if name not in self._known:
            self._known[name] = self._outputs(features)
        return features, self._known[name]

    def inputs(self) -> dict[str, GeometricTensor]:
        """What reaches the modules, for those that are called with a GeometricTensor."""
        return inputs_of(self._module, self._wrapped(self._white), self._layers)

    def _outputs(self, features: Tensor) -> dict[str, ModuleOutput]:
        return outputs(self._module, self._wrapped(features), self._layers, self._output)

    def _wrapped(self, features: Tensor) -> Tensor | GeometricTensor:
        return self._in_type(features) if self._takes_fields else features


def _batch(data: Any, in_type: FieldType) -> Tensor:
    tensor = data.tensor if isinstance(data, GeometricTensor) else data
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise TypeError(f"data must be a floating-point tensor or GeometricTensor, got {type(data).__name__}")
    if tensor.dim() != 4 or tensor.shape[1] != in_type.size or not tensor.numel():
        raise ValueError(
            f"data must be (batch, {in_type.size}, H, W), got {tuple(tensor.shape)}: the channels of {in_type}, which "
            f"are the fields of the first module inside that has some unless in_type= names those of the input"
        )
    return tensor
