"""A gate on the softness of a network: by a number, for each input, or for each pixel."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..checks import ALL_SUBGROUPS, check_number, check_subgroups
from ..layer.gate import Gate, GateValue
from ..layer.relaxed_layer import RelaxedLayer
from ..torch_modes import has_values, reads_without_waiting
from .relaxed_layers import Softened, check_soft_in, relaxed_layers

# A softness that is met to this part of itself is met.
_FAR = 1e-2


class GateHandle:
    """A gate on the layers of a network, until it is removed or the ``with`` block ends; a next block sets it anew."""

    def __init__(self, gates: list[tuple[RelaxedLayer, Gate]]) -> None:
        self._gates = gates
        self._is_entered = False
        self._set()

    def _set(self) -> None:
        for layer, own in self._gates:
            if not any(gate is own for gate in layer.gates):
                layer.gates = (*layer.gates, own)

    def remove(self) -> None:
        """Remove this gate; other gates stay."""
        for layer, own in self._gates:
            layer.gates = tuple([gate for gate in layer.gates if gate is not own])

    def __enter__(self) -> Self:
        if self._is_entered:
            raise RuntimeError("gate_softness: this handle is in a with block already: call gate_softness for another")
        self._is_entered = True
        self._set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_entered = False
        self.remove()


def gate_softness(network: nn.Module, gate: GateValue | Mapping[str, GateValue], *subgroups: str) -> GateHandle:
    r"""Multiply the soft part of each layer by a gate g, for a ``with`` block or for good.

    .. math::
        K_g = PK + g\,(K - PK)

    g = 1 is the layer as it is, and g = 0 its nearest strict layer PK. The output of a layer is linear in g, and its
    softness is g² s / (1 − s + g² s). Where g is an invariant function of the input, a network is exactly equivariant
    wherever g = 0. Gates have gradients, multiply where they are nested, and are in no state dict::

        with gate_softness(network, 0.5):
            output = network(images)

    Call ``backward`` within the block where activations are checkpointed, since the layers are called again there.

    A network serves one gate at a time: threads that share it share its gates. Give each thread a copy, or serve the
    network by :func:`~escnn_relaxed.network.export_with_gate`.

    A number costs the filter banks of the layer, as without a gate. A gate for each input or pixel doubles them, and so
    does a number on both the group and the translation of a layer that is soft in both.

    Args:
        network: any module, a single layer too.
        gate: a number or a tensor without dimensions; a tensor (batch,), one value for each input; or a tensor
            (batch, 1, H, W), or of volumes (batch, 1, D, H, W), which is interpolated to the output of each layer (a
            linear map takes its mean). Or a dict from names of layers to these; the other layers have no gate.
        *subgroups: only the softness in these is gated; by default all. P is the mean over them.

    Returns:
        A handle: a context manager, which may be entered again, with a method ``remove``.

    Raises:
        TypeError: for a gate of another type.
        ValueError: for a gate that is not finite or of another shape, an empty dict, the name of no layer, no relaxed
            layer, or none that is soft in the named subgroups. The call of a layer raises one for a gate of another
            batch.

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv, gate_softness
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = RelaxedR2Conv(fields, fields, 3, initial_softness=0.2)
        >>> with gate_softness(layer, 0.5):
        ...     print(round(layer.softness().item(), 4))
        0.0588
        >>> handle = gate_softness(layer, torch.tensor([0.0, 1.0]), "rotation")
        >>> layer(fields(torch.randn(2, 4, 9, 9))).shape
        torch.Size([2, 4, 7, 7])
        >>> handle.remove()
    """
    layers, names = relaxed_layers(network), check_subgroups(subgroups)
    given = dict(gate) if isinstance(gate, Mapping) else dict.fromkeys(layers, gate)
    unknown = [name for name in given if name not in layers]
    if unknown:
        raise ValueError(f"gate must have names of relaxed layers, of {list(layers)}, got {unknown[0]!r}")
    if not given:
        raise ValueError(f"gate must have names of relaxed layers, of {list(layers)}, got an empty dict")
    if {*names} != {*ALL_SUBGROUPS}:
        subject = "gate must have the name of" if isinstance(gate, Mapping) else "network must have"
        check_soft_in(names, {name: layers[name] for name in given}, subject)
    checked = {id(value): _checked(value) for value in given.values()}
    gates = [
        (layers[name], Gate(checked[id(value)], layers[name].own_subgroups(names))) for name, value in given.items()
    ]
    return GateHandle(gates)


@torch.no_grad()
def write_gate(network: nn.Module, gate: float) -> None:
    """Multiply the soft part of each layer by one gate g > 0 for good, in its weights.

    The softness s of each layer becomes g² s / (1 − s + g² s). The kernels are those of :func:`gate_softness` where one
    factor relaxes a layer: elements of the group, or the position. Where both do, K has products of their weights, and
    the kernels have the softness of the gated ones, but are not the same; nor are those of a ``ContinuousKernel``,
    whose soft weights are in PK, too. Weights that layers share are scaled once. Strict layers stay as they are.

    Args:
        network: any module, a single layer too, that has no gate on it.
        gate: g, a number above 0; :func:`~escnn_relaxed.harden_network` is for 0.

    Raises:
        TypeError: for a gate that is no number.
        ValueError: for one that is not above 0 and finite; for a network without a relaxed layer, and one of which a
            layer has a softness that cannot be set, or shares some soft weights with one that needs another factor.
            Nothing is changed then.
        RuntimeError: under a gate, which has to be removed first.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> fields = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).regular_repr)
        >>> layer = RelaxedR2Conv(fields, fields, 3, initial_softness=0.2)
        >>> write_gate(layer, 0.5)
        >>> round(layer.softness().item(), 4)
        0.0588
    """
    number = check_number("gate", gate)
    if not 0 < number < math.inf:
        raise ValueError(f"gate must be above 0 and finite, since harden_network makes a network strict, got {gate!r}")
    relaxed = relaxed_layers(network)
    if gated := [name for name, layer in relaxed.items() if layer.gates]:
        raise RuntimeError(f"write_gate: a gate is on the softness of {gated[0] or 'the layer'!r}: remove it first")
    before = {name: layer.softness().item() for name, layer in relaxed.items()}
    # The softness under the gate, all of it before the first change, since layers may share weights.
    wanted = {name: number**2 * s / (1 - s + number**2 * s) for name, s in before.items() if 0 < s < 1}
    layers = {name: relaxed[name] for name in wanted}
    states = [(layer, [value.clone() for value in layer.parameters()]) for layer in layers.values()]
    try:
        _set_softness(layers, wanted)
    except (ValueError, RuntimeError):
        for layer, values in states:
            for parameter, value in zip(layer.parameters(), values, strict=True):
                parameter.copy_(value)
        raise


def _set_softness(layers: Mapping[str, Softened], wanted: Mapping[str, float]) -> None:
    """Scale the soft weights of layers until the softness of each is that wanted; tensors that they share, once."""
    owned = {
        name: {id(weights) for group in layer.weight_groups() for weights, _ in group.entries}
        for name, layer in layers.items()
    }
    owners = Counter(tensor for own in owned.values() for tensor in own)
    scaled: set[int] = set()
    for name, layer in layers.items():
        if not owned[name] or not owned[name] <= scaled:
            layer.set_softness(wanted[name])
        scaled |= owned[name]
    for name in [name for name, own in owned.items() if any(owners[tensor] > 1 for tensor in own)]:
        reached = layers[name].softness().item()
        if abs(reached - wanted[name]) > _FAR * wanted[name]:
            raise ValueError(
                f"gate cannot be written into {name!r}, which shares some soft weights with a layer that needs another "
                f"factor: its softness would be {reached:.3g} and not {wanted[name]:.3g}"
            )


def _checked(value: Any) -> GateValue:
    """Return a checked gate: a finite number, or a tensor of a valid shape."""
    if not isinstance(value, Tensor):
        number = check_number("gate", value)
        if not math.isfinite(number):
            raise ValueError(f"gate must be finite, got {value!r}")
        return number
    if not value.is_floating_point():
        raise TypeError(f"gate must be a floating-point tensor, got one of {value.dtype}")
    if value.dim() > 1 and (value.dim() < 3 or value.shape[1] != 1):
        raise ValueError(
            f"gate must be one number, (batch,), or (batch, 1, H, W) with one channel, got a tensor of shape "
            f"{tuple(value.shape)}"
        )
    # Reading a value in the memory of an accelerator would wait.
    if has_values(value) and reads_without_waiting(value) and not torch.isfinite(value).all():
        raise ValueError(f"gate must be finite, got a tensor of shape {tuple(value.shape)} that is not")
    return value
