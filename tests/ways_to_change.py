"""Every way in which what a filter bank is made of can change, in the soft layers of :mod:`forms`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from forms import another_draw, evaluated, train_a_step
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from escnn_relaxed import RelaxedR2Conv


class Doubled(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return 2 * values


def optimizer_step(layer: RelaxedR2Conv) -> None:
    train_a_step(layer, torch.optim.Adam(layer.parameters(), lr=0.01))


def in_place(layer: RelaxedR2Conv) -> None:
    with torch.no_grad():
        layer.weights.mul_(1.5)


def in_inference_mode(layer: RelaxedR2Conv) -> None:
    with torch.inference_mode():
        layer.weights.mul_(1.5)


def vector_to_parameters(layer: RelaxedR2Conv) -> None:
    vector = nn.utils.parameters_to_vector(layer.parameters())
    nn.utils.vector_to_parameters(1.5 * vector, layer.parameters())


def fused_step(layer: RelaxedR2Conv) -> None:
    train_a_step(layer, torch.optim.Adam(layer.parameters(), lr=0.01, fused=True))


def foreach_step(layer: RelaxedR2Conv) -> None:
    train_a_step(layer, torch.optim.SGD(layer.parameters(), lr=0.01, foreach=True))


def average_of_models(layer: RelaxedR2Conv) -> None:
    """As exponential moving averages write them."""
    torch._foreach_lerp_(
        [weights.data for weights in layer.parameters()], [*map(torch.ones_like, layer.parameters())], 0.1
    )


def of_the_data(layer: RelaxedR2Conv) -> None:
    layer.weights.data.mul_(1.5)


def through_numpy(layer: RelaxedR2Conv) -> None:
    layer.weights.detach().numpy()[:] *= 1.5


def other_state(layer: RelaxedR2Conv) -> dict[str, Tensor]:
    return another_draw("soft" if layer.is_stationary else "soft in translation").to(layer.weights).state_dict()


def loaded(layer: RelaxedR2Conv) -> None:
    layer.load_state_dict(other_state(layer))


def loaded_by_assignment(layer: RelaxedR2Conv) -> None:
    layer.load_state_dict(other_state(layer), assign=True)


def frequency_set(layer: RelaxedR2Conv) -> None:
    layer.set_domain_frequency(rotation=0.3)


def frequency_zero(layer: RelaxedR2Conv) -> None:
    layer.set_domain_frequency(rotation=0.0)


def frequency_in_place(layer: RelaxedR2Conv) -> None:
    layer.domain_frequency["rotation"].mul_(1.5)


def frequency_data(layer: RelaxedR2Conv) -> None:
    layer.domain_frequency["rotation"].data.fill_(0.35)


def dtype(layer: RelaxedR2Conv) -> None:
    layer.float()


def hardened(layer: RelaxedR2Conv) -> None:
    layer.harden()


def hardened_and_dropped(layer: RelaxedR2Conv) -> None:
    layer.harden()
    layer.drop_soft_part()


def replaced_parameter(layer: RelaxedR2Conv) -> None:
    layer.weights = nn.Parameter(2 * layer.weights.detach())


def tensor_in_place_of_a_parameter(layer: RelaxedR2Conv) -> None:
    """As where another network makes the weights."""
    weights = layer.weights.detach()
    del layer.weights
    layer.weights = weights
    evaluated(layer)
    layer.weights = 2 * weights


def replica(layer: RelaxedR2Conv) -> None:
    """As ``nn.DataParallel`` makes them: the tensors are attributes, the cache is that of the first."""
    for module in layer.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and name != "bias":
                del module._parameters[name]
                setattr(module, name, parameter.detach().clone())
    evaluated(layer)
    layer.weights = 2 * layer.weights


def replaced_buffer(layer: RelaxedR2Conv) -> None:
    layer.bank.units = 2 * layer.bank.units


def soft_weights_in_place(layer: RelaxedR2Conv) -> None:
    with torch.no_grad():
        layer.bank.weights.mul_(1.5)


def parametrization(layer: RelaxedR2Conv) -> None:
    parametrize.register_parametrization(layer, "weights", Doubled())


def parametrization_and_step(layer: RelaxedR2Conv) -> None:
    parametrizations.weight_norm(layer, "weights")
    evaluated(layer)
    with torch.no_grad():
        layer.parametrizations.weights.original0.mul_(2)


def turned(layer: RelaxedR2Conv) -> None:
    layer.bank.turn(0.3)


def frequency_of_translation_set(layer: RelaxedR2Conv) -> None:
    layer.set_domain_frequency(translation=(0.4, 0.1))


def frequency_of_translation_zero(layer: RelaxedR2Conv) -> None:
    layer.set_domain_frequency(translation=0.0)


def frequency_of_translation_in_place(layer: RelaxedR2Conv) -> None:
    layer.domain_frequency["translation"].mul_(1.5)


def frequency_of_translation_data(layer: RelaxedR2Conv) -> None:
    layer.domain_frequency["translation"].data.fill_(0.35)


def hardened_in_translation(layer: RelaxedR2Conv) -> None:
    layer.harden("translation")


def hardened_in_the_group(layer: RelaxedR2Conv) -> None:
    """The kernel still depends on the position."""
    layer.harden("rotation")
    assert not layer.is_stationary


Change = Callable[[RelaxedR2Conv], None]


def named(*changes: Change) -> dict[str, Change]:
    return {change.__name__.replace("_", " "): change for change in changes}


CHANGES_IN_TRANSLATION = named(
    frequency_of_translation_set,
    frequency_of_translation_zero,
    frequency_of_translation_in_place,
    frequency_of_translation_data,
    hardened_in_translation,
    hardened_in_the_group,
)
CHANGES = named(
    optimizer_step,
    in_place,
    in_inference_mode,
    vector_to_parameters,
    fused_step,
    foreach_step,
    average_of_models,
    of_the_data,
    through_numpy,
    loaded,
    loaded_by_assignment,
    frequency_set,
    frequency_zero,
    frequency_in_place,
    frequency_data,
    dtype,
    hardened,
    hardened_and_dropped,
    replaced_parameter,
    tensor_in_place_of_a_parameter,
    replica,
    replaced_buffer,
    soft_weights_in_place,
    parametrization,
    parametrization_and_step,
)
