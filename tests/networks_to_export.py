"""Networks that mix R2Conv and relaxed layers, and their outputs beside those of exported ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import battery
import pytest
import torch
from escnn import nn as enn
from escnn.nn import EquivariantModule, FieldType, GeometricTensor, R2Conv
from forms import tensors_of
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv

C4 = battery.field_type("C4", "two regular")
MIXED = battery.field_type("D4", "regular + trivial + regular + quotient")
IRREPS = FieldType(battery.gspace("SO(2)"), battery.field_type("SO(2)", "irreps + trivial + irreps").representations)

BATCH = torch.export.Dim("batch")
# Marks of tests that trace and export networks with a forward of their own.
WHAT_EXPORTERS_WARN_OF = [
    pytest.mark.filterwarnings("ignore:export_network keeps the forward:UserWarning"),
    # torch's own warnings.
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.* is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:You are using the legacy TorchScript-based ONNX export:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The feature will be removed:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
]


def soft_layer(
    fields: FieldType, out_type: FieldType | None = None, soft_translation: bool = False, **arguments: object
) -> RelaxedR2Conv:
    relax = {"rotation": 0.2, "translation": (0.2, 0.4)} if soft_translation else {"rotation": 0.2}
    arguments = {"kernel_size": 3, "padding": 1, "initial_softness": 0.3, **arguments}
    return RelaxedR2Conv(fields, out_type or fields, relax=relax, **arguments)


class Block(EquivariantModule):
    """Sum of a body and a shortcut, as in escnn's ``examples/e2wrn.py``."""

    def __init__(self, in_type: FieldType, out_type: FieldType, stride: int = 1) -> None:
        super().__init__()
        self.in_type, self.out_type = in_type, out_type
        self.relu = enn.ReLU(in_type, inplace=True)
        self.norm = enn.InnerBatchNorm(in_type)
        self.conv = soft_layer(in_type, out_type, stride=stride)
        self.shortcut = None
        if stride > 1 or in_type != out_type:
            self.shortcut = R2Conv(in_type, out_type, 1, stride=stride, bias=False)

    def forward(self, features: GeometricTensor) -> GeometricTensor:
        normal = self.relu(self.norm(features))
        output = self.conv(normal)
        output += features if self.shortcut is None else self.shortcut(normal)
        return output

    def evaluate_output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.conv.evaluate_output_shape(shape)


def settled(module: nn.Module) -> nn.Module:
    """With statistics and parameters away from their start."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        with torch.no_grad():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2)
            elif name.endswith(("running_mean", "bias")):
                tensor.normal_(std=0.3)
    return module


def answers(module: EquivariantModule, exported: nn.Module, side: int = 9) -> tuple[Tensor, Tensor]:
    """Return the output of the network in eval mode, and of the exported one."""
    dtype = next((value.dtype for value in tensors_of(module) if value.is_floating_point()), torch.float32)
    features = battery.random_input(module.in_type, side, side, dtype=dtype)
    mode = module.training
    with torch.no_grad():
        expected = module.eval()(module.in_type(features))
        module.train(mode)
        return expected.tensor if isinstance(expected, GeometricTensor) else expected, exported(features)


def mixed_network() -> enn.SequentialModule:
    """R2Conv and relaxed layers in any order, nested, one soft in translation."""
    return enn.SequentialModule(
        soft_layer(C4),
        enn.SequentialModule(
            enn.InnerBatchNorm(C4),
            enn.ReLU(C4),
            R2Conv(C4, C4, 3, padding=2, padding_mode="reflect"),
            enn.SequentialModule(enn.ELU(C4), soft_layer(C4, soft_translation=True)),
        ),
        enn.PointwiseMaxPool2D(C4, 2),
        R2Conv(C4, C4, 3, padding=(1, 2), padding_mode="circular"),
        soft_layer(C4),
        enn.GroupPooling(C4),
    )


LOAD_WITHOUT_ESCNN = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("escnn", "lie_learn"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

sys.meta_path.insert(0, Blocker())
import torch
saved = torch.load(sys.argv[1], weights_only=False)
assert not any(name.split(".")[0] in ("escnn", "lie_learn") for name in sys.modules)
for network, features, expected in saved:
    error = (network(features) - expected).norm() / expected.norm()
    assert error <= 1e-6, error
import escnn_relaxed
try:
    escnn_relaxed.RelaxedR2Conv
except ImportError as error:
    assert "needs escnn and lie_learn, which are not installed" in str(error)
    print("done")
"""


def assert_run_without_escnn(exported: list[tuple[nn.Module, Tensor]], directory: Path) -> None:
    """Saved modules give the same numbers, for a tensor each, in a process where escnn cannot be imported."""
    file = directory / "networks.pt"
    torch.save([(module, features, module(features).detach()) for module, features in exported], file)
    command = [sys.executable, "-c", LOAD_WITHOUT_ESCNN, str(file)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "done", found.stderr
