"""The forms that a layer can have, ``FORMS`` those of ``RelaxedR2Conv`` and ``ALL`` every kind, and small networks."""

import contextlib
import copy
import functools
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from escnn import nn as enn
from escnn.gspaces import no_base_space
from escnn.nn import EquivariantModule, FieldType, GeometricTensor, R2Conv
from small import build, field_type, gspace, random_input, shake, soft_regular_layer, types, volume_layer, volume_type
from torch import Tensor, nn

from escnn_relaxed import RelaxedLinear, RelaxedR2Conv, RelaxedR2ConvTransposed, RelaxedR3ConvTransposed
from escnn_relaxed.baselines import LAYERS
from escnn_relaxed.continuous import SirenKernel

_C4 = ("C4", "regular + irreps -> irreps + regular")
_SO2 = ("SO(2)", "irreps -> irreps")
_SOFT = {"rotation": 0.2}
_EVERYWHERE = {"rotation": 0.2, "translation": (0.2, 0.4)}
_CONTINUOUS = {"soft_part": "continuous"}

FORMS: dict[str, tuple[str, str, dict[str, object]]] = {
    "strict": (*_C4, {"relax": None}),
    "strict, continuous": (*_C4, {"relax": None, **_CONTINUOUS}),
    "soft": (*_C4, {"relax": _SOFT}),
    "soft, continuous": (*_C4, {"relax": _SOFT, **_CONTINUOUS}),
    "learned": ("D4", "regular -> regular", {"relax": {"rotation": 0.2, "reflection": 0.3}, "learn_relaxation": True}),
    "siren": (*_C4, {"relax": _SOFT, "net": SirenKernel}),
    "soft in translation": (*_C4, {"relax": _EVERYWHERE}),
    "soft in translation, continuous": (*_SO2, {"relax": _EVERYWHERE, "samples": 4, **_CONTINUOUS}),
    "learned in translation": (
        "C4",
        "regular -> regular",
        {"relax": {"rotation": 0.2, "translation": 0.3}, "learn_relaxation": True, "net": SirenKernel},
    ),
}
_TRANSPOSED = {"make": RelaxedR2ConvTransposed, "stride": 2}
OTHERS: dict[str, tuple[str, str, dict[str, object]]] = {
    "partial": ("D4", "regular -> two regular", {"make": LAYERS["partial"]}),
    "weighted": ("D4", "regular -> two regular", {"make": LAYERS["weighted"]}),
    "residual": ("D4", "regular -> mixed, sheared", {"make": LAYERS["residual"]}),
    "transposed": (*_C4, {"relax": _SOFT, **_TRANSPOSED}),
    "transposed, in translation": (*_C4, {"relax": _EVERYWHERE, **_TRANSPOSED}),
    "volumes": ("cone 4", "", {}),
    "volumes, transposed": ("cone 4", "", {"make": RelaxedR3ConvTransposed, "stride": 2}),
    "linear": ("D4", "regular + trivial -> mixed, sheared + regular", {}),
}
ALL = FORMS | OTHERS
SOFT_IN_TRANSLATION = tuple(form for form in FORMS if "translation" in form)
# One of each kind, where the others would go the same way through the code.
FEW = ("soft", "strict, continuous", "soft in translation")

EVERY_FORM = pytest.mark.parametrize("form", FORMS)
A_FEW_FORMS = pytest.mark.parametrize("form", FEW)
# Kernels that are made at every pixel have no form on plain tensors.
AT_PIXELS = ("soft in translation, continuous", "learned in translation")
EVERY_EXPORTED = pytest.mark.parametrize("form", [form for form in ALL if form not in AT_PIXELS])
EVERY_LAYER = pytest.mark.parametrize("form", ALL)
EVERY_SOFT_LAYER = pytest.mark.parametrize("form", [form for form in ALL if "strict" not in form])
EVERY_MODE = pytest.mark.parametrize("mode", ["train", "eval"])


@functools.cache
def _built(form: str, seed: int) -> EquivariantModule:
    space, pair, arguments = ALL[form]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if "volumes" in form or form in (*LAYERS, "linear"):
            if form == "linear":
                vectors = [FieldType(no_base_space(of.fibergroup), of.representations) for of in types(space, pair)]
                layer = RelaxedLinear(*vectors, initial_softness=0.3).double()
            elif "volumes" in form:
                layer = volume_layer(volume_type(space), padding=1, initial_softness=0.3, **arguments)
            else:
                layer = arguments["make"](*types(space, pair), 3, padding=1, initial_softness=0.2).double()
            shake(layer)
            return layer
        return build(*types(space, pair), padding=1, initial_softness=0.3, **arguments)


def layer_of(form: str, dtype: torch.dtype = torch.float64) -> RelaxedR2Conv:
    """A layer of its own, the same one in every call."""
    return copy.deepcopy(_built(form, 1)).to(dtype)


def another_draw(form: str) -> RelaxedR2Conv:
    """A layer of the same form with other weights."""
    return copy.deepcopy(_built(form, 2))


def features_of(module: EquivariantModule, side: int = 8, batch: int = 2) -> Tensor:
    """White noise in a module's type, dtype and place, the same in every call."""
    in_type: FieldType = module.in_type
    generator = torch.Generator().manual_seed(1)
    shape = batch, in_type.size, *in_type.gspace.dimensionality * [side]
    noise = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return noise.to(next(module.parameters()))


def answer(module: EquivariantModule, features: Tensor | None = None) -> Tensor:
    """The module's answer to white noise, without a gradient."""
    features = features_of(module) if features is None else features
    with torch.no_grad():
        found: Tensor = module(module.in_type(features)).tensor
    return found


def answer_in_eval(module: EquivariantModule) -> Tensor:
    """The answer in eval mode; the mode is left as it was."""
    mode = module.training
    found = answer(module.eval())
    module.train(mode)
    return found


def uncached(layer: EquivariantModule) -> Tensor:
    """The answer of a copy in training, where filter banks are made in every call."""
    return answer(copy.deepcopy(layer).train())


def train_a_step(module: EquivariantModule, optimiser: torch.optim.Optimizer | None = None) -> None:
    """One step of gradient descent on the square of the answer to white noise."""
    optimiser = optimiser or torch.optim.SGD(module.parameters(), lr=1e-3)
    optimiser.zero_grad()
    module(module.in_type(features_of(module))).tensor.square().mean().backward()
    optimiser.step()


def loss_and_gradients(layer: EquivariantModule, features: Tensor) -> list[Tensor]:
    """The mean square of the answer, and its gradients for the features and every parameter."""
    features = features.clone().requires_grad_()
    found = layer(layer.in_type(features)).tensor
    loss = found.to(features.dtype).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, [features, *layer.parameters()])]


def gradients(loss: Tensor, module: nn.Module) -> dict[str, Tensor]:
    """The gradient of every parameter that the loss depends on."""
    names, parameters = zip(*module.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {name: gradient for name, gradient in zip(names, found, strict=True) if gradient is not None}


def through_a_file(thing: Any, **arguments: Any) -> Any:
    """What is saved by torch and loaded again."""
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, **arguments)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": lambda module: through_a_file(module, weights_only=False),
}


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Every tensor that a module holds, whether or not it is state."""
    return [tensor for tensor in [*module.parameters(), *module.buffers()] if tensor.numel()]


@contextlib.contextmanager
def left_alone(module: nn.Module, but: str = "nothing") -> Iterator[None]:
    """Within the block the state, all modes, the hooks and torch's generator stay as they are."""
    before = {name: value.clone() for name, value in module.state_dict().items() if but not in name}
    modes, drawn = [each.training for each in module.modules()], torch.get_rng_state()
    yield
    after = {name: value for name, value in module.state_dict().items() if but not in name}
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert [each.training for each in module.modules()] == modes
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())


def soft_weights(layer: RelaxedR2Conv) -> list[Tensor]:
    """The weights that a strict layer does without; ω′ is not among them."""
    fixed = {id(parameter) for name, parameter in layer.named_parameters() if "kernel.frequency" in name}
    return [parameter for parameter in layer.soft_parameters() if id(parameter) not in fixed]


# --- networks of soft layers ------------------------------------------------------------------------------------------


def network_of(*layers: RelaxedR2Conv) -> enn.SequentialModule:
    """Layers with ReLUs between them."""
    modules: list[nn.Module] = [layers[0]]
    for layer in layers[1:]:
        modules += [enn.ReLU(layer.in_type), layer]
    return enn.SequentialModule(*modules)


class Network(nn.Module):
    """R2Conv and relaxed layers, batch norm between them, on the torus."""

    def __init__(self, soft_part: str = "tied") -> None:
        super().__init__()
        self.first = soft_regular_layer(soft_part, "D2", {"rotation": 0.15})
        fields = self.first.out_type
        self.plain = enn.R2Conv(fields, fields, 3, padding=1, padding_mode="circular").double()
        self.body = enn.SequentialModule(
            soft_regular_layer(soft_part, "D2", {"reflection": 0.5}),
            enn.InnerBatchNorm(fields).double(),
            enn.ReLU(fields),
            soft_regular_layer(soft_part, "D2", {"rotation": 0.1, "translation": 0.3}),
        )
        self.strict = soft_regular_layer(soft_part, "D2", {})
        self.features = random_input(fields, 8, 8)
        for norm in self.batch_norms():
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def batch_norms(self) -> list[nn.BatchNorm3d]:
        return [module for module in self.modules() if isinstance(module, nn.BatchNorm3d)]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.strict(self.body(self.plain(self.first(self.first.in_type(features))))).tensor


# --- trained layers and networks of R2Conv, for what is done with networks that exist ---------------------------------


def convolution(space: str, pair: str, kernel_size: int = 3, make: type = R2Conv, **arguments: object) -> R2Conv:
    """A trained layer: weights and bias away from their start."""
    layer = make(*types(space, pair), kernel_size, **arguments)
    shake(layer)
    return layer


def network(space: str = "C4", **arguments: object) -> enn.SequentialModule:
    """Three layers with escnn's batch norm, ReLU and pooling."""
    regular = field_type(space, "two regular")
    return enn.SequentialModule(
        convolution(space, "trivial -> two regular", padding=1, **arguments),
        enn.InnerBatchNorm(regular),
        enn.ReLU(regular),
        convolution(space, "two regular -> two regular", padding=1, **arguments),
        enn.PointwiseMaxPool2D(regular, kernel_size=2),
        convolution(space, "two regular -> two regular", padding=1, **arguments),
        enn.GroupPooling(regular),
    )


# --- networks that mix R2Conv and relaxed layers, to be exported ------------------------------------------------------

C4 = field_type("C4", "two regular")
MIXED = field_type("D4", "regular + trivial + regular + quotient")
IRREPS = FieldType(gspace("SO(2)"), field_type("SO(2)", "irreps + trivial + irreps").representations)

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


def layer_to_export(
    fields: FieldType, out_type: FieldType | None = None, soft_translation: bool = False, **arguments: object
) -> RelaxedR2Conv:
    relax = {"rotation": 0.2, "translation": (0.2, 0.4)} if soft_translation else {"rotation": 0.2}
    arguments = {"kernel_size": 3, "padding": 1, "initial_softness": 0.3, **arguments}
    return RelaxedR2Conv(fields, out_type or fields, relax=relax, **arguments)


class OnTensors(nn.Module):
    """A module of fields from tensor to tensor."""

    def __init__(self, fields: EquivariantModule) -> None:
        super().__init__()
        self.fields = fields

    def forward(self, features: Tensor) -> Tensor:
        found: Tensor = self.fields(self.fields.in_type(features)).tensor
        return found


class Block(EquivariantModule):
    """Sum of a body and a shortcut, as in escnn's ``examples/e2wrn.py``."""

    def __init__(self, in_type: FieldType, out_type: FieldType, stride: int = 1) -> None:
        super().__init__()
        self.in_type, self.out_type = in_type, out_type
        self.relu = enn.ReLU(in_type, inplace=True)
        self.norm = enn.InnerBatchNorm(in_type)
        self.conv = layer_to_export(in_type, out_type, stride=stride)
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
    features = random_input(module.in_type, side, side, dtype=dtype)
    mode = module.training
    with torch.no_grad():
        expected = module.eval()(module.in_type(features))
        module.train(mode)
        return expected.tensor if isinstance(expected, GeometricTensor) else expected, exported(features)


def of_onnx_runtime(file: io.BytesIO, *inputs: Tensor) -> Tensor:
    """The answer of a model in a file."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    (found,) = session.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})
    return torch.from_numpy(found)


def mixed_network() -> enn.SequentialModule:
    """R2Conv and relaxed layers in any order, nested, one soft in translation."""
    return enn.SequentialModule(
        layer_to_export(C4),
        enn.SequentialModule(
            enn.InnerBatchNorm(C4),
            enn.ReLU(C4),
            R2Conv(C4, C4, 3, padding=2, padding_mode="reflect"),
            enn.SequentialModule(enn.ELU(C4), layer_to_export(C4, soft_translation=True)),
        ),
        enn.PointwiseMaxPool2D(C4, 2),
        R2Conv(C4, C4, 3, padding=(1, 2), padding_mode="circular"),
        layer_to_export(C4),
        enn.GroupPooling(C4),
    )
