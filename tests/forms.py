"""The forms that a layer can have, for what must hold in each: state, caches, export, and what PyTorch does around."""

from __future__ import annotations

import copy
import functools

import battery
import pytest
import torch
from escnn.nn import EquivariantModule
from layers import build
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.group.regions import RegionPartition
from escnn_relaxed.integral.regions import integrate_regions
from escnn_relaxed.kernel import SirenKernel

_C4 = ("C4", "regular + irreps -> irreps + regular")
_SO2 = ("SO(2)", "irreps -> irreps")
_SOFT = {"rotation": 0.2}
_EVERYWHERE = {"rotation": 0.2, "translation": (0.2, 0.4)}

# Name → symmetry, field types, arguments.
FORMS: dict[str, tuple[str, str, dict[str, object]]] = {
    "strict": (*_C4, {"relax": None, "soft_part": "tied"}),
    "strict, continuous": (*_C4, {"relax": None}),
    "soft": (*_C4, {"relax": _SOFT, "soft_part": "tied"}),
    "soft, centred": (*_C4, {"relax": _SOFT, "soft_part": "centred"}),
    "soft, continuous": (*_C4, {"relax": _SOFT}),
    "learned": ("D4", "regular -> mixed", {"relax": {"rotation": 0.2, "reflection": 0.3}, "learn_relaxation": True}),
    "siren": (*_C4, {"relax": _SOFT, "net": SirenKernel}),
    "random offset": (*_SO2, {"relax": _SOFT, "random_offset": True, "samples": 4, "soft_part": "tied"}),
    "soft in translation": (*_C4, {"relax": _EVERYWHERE, "soft_part": "tied"}),
    "soft in translation, continuous": (*_SO2, {"relax": _EVERYWHERE, "samples": 4, "random_offset": True}),
    "soft in translation, per pixel": (*_C4, {"relax": _EVERYWHERE, "soft_part": "tied", "regions": None}),
    "learned in translation": (
        "C4",
        "regular -> regular",
        {"relax": {"translation": 0.3}, "learn_relaxation": True, "net": SirenKernel, "frame": "image"},
    ),
}
STATIONARY = tuple(form for form in FORMS if "translation" not in form)
SOFT_IN_TRANSLATION = tuple(form for form in FORMS if "translation" in form)
# Those whose filter banks are kept in evaluation.
WITH_BANKS = tuple(form for form in FORMS if "per pixel" not in form)
SOFT_WITH_BANKS = tuple(form for form in SOFT_IN_TRANSLATION if form in WITH_BANKS)
# One of each kind, where the others would go the same way through the code.
FEW = ("soft", "strict, continuous", "soft in translation")

EVERY_FORM = pytest.mark.parametrize("form", FORMS)
EVERY_FORM_WITH_BANKS = pytest.mark.parametrize("form", WITH_BANKS)
A_FEW_FORMS = pytest.mark.parametrize("form", FEW)
EVERY_MODE = pytest.mark.parametrize("mode", ["train", "eval"])


@functools.cache
def _built(form: str, seed: int) -> RelaxedR2Conv:
    space, pair, arguments = FORMS[form]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(*battery.types(space, pair), padding=1, initial_softness=0.3, **arguments)


def layer_of(form: str, dtype: torch.dtype = torch.float64) -> RelaxedR2Conv:
    """A layer of its own, the same one in every call."""
    return copy.deepcopy(_built(form, 1)).to(dtype)


def another_draw(form: str) -> RelaxedR2Conv:
    """A layer of the same form with other weights."""
    return copy.deepcopy(_built(form, 2))


def features_of(module: EquivariantModule, side: int = 8, batch: int = 2) -> Tensor:
    """White noise in a module's type, dtype and place, the same in every call; by default with four regions."""
    generator = torch.Generator().manual_seed(1)
    shape = batch, module.in_type.size, *module.in_type.gspace.dimensionality * [side]
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


def evaluated(layer: RelaxedR2Conv) -> Tensor:
    """The answer of a layer as it is, of a bank that it may have kept."""
    return answer(layer)


def uncached(layer: RelaxedR2Conv) -> Tensor:
    """The answer of a bank built now, or of banks of regions, by a copy that remembers nothing."""
    other = copy.deepcopy(layer)
    with torch.no_grad():
        if layer.is_stationary:
            bank, bias = other.expand_parameters()
            geometry, features = layer.geometry, features_of(layer).to(bank)
            return nn.functional.conv2d(features, bank, bias, geometry.stride, geometry.padding)
        bias = other.expanded_bias()
        features = features_of(layer)
        size = layer.geometry.output_size(*features.shape[2:])
        partition = RegionPartition.of(size, layer.regions)
        return integrate_regions(features, other.region_banks(size).flatten(0, 1), bias, layer.geometry, partition)


def train_a_step(module: EquivariantModule, optimiser: torch.optim.Optimizer | None = None) -> None:
    """One step of gradient descent on the square of the answer to white noise."""
    optimiser = optimiser or torch.optim.SGD(module.parameters(), lr=1e-3)
    optimiser.zero_grad()
    module(module.in_type(features_of(module))).tensor.square().mean().backward()
    optimiser.step()


def loss_and_gradients(layer: RelaxedR2Conv, features: Tensor) -> list[Tensor]:
    """The mean square of the answer, and its gradients for the features and every parameter."""
    features = features.clone().requires_grad_()
    found = layer(layer.in_type(features)).tensor
    loss = found.to(features.dtype).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, [features, *layer.parameters()])]


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Every tensor that a module holds, whether or not it is state."""
    return [tensor for tensor in [*module.parameters(), *module.buffers()] if tensor.numel()]
