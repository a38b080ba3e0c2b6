"""Numbers of a network's softness to log during training: ω′, softness and measured error by layer."""

from __future__ import annotations

import torch
from escnn.nn import FieldType
from torch import nn

from ..network.relaxed_layers import frequency_energy, relaxed_layers
from .equivariance import largest_exact_errors
from .measured_network import Data, Shifts


@torch.no_grad()
def relaxation_scalars(
    network: nn.Module, data: Data = None, in_type: FieldType | None = None, shifts: Shifts = ()
) -> dict[str, float]:
    """Return the softness of a network as numbers by tag.

    ``domain_frequency/<layer>/<subgroup>`` is ω′ (of translation, ``translation_x`` and ``translation_y``),
    ``softness/<layer>`` is s, ``frequency_energy/<layer>`` is ‖ω′‖² and ``frequency_energy/total`` their sum. With
    data, ``equivariance_error/<layer>`` is the largest exact error of the network up to that layer, over group elements
    and shifts, and ``equivariance_error/network`` that of its output; missing where none is exact.

    Args:
        network: any module with relaxed layers, left as it was.
        data: a batch to measure the error on, 32 images for instance, or a tuple of all inputs; not measured without.
        in_type: fields of the input, where the network does not say.
        shifts: (rows, columns) or (planes, rows, columns) in pixels, to measure beside the group elements.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> network = nn.SequentialModule(RelaxedR2Conv(fields, fields, 3))
        >>> list(relaxation_scalars(network, torch.randn(2, 4, 9, 9)))[-3:]
        ['frequency_energy/0', 'equivariance_error/0', 'equivariance_error/network']
    """
    layers = relaxed_layers(network)
    scalars = {"frequency_energy/total": frequency_energy(layers.values()).item()}
    for name, layer in layers.items():
        tag = name or "network"
        for subgroup, values in layer.domain_frequency.items():
            axes = ("",) if len(values) == 1 else ("_x", "_y")
            for axis, value in zip(axes, values.tolist(), strict=True):
                scalars[f"domain_frequency/{tag}/{subgroup}{axis}"] = value
        scalars[f"softness/{tag}"] = layer.softness().item()
        scalars[f"frequency_energy/{tag}"] = frequency_energy([layer]).item()
    if data is not None:
        names = list(dict.fromkeys([*layers, ""]))
        for name, error in largest_exact_errors(network, data, names, in_type, shifts).items():
            scalars[f"equivariance_error/{name or 'network'}"] = error
    return scalars
