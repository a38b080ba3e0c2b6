"""States of R2Conv load, in its basis and in others; nothing is shared between layers; and what R2Conv itself does."""

import copy
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import small
import torch
from errors import BROKEN, SINGLE, SINGLE_REORDERED, relative_error
from escnn import gspaces
from escnn.nn import FieldType, R2Conv, R2ConvTransposed, R3Conv
from reference import Layer
from small import shake
from small_networks import EVERY_MODE, answer, convolution, features_of, soft_weights, tensors_of

from escnn_relaxed import (
    RelaxedR2Conv,
    RelaxedR2ConvTransposed,
    RelaxedR3Conv,
    checks,
    harden_network,
    relax_network,
)
from escnn_relaxed.kernel import grid_exact_basis
from escnn_relaxed.network import to_escnn

C4 = ("C4", "regular + irreps -> irreps + regular")
RELAXED = {"strict": None, "soft": {"rotation": 0.2}, "soft in translation": {"translation": 0.3}}
EVERY_RELAXED = pytest.mark.parametrize("relax", RELAXED.values(), ids=RELAXED)
KINDS = {"convolution": (R2Conv, RelaxedR2Conv), "transposed": (R2ConvTransposed, RelaxedR2ConvTransposed)}


def r2conv(**arguments: object) -> R2Conv:
    return convolution(*C4, padding=1, **arguments)


def relaxed(relax: dict | None, kernel_size: int = 3, make: type[Layer] = RelaxedR2Conv, **arguments: object) -> Layer:
    return make(*small.types(*C4), kernel_size, padding=1, relax=relax, initial_softness=0.3, **arguments)


@EVERY_MODE
@EVERY_RELAXED
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("kind", KINDS)
def test_state_of_r2conv_in_any_mode_makes_the_layer_compute_what_it_did(relax, mode, bias: bool, kind: str) -> None:
    theirs, ours = KINDS[kind]
    trained = r2conv(bias=bias, make=theirs).train(mode == "train")
    layer = relaxed(relax, bias=bias, make=ours).train(mode == "train")
    features, state = features_of(trained), trained.state_dict()
    assert relative_error(answer(layer, features), answer(trained, features)) > BROKEN
    assert not layer.load_state_dict(state).missing_keys
    assert set(state) == set(trained.state_dict()), "the caller's state dict was changed"
    assert torch.equal(layer.weights, trained.weights)
    assert relative_error(answer(layer, features), answer(trained, features)) <= SINGLE
    # The soft part is at 0 and learns.
    assert layer.softness().item() == 0
    layer(layer.in_type(features)).tensor.square().mean().backward()
    assert all(weights.grad.any() for weights in soft_weights(layer))


def layers(dimension: int) -> tuple[Any, Any, FieldType]:
    if dimension == 2:
        gspace = gspaces.flipRot2dOnR2(4)
        return R2Conv, RelaxedR2Conv, FieldType(gspace, [gspace.regular_repr, gspace.irrep(1, 1)])
    return R3Conv, RelaxedR3Conv, small.volume_type("SO(3)")


EVERY_DIMENSION = pytest.mark.parametrize("dimension", [2, 3])


def in_another_basis(layer: Any) -> dict[str, torch.Tensor]:
    """The state of the same layer by a process that drew other bases; only some are others."""
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    expansion = layer.basisexpansion
    for pair in expansion._representations_pairs[::2]:
        name = f"_basisexpansion.block_expansion_{expansion._escape_pair(pair)}.sampled_basis"
        change = torch.linalg.qr(torch.randn(*[len(state[name])] * 2))[0]
        state[name] = torch.einsum("ab,b...->a...", change, state[name])
        place = slice(*expansion._weights_ranges[pair])
        state["weights"][place] = (state["weights"][place].view(-1, len(change)) @ change.T).flatten()
    return state


@EVERY_DIMENSION
@pytest.mark.parametrize("relax", [None, "default"])
def test_state_in_another_basis_is_the_same_layer(dimension: int, relax: str | None) -> None:
    theirs, ours, fields = layers(dimension)
    trained = theirs(fields, fields, 3, bias=False)
    shake(trained)
    state, layer = in_another_basis(trained), ours(fields, fields, 3, bias=False, relax=relax)
    assert not torch.allclose(state["weights"], trained.weights, atol=1e-2)
    layer.load_state_dict(state)
    # Kernels go through a least-squares solution of float32 samples.
    assert relative_error(layer.filter.detach(), trained.expand_parameters()[0].detach()) <= SINGLE_REORDERED
    layer.load_state_dict(trained.state_dict())
    assert torch.equal(layer.weights, trained.weights)
    layer.load_state_dict({name: value.bfloat16() for name, value in trained.state_dict().items()})
    assert torch.equal(layer.weights, trained.weights.bfloat16().float())


@EVERY_DIMENSION
@pytest.mark.usefixtures("bases_that_are_overwritten")
def test_network_with_a_state_in_another_basis_is_relaxed_and_handed_back_as_it_is(dimension: int) -> None:
    """What it loads is written over the samples that layers share, and a second state over the first."""
    theirs, ours, fields = layers(dimension)
    trained, fresh = theirs(fields, fields, 3), ours(fields, fields, 3, relax=None)
    shake(trained)
    for _ in range(2):
        trained.load_state_dict(in_another_basis(trained))
        features = features_of(trained, 5)
        relaxed = relax_network(trained)
        for found in (relaxed, to_escnn(harden_network(relaxed))):
            assert relative_error(answer(found, features), answer(trained, features)) <= SINGLE_REORDERED
        # A layer that is built now has escnn's own basis, and becomes escnn's layer too.
        later = ours(fields, fields, 3, relax=None)
        later.load_state_dict(fresh.state_dict())
        for found in (later, to_escnn(later)):
            assert relative_error(answer(found, features), answer(fresh, features)) <= SINGLE


@EVERY_DIMENSION
@pytest.mark.usefixtures("bases_that_are_overwritten")
def test_layers_that_share_a_basis_share_it_after_a_load(dimension: int) -> None:
    theirs, _, fields = layers(dimension)
    trained = theirs(fields, fields, 3)
    trained.load_state_dict(in_another_basis(trained))
    first, second = (relax_network(trained).kernel.basis for _ in range(2))
    for (_, _, one), (_, _, other) in zip(first.by_pair("exact"), second.by_pair("exact"), strict=True):
        assert one.data_ptr() == other.data_ptr()


@pytest.mark.filterwarnings("ignore:escnn samples the steerable basis:UserWarning")
@pytest.mark.parametrize(("space", "kernel_size", "dilation"), [("C4", 3, 4), ("C4", 3, 6), ("C8", 5, 6)])
@pytest.mark.parametrize("kept", ["by entries", "by orbits"])
def test_state_of_far_taps_loads(space: str, kernel_size: int, dilation: int, kept: str, monkeypatch) -> None:
    """escnn samples some elements of such a basis far from the exact ones, and R2Conv computes with its samples."""
    if kept == "by orbits":
        monkeypatch.setattr(grid_exact_basis, "_LARGE", 0)
        monkeypatch.setattr(grid_exact_basis, "_PREPARED", {})
    types, shape = small.types(space, "regular -> regular"), {"kernel_size": kernel_size, "dilation": dilation}
    trained = convolution(space, "regular -> regular", **shape)
    layer = RelaxedR2Conv(*types, **shape, relax=None)
    assert not layer.load_state_dict(trained.state_dict()).missing_keys
    features = features_of(layer, 30)
    for found in (layer, relax_network(trained), to_escnn(layer)):
        assert relative_error(answer(found, features), answer(trained, features)) <= SINGLE


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_samples_that_are_rounding_are_warned_of() -> None:
    checks._warned.clear()
    message = r"regular to regular with errors of up to 0\.27 at taps .* about 3 / dilation"
    with pytest.warns(UserWarning, match=message):
        RelaxedR2Conv(*small.types("C4", "regular -> regular"), 3, dilation=6, recompute=True)
    RelaxedR2Conv(*small.types("C4", "regular -> regular"), 3, dilation=6, frequencies_cutoff=0.5)


@EVERY_DIMENSION
def test_state_of_other_kernels_is_refused_by_name(dimension: int) -> None:
    theirs, ours, fields = layers(dimension)
    state = theirs(fields, fields, 3).state_dict()
    name = next(name for name in state if name.endswith(".sampled_basis"))
    state[name] = torch.randn_like(state[name])
    with pytest.raises(RuntimeError, match=r"steerable basis of 'this layer' from .* to .* holds other kernels"):
        ours(fields, fields, 3).load_state_dict(state)


@EVERY_DIMENSION
def test_own_state_of_another_basis_is_refused_by_name(dimension: int) -> None:
    _, ours, fields = layers(dimension)
    state = ours(fields, fields, 3).state_dict()
    facts: Mapping[str, Any] = state._metadata[""]["layer"]
    facts["fingerprint of the steerable basis"][0] *= -1
    with pytest.raises(RuntimeError, match=r"does not fit: fingerprint of the steerable basis is \["):
        ours(fields, fields, 3).load_state_dict(state)


CASTS: dict[str, Callable[[Any], Any]] = {
    "double": lambda layer: layer.double(),
    "half": lambda layer: layer.half(),
    "to(bfloat16)": lambda layer: layer.to(torch.bfloat16),
    "to(meta)": lambda layer: layer.to("meta"),
}


@pytest.mark.parametrize("cast", CASTS)
@EVERY_RELAXED
def test_cast_of_one_layer_leaves_all_others_alone(relax: dict | None, cast: str) -> None:
    """The others, R2Convs among them, have the same types and kernel size, and so the same objects of escnn's cache."""
    layer, convolution = relaxed(relax), r2conv()
    others = [relaxed(relax), relax_network(convolution), convolution]
    before = [answer(other) for other in others]
    CASTS[cast](layer)
    for other, expected in zip(others, before, strict=True):
        assert all(tensor.dtype in (torch.float32, torch.int64, torch.bool) for tensor in tensors_of(other))
        assert all(tensor.device.type == "cpu" for tensor in tensors_of(other))
        assert torch.equal(answer(other), expected)
    addresses = [{of.data_ptr() for of in tensors_of(other)} for other in others[:2]]
    assert not addresses[0] & addresses[1]


@pytest.mark.parametrize("cast", ["half", "half and back", "to(meta)"])
def test_layer_is_right_whatever_was_done_to_the_basis_that_escnn_shares(cast: str) -> None:
    """A cast of one R2Conv rounds or takes away the basis of all that are built after it."""
    # Arguments that no other test has, so that nothing is known of their basis.
    arguments = {"kernel_size": 3, "sigma": [0.61 + 0.01 * len(cast)] * 2, "rings": [0.0, 1.0]}
    own = r2conv(**arguments, recompute=True)
    shared = CASTS[cast.removesuffix(" and back")](r2conv(**arguments))
    if cast.endswith("back"):
        shared.float()
    layer = relaxed(None, **arguments)
    layer.load_state_dict({"weights": own.weights, "bias": own.bias})
    features = features_of(layer)
    assert relative_error(answer(layer, features), answer(own, features)) <= SINGLE


@pytest.mark.parametrize("basis", ["the same", "another"])
def test_state_that_an_r2conv_loads_reaches_no_layer(basis: str) -> None:
    """It is written over the samples that escnn shares, of which layers are cast and repaired."""
    # Arguments that no other test has: their basis stays another one.
    arguments = {"sigma": [0.71 if basis == "another" else 0.72] * 2, "rings": [0.0, 1.0]}
    convolution, layer = r2conv(**arguments), relaxed(RELAXED["soft"], **arguments)
    features = features_of(layer)
    expected = answer(layer, features)
    sign = -1 if basis == "another" else 1
    convolution.load_state_dict({name: sign * value for name, value in convolution.state_dict().items()})
    copies = [pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), layer, relaxed(RELAXED["soft"], **arguments)]
    copies[-1].load_state_dict(layer.state_dict())
    for of in copies:
        for found in (answer(of, features), answer(of.double().float().train(), features)):
            assert torch.equal(found, expected) if basis == "the same" else relative_error(found, expected) <= SINGLE


def test_r2conv_in_evaluation_is_pickled_where_this_package_is_imported() -> None:
    """escnn itself can neither copy it nor pickle it."""
    trained = r2conv().eval()
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(trained)
    features = features_of(trained)
    assert torch.equal(answer(pickle.loads(pickle.dumps(trained)), features), answer(trained, features))
