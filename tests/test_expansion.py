"""A layer computes with an ``expand_parameters`` of its own, as a subclass of R2Conv does."""

import types
from typing import Any

import pytest
import torch
from errors import BROKEN, ROUNDING, SINGLE, relative_error
from escnn import nn as enn
from escnn.gspaces import no_base_space
from small import shake, volume_type
from small_networks import C4, EVERY_MODE, answer, features_of

from escnn_relaxed import (
    RelaxedLinear,
    RelaxedR2Conv,
    RelaxedR2ConvTransposed,
    RelaxedR3Conv,
    export_network,
    harden_network,
    relax_network,
)
from escnn_relaxed.learning.soft_gradients import gradients
from escnn_relaxed.network import to_escnn

VECTORS = enn.FieldType(no_base_space(C4.fibergroup), C4.representations)
PLACE = {"in_type": C4, "out_type": C4, "kernel_size": 3}
VOLUMES = volume_type("cone 4")
KINDS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "plane": (enn.R2Conv, RelaxedR2Conv, PLACE),
    "transposed": (enn.R2ConvTransposed, RelaxedR2ConvTransposed, PLACE),
    "linear": (enn.Linear, RelaxedLinear, {"in_type": VECTORS, "out_type": VECTORS}),
    "space": (enn.R3Conv, RelaxedR3Conv, {**PLACE, "in_type": VOLUMES, "out_type": VOLUMES}),
}


def own(base: type) -> type:
    """A layer of a user's: a mixin that any base may have."""

    class Standardised(base):  # type: ignore[misc]
        def expand_parameters(self) -> tuple[torch.Tensor, torch.Tensor | None]:
            filter_bank, bias = super().expand_parameters()
            return filter_bank / filter_bank.norm() + 0.01, bias

    return Standardised


@EVERY_MODE
@pytest.mark.parametrize("kind", KINDS)
def test_layer_with_a_swapped_base_computes_what_it_did(kind: str, mode: str) -> None:
    theirs, ours, place = KINDS[kind]
    trained, layer = own(theirs)(**place), own(ours)(**place, relax=None)
    shake(trained)
    layer.load_state_dict(trained.train(mode == "train").state_dict())
    layer.train(mode == "train")
    features = features_of(trained)
    found = answer(layer, features)
    assert relative_error(found, answer(trained, features)) <= SINGLE
    assert relative_error(found, answer(relaxed_form(layer, ours, place), features)) > BROKEN
    bank = layer.matrix if kind == "linear" else layer.filter
    assert torch.equal(bank, layer.expand_parameters()[0])
    assert relative_error(layer.export()(features).detach(), found) <= SINGLE
    assert relative_error(export_network(torch.nn.Sequential(layer).eval())(features).detach(), found) <= SINGLE


def relaxed_form(layer: Any, base: type, place: dict[str, Any]) -> Any:
    """The same layer without the expansion of its own."""
    plain = base(**place, relax=None)
    plain.load_state_dict(layer.state_dict())
    return plain


def test_method_of_one_layer_counts_too_and_is_not_lost() -> None:
    def halved(layer: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        return layer.filter_bank() / 2, layer.expanded_bias

    layer = RelaxedR2Conv(**PLACE, bias=False, relax=None)
    expected = answer(layer) / 2
    layer.expand_parameters = types.MethodType(halved, layer)
    assert relative_error(answer(layer), expected) <= SINGLE
    convolution = enn.R2Conv(**PLACE)
    convolution.expand_parameters = types.MethodType(lambda layer: (layer.filter, None), convolution)
    for network, convert in ((layer, relax_network), (convolution, relax_network), (layer, to_escnn)):
        with pytest.raises(ValueError, match="expand_parameters"):
            convert(network)


def test_soft_layer_with_its_own_expansion() -> None:
    """It trains and is hardened as others; one that is soft in translation has no single filter bank."""
    layer = own(RelaxedR2Conv)(**PLACE, relax="rotation", initial_softness=0.3)
    assert type(hardened := harden_network(layer)) is type(layer)
    assert hardened.softness() == 0
    assert relative_error(answer(hardened), answer(layer)) > BROKEN
    moving = own(RelaxedR2Conv)(**PLACE, relax="translation")
    for call in (answer, lambda layer: layer.export()):
        with pytest.raises(ValueError, match=r"Standardised returns one filter bank, .* soft in translation"):
            call(moving)


@pytest.mark.parametrize("side", [4, 9], ids=["few pixels", "many pixels"])
def test_gradients_of_each_input_go_through_its_own_expansion(side: int) -> None:
    layer = own(RelaxedR2Conv)(**PLACE, padding=1, relax="rotation", initial_softness=0.3).double()
    shake(layer)
    features, soft = features_of(layer, side, batch=3), list(layer.soft_parameters())
    (found,) = gradients(layer, soft, (features,), lambda output: output)
    for number, image in enumerate(features.split(1)):
        output = layer(layer.in_type(image)).tensor
        (expected,) = torch.autograd.grad((output * output.detach()).sum(), soft)
        assert relative_error(found[number].detach(), expected) <= ROUNDING


def test_basis_of_its_own_is_refused() -> None:
    with pytest.raises(TypeError, match="Own overrides _build_kernel_basis, which layers of this package do not call"):
        type("Own", (RelaxedR2Conv,), {"_build_kernel_basis": lambda self, in_field, out_field: None})
