"""Export of networks that keep their own forward and get plain parts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from escnn.nn import EquivariantModule, FieldType, GeometricTensor, SequentialModule
from torch import Tensor, nn

from ..checks import warn_once
from .conversion import copy_network
from .export_modules import NoPlainFormError, plain_module

__all__ = ["OnFields", "OnTensors", "has_forward_of_its_own", "is_sequence", "with_plain_parts"]


class OnFields(EquivariantModule):
    """A plain module that takes and returns GeometricTensors, as the module whose place it takes.

    Args:
        original: the module.
        plain: the same on plain tensors.
    """

    def __init__(self, original: EquivariantModule, plain: nn.Module) -> None:
        super().__init__()
        self.in_type, self.out_type = original.in_type, original.out_type
        self.plain = plain

    def forward(self, *inputs: GeometricTensor) -> GeometricTensor:
        """GeometricTensors of ``in_type`` → one of ``out_type``."""
        return GeometricTensor(self.plain(*(each.tensor for each in inputs)), self.out_type)

    @torch.no_grad()
    def evaluate_output_shape(self, *input_shapes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the output, found by sending zeros through."""
        like = next(self.plain.parameters(), torch.empty(0))
        return tuple(self.plain(*(like.new_zeros(shape) for shape in input_shapes)).shape)


class OnTensors(nn.Module):
    """A sequence of modules on GeometricTensors, from plain tensor to plain tensor."""

    def __init__(self, fields: SequentialModule) -> None:
        super().__init__()
        self.fields = fields

    def forward(self, features: Tensor) -> Tensor:
        """(batch, C, H, W) of the first field type → the tensor of the last."""
        output: Tensor = self.fields(self.fields.in_type(features)).tensor
        return output


def is_sequence(module: nn.Module) -> bool:
    """Return whether the forward of a module applies its parts one after the other."""
    return type(module).forward in (SequentialModule.forward, nn.Sequential.forward)


def has_forward_of_its_own(module: nn.Module) -> bool:
    """Return whether a subclass overrides the forward below the class that can be exported.

    That class has an ``export()``, or a plain form in this package.
    """
    if "forward" in vars(module):
        return True
    for kind in type(module).__mro__:
        if kind in plain_module.registry or (kind is not EquivariantModule and "export" in vars(kind)):
            return False
        if "forward" in vars(kind):
            return True
    return True


def with_plain_parts(network: nn.Module, export: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Return a copy of a network in which every part that can be plain is so; the others keep their forward.

    Args:
        network: in eval mode, with a part that has no plain form.
        export: the plain form of a part.
    """
    replacements: dict[int, nn.Module] = {}
    kept: dict[str, None] = {}

    def exchange(module: nn.Module) -> None:
        if isinstance(module, EquivariantModule) and isinstance(module.out_type, FieldType) and not is_sequence(module):
            try:
                replacements[id(module)] = OnFields(module, export(module))
                return
            except NoPlainFormError:
                kept[type(module).__name__] = None
        elif _is_written_for_fields(module):
            kept[type(module).__name__] = None
        for part in module.children():
            exchange(part)

    exchange(network)
    warn_once(
        f"export_network keeps the forward of {', '.join(kept)}, which runs on GeometricTensors and needs escnn; a "
        f"trace of it, its torch.export.export and its ONNX do not"
    )
    exported = copy_network(network, replacements)
    return OnTensors(exported) if isinstance(exported, SequentialModule) and is_sequence(exported) else exported


def _is_written_for_fields(module: nn.Module) -> bool:
    """Return whether a module has a forward of its own on parts that take GeometricTensors."""
    has_forward = type(module).forward not in (nn.Module.forward, nn.Sequential.forward, SequentialModule.forward)
    return has_forward and any(isinstance(part, EquivariantModule) for part in module.modules())
