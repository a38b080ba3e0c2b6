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
from tolerances import ROUNDING
from trained_networks import answer, softnesses, train_a_step
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, harden_network, relax_network
from escnn_relaxed.layer.arguments import SOFTENING
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

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


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("case", CASES)
def test_soft_part_is_added_beside_the_trained_weights(case: str, mode: str) -> None:
    build, space, pair, arguments = CASES[case]
    trained = build(*battery.types(space, pair), relax=None, **{"kernel_size": 3, **arguments})
    shake(trained)
    trained = trained.double().train(mode == "train")
    relaxed = relax_network(trained, relax=SOFT)
    assert type(relaxed) is type(trained)
    assert relaxed.relaxed_subgroups == ("rotation",)
    assert relaxed.training == (mode == "train")
    assert relaxed.weights is not trained.weights
    assert relative_error(answer(relaxed), answer(trained)) <= ROUNDING
    assert relaxed.softness().item() == 0
    train_a_step(relaxed.train())
    assert relaxed.softness().item() > 0
    # The soft part was learned beside the strict one, to which the layer returns.
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


def test_weights_that_are_shared_with_an_r2conv_stay_shared() -> None:
    fields = battery.field_type("C4", "regular")
    mixed = enn.SequentialModule(R2Conv(fields, fields, 3), RelaxedR2Conv(fields, fields, 3, relax=None))
    mixed[1].weights = mixed[0].weights
    relaxed = relax_network(mixed, relax=SOFT)
    assert relaxed[1].weights is relaxed[0].weights is not mixed[0].weights


def test_soft_layers_are_left_alone() -> None:
    fields = battery.field_type("C4", "regular")
    soft, in_place = (RelaxedR2Conv(fields, fields, 1, relax=SOFT, initial_softness=0.2) for _ in range(2))
    in_place.harden()
    network = enn.SequentialModule(soft, in_place, RelaxedR2Conv(fields, fields, 3, relax=None)).eval()
    relaxed = relax_network(network, relax={"rotation": 0.3})
    assert [repr(layer) for layer in list(relaxed)[:2]] == [repr(soft), repr(in_place)]
    assert relaxed[2].relaxed_subgroups == ("rotation",)
    assert torch.equal(answer(relaxed), answer(network))
    with pytest.raises(ValueError, match=r"network has no .*R2Conv.* to relax, nor a layer .* with relax=None"):
        relax_network(enn.SequentialModule(soft, in_place))


def test_options_are_those_of_a_layer_beside_its_strict_part() -> None:
    """In the signature, in the docstring, and one that is passed on."""
    arguments = inspect.signature(RelaxedR2Conv).parameters.values()
    own = [each.name for each in arguments if each.kind is each.KEYWORD_ONLY]
    assert list(SOFTENING) == own
    (listed,) = re.findall(r"\*\*softening: .*?:(.*?)\.", relax_network.__doc__, re.DOTALL)
    assert re.findall("``(.*?)``", listed) == own
    strict = RelaxedR2Conv(*battery.types("C8", "regular -> regular"), 3, relax=None)
    assert "keep='C4'" in repr(relax_network(strict, relax=SOFT, keep="C4"))
