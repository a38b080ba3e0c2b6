"""Export of networks to plain PyTorch: sequences of modules, and networks that keep a forward of their own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from escnn.nn import EquivariantModule, FieldType, GeometricTensor, SequentialModule
from torch import Tensor, nn

from ..checks import check_module, check_no_hooks, warn_once
from ..integral.edges import CloudConvolution
from ..layer.arguments import check_on_fields
from ..layer.relaxed_layer import RelaxedLayer
from .export_modules import NoPlainFormError, plain_module
from .relaxed_layers import copy_network, in_eval_mode


@torch.no_grad()
def export_network(network: nn.Module) -> nn.Module:
    """Return a copy of a network made of plain modules, with the same numbers as in eval mode.

    Layers of this package become ``Conv2d`` (or ``Linear``, for example) where they are stationary, else a module of
    ``escnn_relaxed.integral.factors``. A convolution of clouds takes ``(features, coordinates, edge_index)``. escnn's
    modules are exported by their own ``export()`` or, where that is missing or not the same, by this package. The
    result shares no memory with the network; it can be saved, compiled, traced, and given to
    :func:`torch.export.export` or :func:`torch.onnx.export`.

    A sequence takes and returns plain tensors and needs no escnn. A network with a forward of its own keeps it, with
    plain modules as its parts, which take and return GeometricTensors as before. Such a module needs escnn where it is
    loaded, which a warning says; its trace, exported program and ONNX need none. A module without a plain form stays as
    it is, and so does one whose ``export()`` gives what cannot be called on a tensor, such as a ``ModuleDict`` of its
    parts.

    Args:
        network: an escnn module; an ``nn.Sequential`` that also holds modules on plain tensors, of which one that
            leaves the fields must take both: ``getattr(input, "tensor", input)``; a module with an ``export()`` of its
            own, as :class:`~escnn_relaxed.models.RelaxedResNet`; or one with a forward of its own.

    Raises:
        TypeError: for a network that is no module.
        ValueError: for a part with hooks that a plain module replaces. Parts that stay keep their hooks.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> network = nn.SequentialModule(
        ...     RelaxedR2Conv(fields, fields, 3), nn.ReLU(fields), nn.GroupPooling(fields)
        ... )
        >>> [type(module).__name__ for module in export_network(network)]
        ['Conv2d', 'ReLU', 'FieldMaximum']
    """
    check_module("network", network)
    names = {module: name or "network" for name, module in network.named_modules()}
    # A module that appears twice stays one.
    known: dict[nn.Module, nn.Module] = {}

    def export(module: nn.Module) -> nn.Module:
        if module not in known:
            is_plain = not any(isinstance(part, EquivariantModule) for part in module.modules())
            known[module] = copy_network(module) if is_plain else exported_fields(module)
        return known[module]

    def exported_fields(module: Any) -> Any:
        if _is_sequence(module):
            modules = [(key, export(part)) for key, part in module._modules.items() if part is not None]
            refuse_hooks(module)
            return nn.Sequential(OrderedDict(modules))
        if _has_forward_of_its_own(module):
            raise NoPlainFormError
        is_of_escnn = isinstance(module, EquivariantModule) and not isinstance(module, RelaxedLayer)
        if not is_of_escnn:
            refuse_hooks(*module.modules())
        plain = plain_module(module, export) if is_of_escnn else module.export()
        if not _takes_tensors(plain):
            raise NoPlainFormError(f"{type(module).__name__}.export() gives a {type(plain).__name__}")
        # Later, since what has no plain form keeps its hooks.
        refuse_hooks(*module.modules())
        return plain

    def refuse_hooks(*modules: nn.Module) -> None:
        for part in modules:
            # escnn's bases of clouds have parts that are equal, of which torch names one.
            check_no_hooks(names.get(part, type(part).__name__), part, "remove them, and register them on the result")

    with in_eval_mode(network):
        try:
            exported = export(network)
        except NoPlainFormError:
            exported = _with_plain_parts(network, export)
    exported.eval()
    # A module without a tensor has no device, but its plain form may have indices.
    devices = {tensor.device for tensor in (*network.parameters(), *network.buffers())}
    return exported.to(devices.pop()) if len(devices) == 1 else exported


class OnFields(EquivariantModule):
    """A plain module that takes and returns GeometricTensors, as the module that it replaces."""

    def __init__(self, original: EquivariantModule, plain: nn.Module) -> None:
        super().__init__()
        self.in_type, self.out_type = original.in_type, original.out_type
        self.plain = plain
        self._axes = (1,) * self.in_type.gspace.dimensionality

    def forward(self, input: GeometricTensor) -> GeometricTensor:
        """A GeometricTensor of ``in_type`` → one of ``out_type``."""
        check_on_fields(input, self.in_type)
        features, coordinates = input.tensor, input.coords
        if features.dim() > 2 or not self._axes:
            return GeometricTensor(self.plain(features), self.out_type, coordinates)
        # The nodes of a cloud have no pixels, which the plain forms of maps of images take.
        features = self.plain(features.view(*features.shape, *self._axes))
        return GeometricTensor(features.flatten(1), self.out_type, coordinates)

    @torch.no_grad()
    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the output, found by sending zeros through."""
        like = next(self.plain.parameters(), torch.empty(0))
        return tuple(self.plain(like.new_zeros(input_shape)).shape)


class OnClouds(OnFields):
    """A plain convolution of clouds that takes and returns GeometricTensors with coordinates."""

    def forward(  # type: ignore[override]
        self, x: GeometricTensor, edge_index: Tensor, edge_delta: Tensor | None = None
    ) -> GeometricTensor:
        """A GeometricTensor of ``in_type`` with edges → one of ``out_type``."""
        check_on_fields(x, self.in_type)
        return GeometricTensor(self.plain(x.tensor, x.coords, edge_index, edge_delta), self.out_type, x.coords)

    def evaluate_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the output, (nodes, C_in) → (nodes, C_out)."""
        return input_shape[0], self.out_type.size


class _OnTensors(nn.Module):
    """A sequence of modules on GeometricTensors, from plain tensor to plain tensor."""

    def __init__(self, fields: SequentialModule) -> None:
        super().__init__()
        self.fields = fields

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, …) of the first field type → the tensor of the last."""
        return self.fields(self.fields.in_type(features)).tensor


def _with_plain_parts(network: nn.Module, export: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Return a copy of a network with plain forms of all submodules that have one; others keep their forward."""
    replacements: dict[int, nn.Module] = {}
    kept: dict[str, None] = {}
    reasons: dict[str, None] = {}

    def exchange(module: nn.Module) -> None:
        is_on_fields = isinstance(module, EquivariantModule) and isinstance(module.out_type, FieldType)
        if is_on_fields and not _is_sequence(module):
            try:
                plain = export(module)
                replacements[id(module)] = (OnClouds if isinstance(plain, CloudConvolution) else OnFields)(
                    module, plain
                )
                return
            except NoPlainFormError as error:
                kept[type(module).__name__] = None
                reasons.update(dict.fromkeys(error.args))
        elif _is_written_for_fields(module):
            kept[type(module).__name__] = None
        for part in module.children():
            exchange(part)

    exchange(network)
    remedy = "; {}, which cannot be called on a tensor: let it return a module whose forward takes and returns tensors"
    warn_once(
        f"export_network keeps the forward of {', '.join(kept)}, so that the copy needs escnn where it is loaded; its "
        f"trace, its torch.export.export and its ONNX do not{remedy.format(', '.join(reasons)) if reasons else ''}"
    )
    exported = copy_network(network, replacements)
    return _OnTensors(exported) if isinstance(exported, SequentialModule) and _is_sequence(exported) else exported


def _is_sequence(module: nn.Module) -> bool:
    """Return whether the forward of a module applies its submodules in sequence."""
    return type(module).forward in (SequentialModule.forward, nn.Sequential.forward)


def _takes_tensors(exported: Any) -> bool:
    """Return whether the result of an ``export()`` can be called on a tensor.

    That of some blocks gives the parts of their forward alone, in a ``ModuleDict``, and a sequence of such blocks holds
    it.
    """
    if not isinstance(exported, nn.Module) or isinstance(exported, EquivariantModule):
        return False
    if type(exported).forward is nn.Sequential.forward:
        return all(_takes_tensors(part) for part in exported.children())
    return type(exported).forward is not nn.Module.forward or "forward" in vars(exported)


def _has_forward_of_its_own(module: nn.Module) -> bool:
    """Return whether a forward overrides the one that the export of the module describes."""
    if "forward" in vars(module):
        return True
    for kind in type(module).__mro__:
        if kind in plain_module.registry or (kind is not EquivariantModule and "export" in vars(kind)):
            return False
        if "forward" in vars(kind):
            return True
    return True


def _is_written_for_fields(module: nn.Module) -> bool:
    """Return whether a module has its own forward over submodules that take GeometricTensors."""
    has_forward = not _is_sequence(module) and type(module).forward is not nn.Module.forward
    return has_forward and any(isinstance(part, EquivariantModule) for part in module.modules())
