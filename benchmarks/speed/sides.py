"""The sides of comparisons of cost: layers and plain convolutions, and what is called on them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from escnn import gspaces
from escnn.nn import FieldType, GeometricTensor
from torch import Tensor, nn

Call = Callable[[], object]
SOFT_ROTATION = {"relax": {"rotation": 0.25}}
SOFT_TRANSLATION = {"relax": {"translation": 0.25}}
SOFT_IN_BOTH = {"relax": {"rotation": 0.25, "translation": 0.25}}


@dataclass(frozen=True)
class Setting:
    """How everything runs, on a GPU where there is one."""

    precision: str = "float32"
    channels_last: bool = False
    compiled: bool = False
    # Calls are replayed as CUDA graphs.
    captured: bool = False

    @property
    def device(self) -> str:
        """The name of the device."""
        return "cuda" if torch.cuda.is_available() else "cpu"

    def place(self, module: nn.Module) -> Any:
        """The module on the device, in the memory format, compiled if wanted."""
        module = module.to(self.device)
        if self.channels_last:
            module = module.to(memory_format=torch.channels_last)
        # On a CPU inductor would want a compiler.
        backend = "inductor" if self.device == "cuda" else "eager"
        return torch.compile(module, backend=backend) if self.compiled else module

    def set_precision(self) -> None:
        """Allow TF32 in products and convolutions, or not."""
        torch.set_float32_matmul_precision("high" if self.precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = self.precision == "tf32"

    def images(self, *shape: int) -> Tensor:
        """Random images that want a gradient."""
        images = torch.randn(*shape, device=self.device)
        if self.channels_last:
            images = images.to(memory_format=torch.channels_last)
        return images.requires_grad_()

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """Within it convolutions are in the precision of the setting."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bfloat16"):
            yield


class OnTensors(nn.Module):
    """A layer of escnn on plain tensors, so that all sides are called alike."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        """(batch, C_in, H, W) → (batch, C_out, H_out, W_out)."""
        answer: Tensor = self.layer(GeometricTensor(images, self.layer.in_type)).tensor
        return answer


def regular(rotations: int, fields: int) -> FieldType:
    """Regular fields of C_N, trivial ones of the plane without rotations."""
    gspace = gspaces.rot2dOnR2(rotations) if rotations > 1 else gspaces.trivialOnR2()
    return FieldType(gspace, [gspace.regular_repr if rotations > 1 else gspace.trivial_repr] * fields)


def regular_of(gspace: Any, fields: int) -> FieldType:
    """Regular fields of a group."""
    return FieldType(gspace, [gspace.regular_repr] * fields)


def irreps(fields: int) -> FieldType:
    """Irreps of SO(2) up to frequency 2."""
    gspace = gspaces.rot2dOnR2(-1)
    return FieldType(gspace, [gspace.irrep(frequency) for frequency in range(3)] * fields)


def convolution(channels: int, setting: Setting, kernel_size: int = 7) -> nn.Module:
    """The plain convolution of as many channels."""
    return setting.place(nn.Conv2d(channels, channels, kernel_size, padding=kernel_size // 2))


def layer(kind: Any, fields: FieldType, setting: Setting, kernel_size: int = 7, **options: Any) -> nn.Module:
    """``kind`` from these fields to themselves."""
    return setting.place(OnTensors(kind(fields, fields, kernel_size, padding=kernel_size // 2, **options)))


def step(module: nn.Module, setting: Setting, *shape: int) -> Call:
    """Forward and backward."""
    images = setting.images(*shape)
    wanted = [images, *(parameter for parameter in module.parameters() if parameter.requires_grad)]
    with setting.autocast(), torch.no_grad():
        direction = torch.randn_like(module(images))

    def call() -> None:
        with setting.autocast():
            answer = module(images)
        torch.autograd.grad(answer, wanted, direction, allow_unused=True)

    return call


def evaluation(module: nn.Module, setting: Setting, *shape: int) -> Call:
    """Forward without gradients, in eval mode."""
    images = setting.images(*shape).detach()
    module.eval()

    def call() -> None:
        with torch.no_grad(), setting.autocast():
            module(images)

    return call
