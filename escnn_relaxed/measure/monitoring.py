"""Numbers of a network's softness to log during training: ω′, softness and measured error by layer."""

from __future__ import annotations

from functools import partial

import torch
from escnn.nn import FieldType
from torch import nn

from ..checks import check_integer
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


class RelaxationMonitor:
    """Keeps :func:`relaxation_scalars` over training, for :func:`~escnn_relaxed.plots.plot_domain_frequency`.

    Args:
        network: any module with relaxed layers.
        data: a batch to measure the error on; not measured without.
        in_type: fields of the input, where the network does not say.
        shifts: in pixels, to measure beside the group elements.

    Attributes:
        history: tag → a pair (step, value) for each :meth:`record`.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> monitor = RelaxationMonitor(nn.SequentialModule(RelaxedR2Conv(fields, fields, 3)))
        >>> for step in (0, 10):
        ...     _ = monitor.record(step)
        >>> monitor.history["domain_frequency/0/rotation"]
        [(0, 0.25), (10, 0.25)]
    """

    def __init__(
        self, network: nn.Module, data: Data = None, in_type: FieldType | None = None, shifts: Shifts = ()
    ) -> None:
        relaxed_layers(network)
        self._scalars = partial(relaxation_scalars, network, data, in_type, shifts)
        self.history: dict[str, list[tuple[int, float]]] = {}

    def record(self, step: int) -> dict[str, float]:
        """Take the numbers of now at a step from 0 on, keep them, and return them."""
        check_integer("step", step, 0)
        scalars = self._scalars()
        for tag, value in scalars.items():
            self.history.setdefault(tag, []).append((step, value))
        return scalars
