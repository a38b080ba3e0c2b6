"""States of R2Conv load; nothing is shared between layers; what R2Conv itself does with state, copies and pickles."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import battery
import pytest
import torch
from escnn import nn as enn
from escnn.nn import R2Conv
from forms import EVERY_MODE, FEW, answer, answer_in_eval, features_of, layer_of, tensors_of
from layers import shake
from tolerances import SINGLE
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv, relax_network

C4 = ("C4", "regular + irreps -> irreps + regular")
RELAXED = {"strict": None, "soft": {"rotation": 0.2}, "soft in translation": {"translation": 0.3}}
EVERY_RELAXED = pytest.mark.parametrize("relax", RELAXED.values(), ids=RELAXED)


def r2conv(kernel_size: int = 3, **arguments: object) -> R2Conv:
    """A trained layer: weights and bias away from their start."""
    layer = R2Conv(*battery.types(*C4), kernel_size, padding=1, **arguments)
    shake(layer)
    return layer


def relaxed(relax: dict[str, float] | None, kernel_size: int = 3, **arguments: object) -> RelaxedR2Conv:
    return RelaxedR2Conv(*battery.types(*C4), kernel_size, padding=1, relax=relax, initial_softness=0.3, **arguments)


@EVERY_MODE
@EVERY_RELAXED
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_state_of_r2conv_in_any_mode_makes_the_layer_compute_what_it_did(relax, mode: str, bias: bool) -> None:
    trained = r2conv(bias=bias).train(mode == "train")
    layer = relaxed(relax, bias=bias).train(mode == "train")
    features = features_of(trained)
    assert relative_error(answer(layer, features), answer(trained, features)) > 1e-2
    assert not layer.load_state_dict(trained.state_dict()).missing_keys
    assert torch.equal(layer.weights, trained.weights)
    assert relative_error(answer(layer, features), answer(trained, features)) <= SINGLE
    # The soft part is at 0 and learns.
    assert layer.softness().item() == 0
    layer(layer.in_type(features)).tensor.square().mean().backward()
    assert relax is None or layer.bank.weights.grad.any()


@EVERY_MODE
def test_state_of_a_network_of_r2convs_loads_into_the_network_of_layers(mode: str) -> None:
    fields = battery.field_type("C4", "two regular")

    def network(convolution: type[enn.EquivariantModule]) -> enn.SequentialModule:
        return enn.SequentialModule(
            convolution(fields, fields, 3), enn.InnerBatchNorm(fields), enn.ReLU(fields), convolution(fields, fields, 3)
        )

    trained, swapped = network(R2Conv), network(RelaxedR2Conv)
    shake(trained)
    answer(trained)  # statistics of batch norm
    trained.train(mode == "train")
    swapped.load_state_dict(trained.state_dict())
    assert relative_error(answer_in_eval(swapped), answer_in_eval(trained)) <= SINGLE


def test_state_of_an_r2conv_of_another_size_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"size mismatch for weights"):
        relaxed(None).load_state_dict(r2conv(5).state_dict())


SHARED_CASTS = {
    "half": lambda layer: layer.half(),
    "half and back": lambda layer: layer.half().float(),
    "meta": lambda layer: layer.to("meta"),
}


@pytest.mark.parametrize("cast", SHARED_CASTS)
def test_layer_is_right_whatever_was_done_to_the_basis_that_escnn_shares(cast: str) -> None:
    """A cast of one R2Conv rounds or takes away the basis of all that are built after it."""
    # Arguments that no other test has, so that nothing is known of their basis.
    arguments = {"kernel_size": 3, "sigma": [0.61 + 0.01 * list(SHARED_CASTS).index(cast)] * 2, "rings": [0.0, 1.0]}
    own = r2conv(**arguments, recompute=True)
    SHARED_CASTS[cast](r2conv(**arguments))
    layer = relaxed(None, **arguments)
    layer.load_state_dict({"weights": own.weights, "bias": own.bias})
    features = features_of(layer)
    assert relative_error(answer(layer, features), answer(own, features)) <= SINGLE


CASTS = {
    "double": lambda layer: layer.double(),
    "half": lambda layer: layer.half(),
    "to(bfloat16)": lambda layer: layer.to(torch.bfloat16),
    "to(meta)": lambda layer: layer.to("meta"),
}


@pytest.mark.parametrize(("form", "cast"), [("soft", cast) for cast in CASTS] + [(form, "double") for form in FEW[1:]])
def test_cast_of_one_layer_leaves_all_others_alone(form: str, cast: str) -> None:
    """The others, R2Convs among them, have the same types and kernel size, and so the same objects of escnn's cache."""
    layer = layer_of(form, torch.float32)
    arguments = {"kernel_size": 3, "padding": 1}
    twins = [RelaxedR2Conv(layer.in_type, layer.out_type, **arguments), layer_of(form, torch.float32)]
    convolution = R2Conv(layer.in_type, layer.out_type, **arguments)
    twins += [relax_network(convolution), convolution]
    before = [answer(twin) for twin in twins]
    CASTS[cast](layer)
    for twin, expected in zip(twins, before, strict=True):
        assert all(tensor.dtype in (torch.float32, torch.int64, torch.bool) for tensor in tensors_of(twin))
        assert all(tensor.device.type == "cpu" for tensor in tensors_of(twin))
        assert torch.equal(answer(twin), expected)
    if cast == "double":
        assert relative_error(answer(layer), answer(layer_of(form))) <= 1e-6  # of weights in float32


def test_layers_of_the_same_types_hold_no_tensor_in_common() -> None:
    for form in ("strict", "soft", "soft in translation"):
        a, b = (relaxed(RELAXED[form]) for _ in range(2))
        assert not {t.data_ptr() for t in tensors_of(a)} & {t.data_ptr() for t in tensors_of(b)}


@pytest.mark.parametrize("basis", ["the same", "another"])
def test_state_that_an_r2conv_loads_reaches_no_layer(basis: str) -> None:
    """It is written over the samples that escnn shares, of which layers are cast and repaired."""
    # Arguments that no other test has: their basis stays another one.
    arguments = {"sigma": [0.71 if basis == "another" else 0.72] * 2, "rings": [0.0, 1.0]}
    convolution, layer = r2conv(**arguments), relaxed(RELAXED["soft"], **arguments)
    features = features_of(layer)
    expected = answer(layer, features)
    sign = -1 if basis == "another" else 1
    state = {name: sign * value for name, value in convolution.state_dict().items()}
    convolution.load_state_dict(state)
    copies = [pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), layer, relaxed(RELAXED["soft"], **arguments)]
    copies[-1].load_state_dict(layer.state_dict())
    for of in copies:
        for found in (answer(of, features), answer(of.double().float().train(), features)):
            assert torch.equal(found, expected) if basis == "the same" else relative_error(found, expected) <= SINGLE


# escnn's R2Conv, for the table in the docs. Its failures are tests too, so that their mending is noticed.


def test_r2conv_casts_its_neighbours_with_it() -> None:
    """It shares modules of its basis through a cache of escnn's."""
    first, second = r2conv(), r2conv()
    features = features_of(second)
    answer(second, features)
    first.double()
    try:
        with pytest.raises(RuntimeError, match="expected scalar type"):
            answer(second, features)
    finally:
        first.float()


def test_r2conv_in_evaluation_is_stale_and_computes_with_zeros_after_loading() -> None:
    trained, other = r2conv(), r2conv().eval()
    features = features_of(trained)
    expected, before = answer(trained, features), answer(other, features)
    shake(other)
    assert torch.equal(answer(other, features), before)
    # The state of a layer that was never in eval mode has a filter of zeros, and the expanded bias with it.
    other.load_state_dict(trained.state_dict())
    assert not answer(other, features).any()
    assert relative_error(answer(other.train(), features), expected) <= SINGLE


def test_r2conv_in_evaluation_cannot_be_copied() -> None:
    convolution = r2conv()
    copy.deepcopy(convolution)
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(convolution.eval())


def test_r2conv_in_evaluation_has_one_backward_pass() -> None:
    convolution = r2conv().eval()
    features = convolution.in_type(features_of(convolution))
    convolution(features).tensor.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        convolution(features).tensor.sum().backward()


PICKLE = """
import pickle, warnings
warnings.simplefilter("ignore")
from escnn import gspaces, nn
{with_package}
space = gspaces.rot2dOnR2(4)
fields = nn.FieldType(space, [space.regular_repr])
convolution = nn.R2Conv(fields, fields, 3)
try:
    pickle.loads(pickle.dumps(convolution))
except AttributeError as error:
    print(error)
else:
    print("pickled")
"""


@pytest.mark.slow
@pytest.mark.parametrize("with_package", [False, True])
def test_r2conv_can_be_pickled_once_this_package_is_imported(with_package: bool) -> None:
    code = PICKLE.format(with_package="import escnn_relaxed" if with_package else "")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert ("pickled" if with_package else "Can't pickle local object") in found
