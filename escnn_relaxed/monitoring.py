"""What is worth logging of a network's softness during training: ω′, softness, penalty and measured error by layer."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from escnn.nn import FieldType, GeometricTensor
from torch import nn

from .checks import check_integer
from .conversion import named_relaxed_layers
from .equivariance import largest_exact_errors
from .learning import frequency_energy
from .measured_network import Data, Shifts

__all__ = ["RelaxationMonitor", "TensorBoardHook", "relaxation_scalars"]

_MOST_IMAGES = 32


class _Writer(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...


@torch.no_grad()
def relaxation_scalars(
    network: nn.Module, data: Data = None, in_type: FieldType | None = None, shifts: Shifts = ()
) -> dict[str, float]:
    """The softness of a network as numbers by tag.

    ``domain_frequency/<layer>/<subgroup>`` is ω′ (of translation, ``translation_x`` and ``translation_y``),
    ``softness/<layer>`` is s, ``penalty/<layer>`` is ‖ω′‖² and ``penalty/total`` their sum. With data,
    ``equivariance_error/<layer>`` is the largest relative error of the network's features up to that layer, and
    ``equivariance_error/network`` of its output, over the shifts and the group elements that map the pixels of all
    feature maps to pixels; missing where there are none.

    Args:
        network: any module with relaxed layers, left as it was.
        data: a batch to measure the error on, of which 32 images are taken; not measured without.
        in_type: fields of the input, where the network does not say.
        shifts: rows down and columns to the right in pixels, to measure beside the group elements.

    Raises:
        ValueError: for a network without a relaxed layer, and as :func:`~escnn_relaxed.equivariance_error`.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> network = nn.SequentialModule(RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25}))
        >>> list(relaxation_scalars(network, torch.randn(2, 4, 9, 9)))[-3:]
        ['penalty/0', 'equivariance_error/0', 'equivariance_error/network']
    """
    layers = dict(named_relaxed_layers(network))
    if not layers:
        raise ValueError("network has no RelaxedR2Conv")
    scalars = {"penalty/total": frequency_energy(layers.values()).item()}
    for name, layer in layers.items():
        for subgroup, value in layer.domain_frequency.items():
            tags = (subgroup,) if len(value) == 1 else (f"{subgroup}_x", f"{subgroup}_y")
            for tag, number in zip(tags, value.tolist(), strict=True):
                scalars[f"domain_frequency/{name or 'network'}/{tag}"] = number
        scalars[f"softness/{name or 'network'}"] = layer.softness().item()
        scalars[f"penalty/{name or 'network'}"] = frequency_energy([layer]).item()
    if data is not None:
        some = data.type(data.tensor[:_MOST_IMAGES]) if isinstance(data, GeometricTensor) else data[:_MOST_IMAGES]
        names = list(dict.fromkeys([*layers, ""]))
        for name, error in largest_exact_errors(network, some, names, in_type, shifts).items():
            scalars[f"equivariance_error/{name or 'network'}"] = error
    return scalars


class RelaxationMonitor:
    """Keeps :func:`relaxation_scalars` over training, for ``escnn_relaxed.plots.plot_domain_frequency``.

    Args:
        network: any module with relaxed layers.
        data: a batch to measure the error on; not measured without.
        in_type: fields of the input, where the network does not say.
        shifts: rows down and columns to the right in pixels, to measure beside the group elements.

    Attributes:
        history: tag → a pair (step, value) for each :meth:`record`.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> network = nn.SequentialModule(RelaxedR2Conv(fields, fields, 3, relax={"rotation": 0.25}))
        >>> monitor = RelaxationMonitor(network)
        >>> for step in (0, 10):
        ...     _ = monitor.record(step)
        >>> monitor.history["domain_frequency/0/rotation"]
        [(0, 0.25), (10, 0.25)]
    """

    def __init__(
        self,
        network: nn.Module,
        data: Data = None,
        in_type: FieldType | None = None,
        shifts: Shifts = (),
    ) -> None:
        self._network = network
        self.data = data
        self._in_type = in_type
        self._shifts = shifts
        self.history: dict[str, list[tuple[int, float]]] = {}

    def record(self, step: int) -> dict[str, float]:
        """Take the numbers of now, keep them, and return them."""
        scalars = relaxation_scalars(self._network, self.data, self._in_type, self._shifts)
        for tag, value in scalars.items():
            self.history.setdefault(tag, []).append((step, value))
        return scalars


class TensorBoardHook:
    """Writes :func:`relaxation_scalars` to TensorBoard while an optimiser steps.

    Nothing else changes in the loop::

        hook = TensorBoardHook(network, SummaryWriter(), optimiser, every=100)
        ...  # train as always
        hook.remove()

    Args:
        network: any module with relaxed layers.
        writer: a ``torch.utils.tensorboard.SummaryWriter``, or anything with its ``add_scalar``.
        optimiser: the one whose steps are counted.
        every: number of steps from one entry to the next.
        data: a batch to measure the error on; not measured without.
        in_type: fields of the input, where the network does not say.
        shifts: rows down and columns to the right in pixels, to measure beside the group elements.

    Attributes:
        monitor: keeps what was written, for plots.

    Raises:
        TypeError: for a writer without ``add_scalar``, or ``every`` that is no integer.
        ValueError: for ``every`` below 1.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = RelaxedR2Conv(fields, fields, 3)
        >>> class Printer:
        ...     def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        ...         if tag.startswith("softness"):
        ...             print(global_step, tag, round(scalar_value, 4))
        >>> optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> hook = TensorBoardHook(layer, Printer(), optimiser, every=2)
        0 softness/network 0.01
        >>> for _ in range(2):
        ...     optimiser.step()
        2 softness/network 0.01
    """

    def __init__(
        self,
        network: nn.Module,
        writer: _Writer,
        optimiser: torch.optim.Optimizer,
        every: int = 100,
        data: Data = None,
        in_type: FieldType | None = None,
        shifts: Shifts = (),
    ) -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(f"writer must have add_scalar, as a SummaryWriter, got {type(writer).__name__}")
        self._writer = writer
        self._every = check_integer("every", every, 1)
        self._steps = 0
        self.monitor = RelaxationMonitor(network, data, in_type, shifts)
        self._write()
        self._hook = optimiser.register_step_post_hook(self._after_step)

    def remove(self) -> None:
        """Stop writing."""
        self._hook.remove()

    def _after_step(self, *_: Any) -> None:
        self._steps += 1
        if self._steps % self._every == 0:
            self._write()

    def _write(self) -> None:
        for tag, value in self.monitor.record(self._steps).items():
            self._writer.add_scalar(tag, value, self._steps)
