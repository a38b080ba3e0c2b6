"""Networks as a whole: lists of their relaxed and strict layers, their modes, copies and inputs."""

from __future__ import annotations

import contextlib
import copy
import sys
import types
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from escnn import nn as enn
from escnn.nn import GeometricTensor, Linear, R2Conv, R2ConvTransposed, R3Conv, R3ConvTransposed
from torch import Tensor, nn

from ..checks import check_module, ordered_subgroups, warn_once
from ..integral.geometry import ConvolutionGeometry, TransposedGeometry
from ..layer.reference_field import ReferenceField
from ..layer.relaxed_layer import RelaxedLayer
from ..layer.relaxed_linear import RelaxedLinear
from ..layer.relaxed_point_conv import PointConvolution, RelaxedR2PointConv, RelaxedR3PointConv
from ..layer.relaxed_r2conv import RelaxedR2Conv, RelaxedR2ConvTransposed
from ..layer.relaxed_r3conv import RelaxedR3Conv, RelaxedR3ConvTransposed
from ..on_escnn.point_sampler import POINT_CONVOLUTIONS

# The layer of this package in the place of each of escnn's.
Relaxed: TypeAlias = (
    RelaxedR2Conv | RelaxedR2ConvTransposed | RelaxedR3Conv | RelaxedR3ConvTransposed | RelaxedLinear | PointConvolution
)
RELAXED_FORMS: dict[type[nn.Module], type[Relaxed]] = {
    R2Conv: RelaxedR2Conv,
    R2ConvTransposed: RelaxedR2ConvTransposed,
    R3Conv: RelaxedR3Conv,
    R3ConvTransposed: RelaxedR3ConvTransposed,
    Linear: RelaxedLinear,
}
# What may be soft, and says how soft it is.
Softened: TypeAlias = RelaxedLayer | ReferenceField
# escnn has these where torch_geometric is installed.
for _axes, _relaxed in ((2, RelaxedR2PointConv), (3, RelaxedR3PointConv)):
    if _axes in POINT_CONVOLUTIONS:
        RELAXED_FORMS[POINT_CONVOLUTIONS[_axes]] = _relaxed
# escnn's other layers with weights of their own, which have no soft form.
_UNRELAXED = ("R3IcoConv", "R3IcoConvTransposed", "TensorProductModule")
NO_SOFT_FORM: tuple[type[nn.Module], ...] = tuple(getattr(enn, name) for name in _UNRELAXED if hasattr(enn, name))
# The names of escnn's layers that can be relaxed.
RELAXABLE = "escnn.nn." + ", ".join(kind.__name__ for kind in RELAXED_FORMS)


def relaxed_form(layer: nn.Module) -> type[Relaxed] | None:
    """Return the class of this package that replaces the class of a layer; None where there is none."""
    return next((relaxed for kind, relaxed in RELAXED_FORMS.items() if isinstance(layer, kind)), None)


def geometry_of(layer: Any) -> dict[str, Any]:
    """Return the geometry of a convolution, or its adjoint, as arguments; nothing of a linear map."""
    if isinstance(layer, Linear):
        return {}
    is_transposed = isinstance(layer, R2ConvTransposed | R3ConvTransposed)
    geometry: Any = (TransposedGeometry if is_transposed else ConvolutionGeometry).of(layer)
    return asdict(geometry)


def relaxed_layers(network: nn.Module) -> dict[str, Softened]:
    """Return all layers of this package in a network by name, with reference fields, at least one."""
    modules = check_module("network", network).named_modules()
    layers = {name: module for name, module in modules if isinstance(module, (RelaxedLayer, ReferenceField))}
    if not layers:
        raise ValueError(f"network has no relaxed layer: relax_network makes them of {RELAXABLE}")
    return layers


def check_soft_in(names: Collection[str], layers: Mapping[str, Softened], subject: str) -> None:
    """Raise a ``ValueError``, which starts with its subject, where no layer is soft in one of the named subgroups."""
    soft = ordered_subgroups(*[layer.relaxed_subgroups for layer in layers.values()])
    if not {*soft} & {*names}:
        others = f"they are soft in {' and '.join(soft)}" if soft else "they are strict"
        raise ValueError(f"{subject} a layer that is soft in {' or '.join(names)}, got none: {others}")


def strict_layers(network: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the names of escnn's layers with weights, which are not relaxed, by class."""
    kinds = (*NO_SOFT_FORM, *RELAXED_FORMS)  # some of the first are subclasses of others
    names: dict[str, list[str]] = {}
    for name, module in network.named_modules():
        kind = next((kind for kind in kinds if isinstance(module, kind)), None)
        # Layers of this package are instances of escnn's classes, too.
        if kind is not None and not isinstance(module, RelaxedLayer):
            names.setdefault(kind.__name__, []).append(name or "network")
    order = [kind.__name__ for kind in (*RELAXED_FORMS, *NO_SOFT_FORM)]
    return {kind: tuple(names[kind]) for kind in order if kind in names}


def own_modules(network: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the names of other modules with weights, whose equivariance is unknown, by class."""
    inside = {id(part) for layer in network.modules() if isinstance(layer, RelaxedLayer) for part in layer.modules()}
    names: dict[str, tuple[str, ...]] = {}
    for name, module in network.named_modules():
        is_own = type(module).__module__.partition(".")[0] not in ("torch", "escnn", __name__.partition(".")[0])
        if is_own and id(module) not in inside and not isinstance(module, (*NO_SOFT_FORM, *RELAXED_FORMS)):
            lists = [child for child in module.children() if isinstance(child, (nn.ParameterList, nn.ParameterDict))]
            if any(any(True for _ in part.parameters(recurse=False)) for part in (module, *lists)):
                kind = type(module).__name__
                names[kind] = (*names.get(kind, ()), name or "network")
    return names


def copied_parameters(convolutions: Iterable[Any], freeze: bool = False) -> dict[int, nn.Parameter]:
    """Return a copy of each weight and bias, keyed by the identity of the original: layers go on sharing them."""
    copies = {}
    for convolution in convolutions:
        for parameter, is_fixed in ((convolution.weights, freeze), (convolution.bias, False)):
            if parameter is not None:
                learns = parameter.requires_grad and not is_fixed
                copies[id(parameter)] = nn.Parameter(parameter.detach().clone(), requires_grad=learns)
    return copies


@contextlib.contextmanager
def in_eval_mode(network: nn.Module) -> Iterator[None]:
    """Put a network into eval mode in a ``with`` block; restore the mode of every module after it."""
    # By identity, since some modules of escnn's are equal where their values are.
    modules = [network]
    modes: dict[int, bool] = {}
    for module in modules:
        if id(module) not in modes:
            modes[id(module)] = module.training
            for part in module._modules.values():
                if part is not None:
                    modules.append(part)  # the loop above goes on with it

    def restore(module: nn.Module) -> None:
        # This also sets the modules inside, which therefore follow.
        module.train(modes[id(module)])
        for part in module._modules.values():
            if part is not None:
                restore(part)

    try:
        network.eval()
        yield
    finally:
        restore(network)


def copy_network(
    network: nn.Module,
    replacements: Mapping[int, Any] | None = None,
    attributes: Iterable[tuple[nn.Module, dict[str, Any]]] = (),
) -> nn.Module:
    """Return a deep copy of a network, with some objects replaced, keyed by their identity.

    ``attributes`` are those that modules in place of others get, as copies.
    """
    _warn_of_functions_that_hold_modules(network)
    # Python's modules are shared: there is one of each, and deepcopy refuses them.
    memo: dict[int, Any] = {id(module): module for module in list(sys.modules.values())}
    for buffer in network.buffers():
        if not buffer.is_leaf:
            # escnn's layers build buffers from parameters in eval mode, with a history that deepcopy refuses.
            memo[id(buffer)] = buffer.detach().clone()
    memo |= replacements or {}
    copied = copy.deepcopy(network, memo)
    for module, values in attributes:
        vars(module).update(copy.deepcopy(values, memo))
    return copied


def _warn_of_functions_that_hold_modules(network: nn.Module) -> None:
    """Warn of attributes that a copy shares and through which it would call the modules of the original."""
    known = {id(module) for module in network.modules()}
    for name, module in network.named_modules():
        for attribute, value in vars(module).items():
            items = (
                value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
            )
            if any(id(held) in known for item in items for held in _held_by(item)):
                warn_once(
                    f"{name + '.' if name else ''}{attribute} holds modules of the network as a closure or a weak "
                    f"reference, which copies of a network share: the copy goes on calling the modules of the original "
                    f"through it. Call them as self.… in a method"
                )


def _held_by(value: Any) -> list[Any]:
    """Return what a function, or a weak reference, holds."""
    if isinstance(value, weakref.ref):
        return [value()]
    cells = (value.__closure__ or ()) if isinstance(value, types.FunctionType) else ()
    return [cell.cell_contents for cell in cells if cell != types.CellType()]


def first_module(network: nn.Module) -> nn.Module:
    """Return the module that takes the input of a network, found through sequences."""
    while isinstance(network, nn.Sequential) and len(network):
        network = network[0]
    return network


def tensor_of(value: Any, name: str = "value") -> Tensor:
    """Return the tensor of a tensor or a GeometricTensor."""
    tensor = value.tensor if isinstance(value, GeometricTensor) else value
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor or a GeometricTensor, got {type(value).__name__}")
    return tensor


def first_input(inputs: Any, name: str = "inputs") -> Tensor:
    """Return the first argument of a network, given a tuple of arguments or this one alone."""
    if isinstance(inputs, tuple) and not inputs:
        raise ValueError(f"{name} must have a batch, got an empty tuple")
    batch = tensor_of(inputs[0] if isinstance(inputs, tuple) else inputs, name)
    if not batch.dim():
        raise ValueError(f"{name} must be a batch, got one number")
    return batch


def input_chunks(inputs: Any, size: int) -> Iterator[tuple[Any, ...]]:
    """Yield chunks of the arguments of a network; arguments that are no batch are repeated in each."""
    count = len(first_input(inputs))

    def part(value: Any, start: int) -> Any:
        if isinstance(value, GeometricTensor):
            return value.type(part(value.tensor, start))
        is_batch = isinstance(value, Tensor) and value.dim() > 0 and len(value) == count
        # A network may change its input in place.
        return value[start : start + size].clone() if is_batch else value

    for start in range(0, count, size):
        yield tuple(part(value, start) for value in (inputs if isinstance(inputs, tuple) else (inputs,)))
