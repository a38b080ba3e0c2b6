"""Export of whole networks to plain PyTorch."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from escnn.nn import EquivariantModule
from torch import nn

from ..checks import check_module, check_no_hooks
from ..layer.convolution import RelaxedConvolution
from . import export_nonlinearities  # noqa: F401 — plain_module learns them there
from .conversion import copy_network
from .export_modules import NoPlainFormError, plain_module
from .kept_forward import has_forward_of_its_own, is_sequence, with_plain_parts
from .modes import in_eval_mode

__all__ = ["export_network"]


@torch.no_grad()
def export_network(network: nn.Module) -> nn.Module:
    """Return a copy of a network made of plain modules, with the same numbers as in eval mode.

    Layers of this package become ``Conv2d`` where they are stationary, else a module of
    ``escnn_relaxed.integral.plain_layers``. escnn's own modules are exported by their own ``export()`` or, where that
    is missing or not the same, by this package. The result shares no memory with the network; it can be saved,
    compiled, traced, and given to :func:`torch.export.export` or :func:`torch.onnx.export`.

    A sequence takes and returns plain tensors and needs no escnn. A network with a forward of its own keeps it: it
    takes and returns what it did, and each of its parts is plain behind the face of the part, so that residual sums,
    ``tensor_directsum`` or ``restrict`` do what they did. Such a forward runs on GeometricTensors, so that the module
    needs escnn where it is loaded, which a warning says; a trace, an exported program and ONNX do not. What has no
    plain form stays as it is.

    Args:
        network: an escnn module, (nested) ``SequentialModule`` among them; any ``nn.Sequential`` that also holds
            modules on plain tensors, of which one that leaves the fields must take both:
            ``getattr(input, "tensor", input)``; a module with an ``export()`` of its own, as
            :class:`~escnn_relaxed.models.RelaxedResNet`; or one with a forward of its own.

    Raises:
        TypeError: for a network that is no module.
        ValueError: for a part with hooks that a plain module takes the place of. Hooks of what stays are kept.

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
            known[module] = copy_network(module) if is_plain else _exported(module)
        return known[module]

    def _exported(module: nn.Module) -> nn.Module:
        exported: nn.Module
        if is_sequence(module):
            parts = [(key, part) for key, part in module._modules.items() if part is not None]
            exported = nn.Sequential(OrderedDict((key, export(part)) for key, part in parts))
            refuse_hooks(module)
        elif has_forward_of_its_own(module):
            raise NoPlainFormError
        elif isinstance(module, EquivariantModule) and not isinstance(module, RelaxedConvolution):
            exported = plain_module(module, export)
            refuse_hooks(*module.modules())
        else:
            refuse_hooks(*module.modules())
            with_export: Any = module
            exported = with_export.export()
        return exported

    def refuse_hooks(*parts: nn.Module) -> None:
        for part in parts:
            check_no_hooks(names[part], part, "remove them, and register them on the result")

    with in_eval_mode(network):
        try:
            exported = export(network)
        except NoPlainFormError:
            exported = with_plain_parts(network, export)
    exported.eval()
    # A module without a tensor has no device, but its plain form may have indices.
    devices = {tensor.device for tensor in (*network.parameters(), *network.buffers())}
    return exported.to(devices.pop()) if len(devices) == 1 else exported
