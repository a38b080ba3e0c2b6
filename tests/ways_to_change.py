"""Every way in which the values of a tensor can be written, and in which the tensors of a layer can change."""

from __future__ import annotations

from collections.abc import Callable

import torch
from small_networks import another_draw, answer, train_a_step
from torch import Tensor, distributed, nn
from torch.nn.utils import parametrizations, parametrize
from torch.optim.swa_utils import get_ema_multi_avg_fn

from escnn_relaxed import RelaxedR2Conv

# --- values of a tensor -----------------------------------------------------------------------------------------------


def in_place(tensor: Tensor, new: Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(new)


def in_inference_mode(tensor: Tensor, new: Tensor) -> None:
    with torch.inference_mode():
        tensor.copy_(new)


def by_its_data(tensor: Tensor, new: Tensor) -> None:
    tensor.data.copy_(new)


def by_other_data(tensor: Tensor, new: Tensor) -> None:
    tensor.data = new.clone()


def by_numpy(tensor: Tensor, new: Tensor) -> None:
    tensor.detach().numpy()[...] = new.numpy()


def by_a_vector(tensor: Tensor, new: Tensor) -> None:
    nn.utils.vector_to_parameters(new.flatten(), [tensor])


def by_a_collective(tensor: Tensor, new: Tensor) -> None:
    """As ``broadcast`` writes on the processes that receive: no version counter rises."""
    version = tensor._version
    distributed.scatter(tensor.detach(), [new], src=0)
    assert tensor._version == version


def by_an_average(tensor: Tensor, new: Tensor) -> None:
    get_ema_multi_avg_fn(0.0)([tensor.data], [new], 1)


def by_many_at_once(tensor: Tensor, new: Tensor) -> None:
    torch._foreach_lerp_([tensor.data], [new], 1.0)


def _stepped(tensor: Tensor, new: Tensor, optimiser: Callable[[list[Tensor]], torch.optim.Optimizer]) -> None:
    before, tensor.grad = tensor.requires_grad, (tensor - new).detach()
    optimiser([tensor.requires_grad_()]).step()
    tensor.grad = None
    tensor.requires_grad_(before)


def by_a_fused_step(tensor: Tensor, new: Tensor) -> None:
    _stepped(tensor, new, lambda parameters: torch.optim.SGD(parameters, lr=1.0, fused=True))


def by_a_step_of_many(tensor: Tensor, new: Tensor) -> None:
    _stepped(tensor, new, lambda parameters: torch.optim.SGD(parameters, lr=1.0, foreach=True))


WRITES: dict[str, Callable[[Tensor, Tensor], None]] = {
    write.__name__.replace("_", " "): write
    for write in (
        *(in_place, in_inference_mode, by_its_data, by_other_data, by_numpy, by_a_vector, by_a_collective),
        *(by_an_average, by_many_at_once, by_a_fused_step, by_a_step_of_many),
    )
}

# --- tensors of a layer -----------------------------------------------------------------------------------------------


class Doubled(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return 2 * values


def optimizer_step(layer: RelaxedR2Conv) -> None:
    train_a_step(layer, torch.optim.Adam(layer.parameters(), lr=0.01, fused=True))


def other_state(layer: RelaxedR2Conv) -> dict[str, Tensor]:
    return another_draw("soft" if layer.is_stationary else "soft in translation").to(layer.weights).state_dict()


def loaded(layer: RelaxedR2Conv) -> None:
    layer.load_state_dict(other_state(layer))


def loaded_by_assignment(layer: RelaxedR2Conv) -> None:
    layer.load_state_dict(other_state(layer), assign=True)


def frequency_set(layer: RelaxedR2Conv) -> None:
    layer.set_domain_frequency(**dict.fromkeys(layer.domain_frequency, 0.45))


def frequency_zero(layer: RelaxedR2Conv) -> None:
    layer.set_domain_frequency(**dict.fromkeys(layer.domain_frequency, 0.0))


def frequency_zero_and_back(layer: RelaxedR2Conv) -> None:
    """Whether a layer is soft at all may be kept as well."""
    layer.set_domain_frequency(rotation=0.0)
    answer(layer)
    layer.domain_frequency["rotation"].data.fill_(0.4)


def dtype(layer: RelaxedR2Conv) -> None:
    layer.float()


def hardened(layer: RelaxedR2Conv) -> None:
    layer.harden()


def hardened_in_rotation(layer: RelaxedR2Conv) -> None:
    layer.harden("rotation")


def softness_set(layer: RelaxedR2Conv) -> None:
    layer.set_softness(0.01)


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
    answer(layer)
    layer.weights = 2 * weights


def replica(layer: RelaxedR2Conv) -> None:
    """As ``nn.DataParallel`` makes them: the tensors are attributes, what is kept is that of the first."""
    for module in layer.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and name != "bias":
                del module._parameters[name]
                setattr(module, name, parameter.detach().clone())
    answer(layer)
    layer.weights = 2 * layer.weights


def parametrization(layer: RelaxedR2Conv) -> None:
    parametrize.register_parametrization(layer, "weights", Doubled())


def parametrization_and_step(layer: RelaxedR2Conv) -> None:
    parametrizations.weight_norm(layer, "weights")
    answer(layer)
    with torch.no_grad():
        layer.parametrizations.weights.original0.mul_(2)


CHANGES: dict[str, Callable[[RelaxedR2Conv], None]] = {
    change.__name__.replace("_", " "): change
    for change in (
        *(optimizer_step, loaded, loaded_by_assignment, frequency_set, frequency_zero, frequency_zero_and_back, dtype),
        *(hardened, hardened_in_rotation, softness_set, hardened_and_dropped, replaced_parameter),
        *(tensor_in_place_of_a_parameter, replica, parametrization, parametrization_and_step),
    )
}
