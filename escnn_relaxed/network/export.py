"""Networks as plain PyTorch, without escnn."""

from __future__ import annotations

import copy
from collections import OrderedDict

import torch
from escnn.nn import EquivariantModule, SequentialModule
from torch import nn

from ..checks import check_module
from ..layer.planar_convolution import PlanarConvolution
from .export_modules import plain_module
from .modes import in_eval_mode

__all__ = ["export_network"]


@torch.no_grad()
def export_network(network: nn.Module) -> nn.Module:
    """A copy of a network that takes and returns plain tensors and needs no escnn: the same numbers as in eval mode.

    Layers of this package become ``Conv2d`` where they are stationary, else a module of
    ``escnn_relaxed.integral.plain_layers``, which imports without escnn. escnn's own modules are exported by their own
    ``export()`` or, where that is missing or not the same, by this package. The result shares no memory with the
    network; it can be saved, compiled, traced, and given to :func:`torch.export.export` or :func:`torch.onnx.export`.

    Args:
        network: an escnn module, (nested) ``SequentialModule`` among them; any ``nn.Sequential`` that also holds
            modules on plain tensors, of which one that leaves the fields must take both:
            ``getattr(input, "tensor", input)``; or a module with an ``export()`` of its own, as
            :class:`~escnn_relaxed.models.RelaxedResNet`.

    Raises:
        TypeError: for what is no module, a module on GeometricTensors that cannot be exported, or one with a forward of
            its own and no ``export()``, whose parts must be exported one by one.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> network = nn.SequentialModule(RelaxedR2Conv(fields, fields, 3), nn.ReLU(fields), nn.GroupPooling(fields))
        >>> [type(module).__name__ for module in export_network(network)]
        ['Conv2d', 'ReLU', 'FieldMaximum']
    """
    check_module("network", network)
    # A module that appears twice stays one.
    known: dict[nn.Module, nn.Module] = {}

    def export(module: nn.Module, name: str) -> nn.Module:
        if module not in known:
            known[module] = _exported(module, name)
        return known[module]

    def _exported(module: nn.Module, name: str) -> nn.Module:
        if not any(isinstance(part, EquivariantModule) for part in module.modules()):
            return copy.deepcopy(module)
        if type(module).forward in (SequentialModule.forward, nn.Sequential.forward):
            parts = [(key, part) for key, part in module._modules.items() if part is not None]
            return nn.Sequential(OrderedDict((key, export(part, f"{name}.{key}")) for key, part in parts))
        if isinstance(module, PlanarConvolution):
            return module.export()
        if isinstance(module, EquivariantModule) and not _has_forward_of_its_own(module):
            return plain_module(module, export, name)
        own_export = getattr(module, "export", None)
        if not isinstance(module, EquivariantModule) and callable(own_export):
            exported: nn.Module = own_export()
            return exported
        raise TypeError(
            f"{name}: {type(module).__name__} has a forward of its own on GeometricTensors; give it an export() that "
            f"returns the same on plain tensors, made of its parts by export_network(part)"
        )

    with in_eval_mode(network):
        exported = export(network, "network").eval()
    # Modules without a tensor do not know where the network is, their plain ones may have indices.
    devices = {tensor.device for tensor in (*network.parameters(), *network.buffers())}
    return exported.to(devices.pop()) if len(devices) == 1 else exported


def _has_forward_of_its_own(module: EquivariantModule) -> bool:
    """Whether only its own ``forward`` says how its parts are put together: no ``export()`` does, nor this package."""
    if type(module).export is SequentialModule.export:
        return True
    is_known = plain_module.dispatch(type(module)) is not plain_module.dispatch(object)
    has_parts = any(isinstance(part, EquivariantModule) for part in module.children())
    return type(module).export is EquivariantModule.export and has_parts and not is_known
