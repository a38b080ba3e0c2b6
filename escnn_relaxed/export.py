"""Networks as plain PyTorch, without escnn."""

from __future__ import annotations

from collections import OrderedDict

import torch
from escnn.nn import EquivariantModule, R2Conv, SequentialModule
from torch import nn

from .integral_operator import ConvolutionGeometry, as_convolution
from .relaxed_convolution import RelaxedConvolution

__all__ = ["export_network"]


def export_network(network: nn.Module) -> nn.Module:
    """A copy of a network that takes and returns plain tensors and needs no escnn: the same numbers as in eval mode.

    Layers of this package become ``Conv2d`` where they are stationary, else a module of ``escnn_relaxed.exported``,
    which imports without escnn. escnn's own modules are exported by their own ``export()``, ``R2Conv`` with its padding
    mode and in memory of its own, which escnn's export forgets. The result can be saved, compiled, traced, and given to
    :func:`torch.export.export` or :func:`torch.onnx.export`.

    Args:
        network: an escnn module, (nested) ``SequentialModule`` among them; or any ``nn.Sequential`` that also holds
            modules on plain tensors behind a module that leaves the fields (such a module takes ``.tensor``).

    Raises:
        TypeError: for a module on GeometricTensors that has no ``export()``, or a network with a forward of its own,
            whose parts must be exported one by one.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> network = nn.SequentialModule(RelaxedR2Conv(fields, fields, 3), nn.ReLU(fields), nn.GroupPooling(fields))
        >>> [type(module).__name__ for module in export_network(network)]
        ['Conv2d', 'ReLU', 'MaxPoolChannels']
    """
    modes = {module: module.training for module in network.modules()}
    try:
        network.eval()
        return _exported(network, "network").eval()
    finally:
        for module, mode in modes.items():
            module.train(mode)


def _exported(module: nn.Module, name: str) -> nn.Module:
    if isinstance(module, (SequentialModule, nn.Sequential)):
        children = module.named_children()
        return nn.Sequential(OrderedDict((key, _exported(child, f"{name}.{key}")) for key, child in children))
    if isinstance(module, R2Conv):
        return _exported_r2conv(module)
    if isinstance(module, RelaxedConvolution):
        return module.export()
    if isinstance(module, EquivariantModule):
        try:
            exported: nn.Module = module.export()
        except NotImplementedError:
            raise TypeError(f"{name}: {type(module).__name__} of escnn has no export()") from None
        return exported
    if any(isinstance(child, EquivariantModule) for child in module.modules()):
        raise TypeError(
            f"{name}: {type(module).__name__} has a forward of its own on GeometricTensors; export its parts one by "
            f"one and write that forward on plain tensors"
        )
    return module


@torch.no_grad()
def _exported_r2conv(convolution: R2Conv) -> nn.Conv2d:
    padding = convolution.padding
    rows, columns = padding if isinstance(padding, tuple) else (padding, padding)
    names = ("kernel_size", "padding_mode", "stride", "dilation", "groups")
    geometry = ConvolutionGeometry(padding=(rows, columns), **{name: getattr(convolution, name) for name in names})
    filter_bank, bias = convolution.expand_parameters()
    return as_convolution(filter_bank, bias, geometry)
