"""A network of clouds that is measured: coordinates turn with the fields, so that nothing is interpolated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn

from ..checks import check_number, check_sequence
from ..layer.arguments import check_field_type
from ..layer.relaxed_point_conv import PointConvolution
from ..on_escnn.point_sampler import POINT_CONVOLUTIONS
from .forward_probe import ModuleOutput, OutputSelector, outputs
from .isometry import Isometry, PixelGrid, on_fibers
from .measured_network import Data, MeasuredNetwork, Pass, check_layers, input_type_of

_NO_PIXELS = PixelGrid((), (), ())


@dataclass(frozen=True)
class _CloudPass(Pass):
    """The outputs for one isometry of a cloud, whose points go to points."""

    def kind(self, name: str) -> str:
        """Return that the outputs are exact."""
        return "exact"


class MeasuredCloud(MeasuredNetwork):
    """A network, a cloud with edges for it, and the names of the modules whose outputs are looked at."""

    _shifts = "tuples of numbers"

    def __init__(
        self,
        module: nn.Module,
        data: tuple[Any, ...],
        out_type: FieldType | None,
        layers: Sequence[str],
        output: OutputSelector = None,
    ) -> None:
        check_layers(module, layers)
        self._look_at(module, layers, output)
        cloud = data[0]
        if not cloud.tensor.numel():
            raise ValueError(f"data must have a node, got a cloud {tuple(cloud.tensor.shape)}")
        self._in_type = input_type_of(module, cloud.type, "data")
        self.space = self._in_type.gspace
        self._out_type = None if out_type is None else check_field_type("out_type", out_type, type(self.space))
        self._data = data

    def is_exact(self, isometry: Isometry) -> bool:
        """Return that every isometry brings points to points."""
        return True

    def _shift(self, steps: Any) -> Isometry:
        axes = self.space.dimensionality
        numbers = [check_number("shifts", step) for step in check_sequence("shifts", steps, self._shifts)]
        if len(numbers) != axes:
            raise ValueError(f"shifts of a cloud must be {axes} numbers (x, y, …), got {steps!r}")
        name = f"shift {', '.join(f'{step:g}' for step in numbers)}"
        return Isometry(name, "translation", np.eye(axes), np.array(numbers))

    @cached_property
    def whole(self) -> dict[str, ModuleOutput]:
        """The outputs of the modules for the cloud itself."""
        return self._outputs_of(None)

    def transformed(self, isometry: Isometry) -> Pass:
        """Run the network before an isometry and after it."""
        before = self.whole
        return _CloudPass(isometry, before, self._outputs_of(isometry), before, _NO_PIXELS, on_torus=False)

    def _outputs_of(self, isometry: Isometry | None) -> dict[str, ModuleOutput]:
        """Return the outputs for the cloud after an isometry; a network may change its input in place."""
        return outputs(self._module, list(self._carried(isometry)), self._layers, self._output, has_pixels=False)

    def _carried(self, isometry: Isometry | None) -> Iterator[Any]:
        """Yield copies of the arguments, after an isometry."""
        edges = None  # the number of those that stand before
        for value in self._data:
            if isinstance(value, GeometricTensor):
                yield self._carried_fields(value, isometry)
            elif not isinstance(value, Tensor):
                yield value
            elif isometry is None or not value.is_floating_point() or value.shape != (edges, len(isometry.matrix)):
                yield value.clone()
            else:
                yield value @ torch.from_numpy(isometry.matrix.T).to(value)
            if isinstance(value, Tensor) and not value.is_floating_point() and value.dim() == 2:
                edges = value.shape[1]

    def _carried_fields(self, fields: GeometricTensor, isometry: Isometry | None) -> GeometricTensor:
        features, places = fields.tensor.clone(), fields.coords
        if isometry is not None:
            features = on_fibers(features, fields.type, isometry, "input", self.space)
            if places is not None:
                places = places @ torch.from_numpy(isometry.matrix.T).to(places)
                places = places + torch.from_numpy(isometry.translation).to(places)
        return GeometricTensor(features, fields.type, places if places is None else places.clone())


def measured_network(
    module: Any,
    input_size: Any,
    data: Data,
    in_type: FieldType | None,
    out_type: FieldType | None,
    layers: Sequence[str],
    output: OutputSelector = None,
) -> MeasuredNetwork:
    """Return a network that is measured: on a cloud where the data are one, else on images or volumes."""
    arguments = data if isinstance(data, tuple) else (data,)
    if arguments and isinstance(arguments[0], GeometricTensor) and arguments[0].coords is not None:
        if input_size is not None:
            raise ValueError(f"give input_size or data, one of them; got input_size={input_size!r}")
        return MeasuredCloud(module, arguments, out_type, layers, output)
    kinds = (PointConvolution, *POINT_CONVOLUTIONS.values())
    if isinstance(module, nn.Module) and any(isinstance(part, kinds) for part in module.modules()):
        raise ValueError(
            "data must be (cloud, edge_index), a GeometricTensor with coords first, for a network with convolutions of "
            "clouds"
        )
    return MeasuredNetwork(module, input_size, data, in_type, out_type, layers, output)
