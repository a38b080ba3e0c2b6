"""Export of networks that take the gate on their softness as a second input."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..checks import check_subgroups
from ..integral.constant_field import ConstantField
from ..integral.factors import FactoredConvolution
from ..layer.relaxed_layer import RelaxedLayer
from .export import export_network
from .plain_modules import GatedSoftness, GateInput, WithGate
from .relaxed_layers import check_soft_in, copy_network, relaxed_layers

# The plain forms of layers, which are linear in the kernel, and of reference fields.
_LAYERS = (
    *(nn.Linear, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(FactoredConvolution, ConstantField),
)


@torch.no_grad()
def export_with_gate(network: nn.Module, *subgroups: str) -> nn.Module:
    """Return a copy of a network made of plain modules, which takes the gate on its softness as a second input.

    ``exported(images, gate)`` gives the numbers of the network in eval mode under :func:`~escnn_relaxed.gate_softness`.
    It is the result of :func:`~escnn_relaxed.export_network` with two convolutions in place of each soft layer, of K
    and of PK; a reference field is multiplied by the gate. It can be saved, compiled, traced, and given to
    :func:`torch.export.export` or :func:`torch.onnx.export`. Threads can call it at once, each with its gate. The gate
    is always a tensor. Its number of dimensions is part of a trace or a program: none for one number, 1 for a number
    for each input, or that of the images for a map.

    Args:
        network: of :func:`~escnn_relaxed.export_network`. Gates that are on it stay as constants and multiply the
            second input.
        *subgroups: only the softness in these is gated; by default all.

    Raises:
        TypeError: for a network that is no module.
        ValueError: for a network without a layer that is soft in these, for another subgroup, for convolutions of
            clouds, and for a part whose own ``export()`` hides its layers.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> network = nn.SequentialModule(RelaxedR2Conv(fields, fields, 3), nn.ReLU(fields))
        >>> exported = export_with_gate(network)
        >>> exported(torch.randn(2, 4, 9, 9), torch.tensor([0.0, 1.0])).shape
        torch.Size([2, 4, 7, 7])
    """
    names, layers = check_subgroups(subgroups), relaxed_layers(network)
    check_soft_in(names, layers, "network must have")
    for name, layer in layers.items():
        if getattr(layer, "is_of_clouds", False):
            raise ValueError(
                f"network: {name or 'the layer'!r} is a convolution of clouds, whose gate is a constant in an export: "
                f"call export_network under gate_softness with one number"
            )
        if isinstance(layer, RelaxedLayer) and layer.expands_itself:
            raise ValueError(
                f"network: {name or 'the layer'!r} computes with an expand_parameters of its own, which need not be "
                f"linear in its kernel: export it under gate_softness with one number"
            )
    # Not by harden_network, which takes reference fields out: both exports have the same parts.
    hardened = copy_network(network)
    for layer in relaxed_layers(hardened).values():
        layer.harden(*names)
    whole, strict, gate = export_network(network), export_network(hardened), GateInput()
    return WithGate(_gated(whole, strict, gate, {}), gate).eval()


def _gated(whole: nn.Module, strict: nn.Module, gate: GateInput, known: dict[nn.Module, nn.Module]) -> nn.Module:
    """Return an exported network in which each layer that differs from the hardened one is gated."""
    if whole in known:
        return known[whole]
    known[whole] = whole
    if isinstance(whole, _LAYERS):
        if not _are_equal(whole.state_dict(), strict.state_dict()):
            known[whole] = GatedSoftness(whole, strict, gate)
        return known[whole]
    own, other = (
        dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
        for module in (whole, strict)
    )
    if whole._modules.keys() != strict._modules.keys() or not _are_equal(own, other):
        raise ValueError(
            f"network: a {type(whole).__name__} in its export holds kernels of its own: let the export() that returns "
            f"it keep the exported layers as modules in it"
        )
    for name, part in whole._modules.items():
        if part is not None:
            whole._modules[name] = _gated(part, strict.get_submodule(name), gate, known)
    return whole


def _are_equal(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(
        value.shape == others[name].shape and torch.equal(value, others[name]) for name, value in some.items()
    )
