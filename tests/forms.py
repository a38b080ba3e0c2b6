"""The forms that a layer can have, for what must hold in each: state, staleness, export, and what PyTorch does around.

``FORMS`` are those of ``RelaxedR2Conv``, ``ALL`` beside them the other ways to relax, transposed layers and volumes.
"""

from __future__ import annotations

import copy
import functools
import io
import pickle
from typing import Any

import battery
import pytest
import torch
import volumes
from escnn.nn import EquivariantModule, FieldType
from layers import build, shake
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed
from escnn_relaxed.baselines import LAYERS
from escnn_relaxed.continuous import SirenKernel

_C4 = ("C4", "regular + irreps -> irreps + regular")
_SO2 = ("SO(2)", "irreps -> irreps")
_SOFT = {"rotation": 0.2}
_EVERYWHERE = {"rotation": 0.2, "translation": (0.2, 0.4)}
_CONTINUOUS = {"soft_part": "continuous"}

# Name → symmetry, field types, arguments.
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
        if form == "volumes" or form in LAYERS:
            if form == "volumes":
                layer = volumes.layer(volumes.fields(space), padding=1, initial_softness=0.3)
            else:
                layer = arguments["make"](*battery.types(space, pair), 3, padding=1, initial_softness=0.2).double()
            shake(layer)
            return layer
        return build(*battery.types(space, pair), padding=1, initial_softness=0.3, **arguments)


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


def soft_weights(layer: RelaxedR2Conv) -> list[Tensor]:
    """The weights that a strict layer does without; ω′ is not among them."""
    fixed = {id(parameter) for name, parameter in layer.named_parameters() if "kernel.frequency" in name}
    return [parameter for parameter in layer.soft_parameters() if id(parameter) not in fixed]
