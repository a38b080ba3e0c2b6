"""``relax_network`` of this package's own strict layers: trained as ``R2Conv``, softened as it is."""

from __future__ import annotations

import inspect
import re

import battery
import pytest
import torch
from escnn import nn as enn
from escnn.nn import R2Conv
from layers import shake
from trained_networks import answer, softnesses, train_a_step
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, harden_network, relax_network
from escnn_relaxed.layer.options import SOFTENING
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

ROUNDING = 1e-12  # of float64, of sums in another order
SOFT = {"rotation": 0.2}
CASES = {
    "C4": (RelaxedR2Conv, "C4", "regular -> irreps", {"padding": (1, 2), "padding_mode": "reflect"}),
    "D4, groups": (RelaxedR2Conv, "D4", "irreps + irreps -> regular + regular", {"groups": 2, "stride": 2}),
    "SO(2)": (RelaxedR2Conv, "SO(2)", "irreps -> band-limited", {"dilation": 2, "bias": False}),
    "kernel 2, of which escnn has none": (RelaxedR2Conv, "C4", "regular -> regular", {"kernel_size": 2}),
    "basis of other rings": (RelaxedR2Conv, "C4", "regular -> regular", {"rings": [0.0, 1.0], "sigma": [0.4, 0.5]}),
    "transposed": (RelaxedR2ConvTransposed, "C4", "regular -> irreps", {"stride": 2, "output_padding": (1, 0)}),
    "transposed, groups": (RelaxedR2ConvTransposed, "C8", "trivial + trivial -> quotient + quotient", {"groups": 2}),
}


def strict_layer(case: str) -> RelaxedR2Conv | RelaxedR2ConvTransposed:
    """Weights and bias away from their start."""
    build, space, pair, arguments = CASES[case]
    layer = build(*battery.types(space, pair), relax=None, **{"kernel_size": 3, **arguments})
    shake(layer)
    return layer.double()


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("case", CASES)
def test_soft_part_is_added_beside_the_trained_weights(case: str, mode: str) -> None:
    trained = strict_layer(case).train(mode == "train")
    relaxed = relax_network(trained, relax=SOFT)
    assert type(relaxed) is type(trained)
    assert relaxed.relaxed_subgroups == ("rotation",)
    assert relaxed.training == (mode == "train")
    assert relaxed.weights is not trained.weights
    assert relative_error(answer(relaxed), answer(trained)) <= ROUNDING
    assert relaxed.softness().item() == 0
    train_a_step(relaxed.train())
    assert relaxed.softness().item() > 0
    # The soft part has learned beside the strict part, to which the layer goes back.
    frozen = relax_network(trained, freeze=True, relax=SOFT)
    train_a_step(frozen.train())
    assert torch.equal(harden_network(frozen).weights, trained.weights)


def test_hardened_network_is_softened_again() -> None:
    fields = battery.field_type("C4", "two regular")
    network = enn.SequentialModule(R2Conv(fields, fields, 3), enn.ReLU(fields), RelaxedR2Conv(fields, fields, 3))
    hardened = harden_network(relax_network(network.double(), relax=SOFT))
    again = relax_network(hardened, relax=SOFT)
    assert [name for name, _ in named_relaxed_layers(again)] == ["0", "2"]
    assert relative_error(answer(again), answer(hardened)) <= ROUNDING
    train_a_step(again)
    assert min(softnesses(again)) > 0


def test_soft_layers_and_continuous_ones_are_left_alone() -> None:
    fields = battery.field_type("C4", "regular")
    soft = RelaxedR2Conv(fields, fields, 1, relax={"rotation": 0.1}, initial_softness=0.2)
    in_place = RelaxedR2Conv(fields, fields, 1)
    in_place.harden()
    continuous = RelaxedR2Conv(fields, fields, 1, relax=None, strict_kernel="continuous")
    others = [soft, in_place, continuous]
    network = enn.SequentialModule(*others, RelaxedR2Conv(fields, fields, 3, relax=None)).eval()
    relaxed = relax_network(network, relax=SOFT)
    assert [repr(layer) for layer in list(relaxed)[:3]] == [repr(layer) for layer in others]
    assert relaxed[3].relaxed_subgroups == ("rotation",)
    assert torch.equal(answer(relaxed), answer(network))
    with pytest.raises(ValueError, match=r"network has no .*R2Conv.* to relax, nor a layer .* with relax=None"):
        relax_network(enn.SequentialModule(*others))


def test_weights_that_are_shared_with_an_r2conv_stay_shared() -> None:
    fields = battery.field_type("C4", "regular")
    network = enn.SequentialModule(R2Conv(fields, fields, 3), RelaxedR2Conv(fields, fields, 3, relax=None))
    network[1].weights = network[0].weights
    relaxed = relax_network(network, relax=SOFT)
    assert relaxed[1].weights is relaxed[0].weights is not network[0].weights


class Doubled(RelaxedR2Conv):
    def forward(self, input: enn.GeometricTensor) -> enn.GeometricTensor:
        return super().forward(input) * 2.0


def test_strict_layer_that_does_more_than_its_kernel_is_refused() -> None:
    fields = battery.field_type("C4", "regular")
    doubled, hooked = Doubled(fields, fields, 3, relax=None), RelaxedR2Conv(fields, fields, 3, relax=None)
    hooked.register_forward_hook(lambda module, inputs, output: output * 2.0)
    with pytest.raises(ValueError, match=r"0, a Doubled, has methods of its own, forward, .* put a RelaxedR2Conv"):
        relax_network(enn.SequentialModule(doubled))
    with pytest.raises(ValueError, match="0 has forward_hooks, which would be lost"):
        relax_network(enn.SequentialModule(hooked))


def test_options_are_those_of_a_layer_beside_its_strict_part() -> None:
    """In the signature, in the docstring, and one that is passed on."""
    arguments = inspect.signature(RelaxedR2Conv).parameters.values()
    own = [each.name for each in arguments if each.kind is each.KEYWORD_ONLY and each.name != "strict_kernel"]
    assert list(SOFTENING) == own
    (listed,) = re.findall(r"\*\*softening: .*?:(.*?)\.", relax_network.__doc__, re.DOTALL)
    assert re.findall("``(.*?)``", listed) == own
    relaxed = relax_network(strict_layer("transposed, groups"), relax=SOFT, keep="C4")
    assert "keep='C4'" in repr(relaxed)
