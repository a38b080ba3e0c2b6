"""State dicts, copies and pickles of layers and networks, in both modes; what a state says when it does not fit."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict
from typing import Any

import battery
import numpy as np
import pytest
import torch
from escnn import nn as enn
from escnn.group import change_basis
from forms import (
    A_FEW_FORMS,
    EVERY_FORM,
    another_draw,
    answer,
    answer_in_eval,
    layer_of,
    tensors_of,
    train_a_step,
)
from layers import shake, with_kernel
from soft_networks import Network
from transformations import relative_error

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
from escnn_relaxed.baselines import WeightedR2Conv
from escnn_relaxed.continuous import SirenKernel
from escnn_relaxed.layer.state_dict import FORMAT_VERSION


def through_a_file(thing: Any, **arguments: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, **arguments)


@EVERY_FORM
@pytest.mark.parametrize(("save", "load"), [("train", "eval"), ("eval", "train")])
def test_any_mode_loads_the_state_of_any_mode(form: str, save: str, load: str) -> None:
    layer, other = layer_of(form).train(save == "train"), another_draw(form).train(load == "train")
    answer(layer)  # a cache, if it were state, would be there now
    expected = answer_in_eval(layer)
    assert relative_error(answer_in_eval(other), expected) > 1e-2
    state = through_a_file(layer.state_dict(), weights_only=True)
    assert list(state) == list(other.state_dict())
    other.load_state_dict(state)
    assert other.training == (load == "train")
    assert torch.equal(answer_in_eval(other), expected)


def test_network_that_mixes_layers_loads_in_any_mode() -> None:
    """R2Conv itself does not load across modes; the others around it do."""
    network, other = Network(), Network()
    other.features = network.features
    del network.plain, other.plain
    network.plain = other.plain = enn.IdentityModule(network.first.out_type)
    with torch.no_grad():
        expected = network.eval()(network.features)
        assert not torch.allclose(other.eval()(network.features), expected)
        other.train().load_state_dict(through_a_file(network.state_dict(), weights_only=True))
        assert torch.equal(other.eval()(network.features), expected)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": lambda module: through_a_file(module, weights_only=False),
}
EVERY_COPY = pytest.mark.parametrize("how", COPIES)


@pytest.mark.parametrize(
    ("how", "mode"), [("deepcopy", "train"), ("deepcopy", "eval"), ("pickle", "eval"), ("torch.save", "train")]
)
@EVERY_FORM
def test_copies_compute_the_same_and_are_of_their_own(form: str, mode: str, how: str) -> None:
    layer = layer_of(form)
    train_a_step(layer)
    layer.train(mode == "train")
    answer(layer)
    # Where the grid was turned at random, the copy of a training layer has it turned as well.
    offset = None if layer.bank is None else layer.bank.frame.offset
    other = COPIES[how](layer)
    assert other.training == layer.training
    assert offset is None or other.bank.frame.offset == offset
    assert other.in_type == layer.in_type
    assert other.out_type == layer.out_type
    expected = answer_in_eval(layer)
    shared = {tensor.data_ptr() for tensor in tensors_of(layer)} & {tensor.data_ptr() for tensor in tensors_of(other)}
    assert not shared
    shake(layer)
    assert torch.equal(answer_in_eval(other), expected)
    train_a_step(other.train())
    assert relative_error(answer_in_eval(other), expected) > 0


@EVERY_COPY
def test_network_of_many_modules_is_copied_after_training_and_eval(how: str) -> None:
    network = Network()
    network(network.features).square().mean().backward()
    network.plain.train()
    for module in (network.first, network.body, network.strict):
        module.eval()
    other = COPIES[how](network)
    assert torch.equal(other(network.features), network(network.features))
    assert [type(module) for module in other.modules()] == [type(module) for module in network.modules()]


@pytest.mark.parametrize("space", battery.GSPACES)
def test_field_types_pickle_to_equal_ones_on_the_same_group(space: str) -> None:
    names = ["trivial", "irreps", "mixed", "mixed, sheared"]
    names += ["band-limited"] if space in battery.CONTINUOUS else ["regular", "hidden regular", "reordered regular"]
    names += ["induced", "quotient"] if space in battery.WITH_ROTATION and space != "SO(2)" else []
    fields = battery.field_type(space, " + ".join(names))
    found = pickle.loads(pickle.dumps(fields))
    assert found == fields
    assert hash(found) == hash(fields)
    assert found.gspace == fields.gspace
    assert found.fibergroup is fields.fibergroup
    for a, b in zip(found.representations, fields.representations, strict=True):
        assert a.name == b.name
        assert a.supported_nonlinearities == b.supported_nonlinearities
        for element in fields.gspace.testing_elements:
            assert torch.equal(torch.as_tensor(a(element)), torch.as_tensor(b(element)))


def test_representation_whose_name_the_group_knows_with_another_basis_is_unpickled_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bases that escnn finds by solving for them may differ from process to process."""
    fields = battery.field_type("D4", "induced")
    (known,) = fields.representations
    assert known.group.representations[known.name] is known
    pickled = pickle.dumps(fields)
    assert pickle.loads(pickled).representations[0] is known
    other = change_basis(known, battery.mixing(known.size, seed=0, orthogonal=True), name="other basis")
    monkeypatch.setitem(known.group.representations, known.name, other)
    (found,) = pickle.loads(pickled).representations
    assert found is not other
    assert found == known
    assert np.array_equal(found.change_of_basis_inv, known.change_of_basis_inv)


def _answer_of_another_process(pickled: bytes) -> bytes:
    torch.set_num_threads(1)
    return pickle.dumps(answer(pickle.loads(pickled)))


@pytest.mark.slow
def test_spawned_process_gets_the_layer_and_computes_the_same() -> None:
    """The process has not built the group, field types and representations yet; one has a change of basis."""
    in_type, out_type = battery.types("D4 axis 45°", "mixed, sheared -> hidden regular")
    layer = RelaxedR2Conv(in_type, out_type, 3, relax={"rotation": 0.2, "translation": 0.3}).double().eval()
    with torch.multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pickle.loads(pool.apply(_answer_of_another_process, (pickle.dumps(layer),)))
    assert torch.equal(found, answer(layer))


SOFT = {"rotation": 0.2}


def state_of(**arguments: Any) -> OrderedDict[str, torch.Tensor]:
    return _layer(**arguments).state_dict()


def _layer(**arguments: Any) -> RelaxedR2Conv:
    arguments = {"space": "C4", "pair": "regular -> regular", "kernel_size": 3, "relax": SOFT, **arguments}
    in_type, out_type = battery.types(arguments.pop("space"), arguments.pop("pair"))
    return RelaxedR2Conv(in_type, out_type, **with_kernel(arguments))


MISFITS = {
    "kernel size": ({"kernel_size": 5}, "kernel size is 5, here 3"),
    "kernel size of the continuous kernel": (
        {"kernel_size": 5, "strict_kernel": "continuous"},
        "kernel size is 5, here 3; strict kernel is continuous, here steerable",
    ),
    "group": ({"space": "C8"}, r"group is C8_on_R2\[\(None, 8\)\], here C4_on_R2\[\(None, 4\)\]"),
    "fields of the input": ({"pair": "two regular -> regular"}, "input is 2 regular, here 1 regular"),
    "fields of the output": (
        {"pair": "regular -> trivial + regular + regular"},
        r"output is 1 irrep_0 \+ 2 regular, here 1 regular",
    ),
    "groups": (
        {"pair": "two regular -> two regular", "groups": 2},
        "input is 2 regular, here 1 regular; output is 2 regular, here 1 regular; number of groups is 2, here 1",
    ),
    "softness": ({"relax": None}, r"soft in is \[\], here \['rotation'\]"),
    "form of the soft part": (
        {"hidden_size": 8},
        r"its soft part is .* build the layer with kernel=ContinuousKernel\(\)",
    ),
}
# The same of a layer with a continuous soft part.
MISFITS_OF_KAPPA = {
    "kernel net": ({"net": SirenKernel}, r"kernel net is \['siren', 8\], here \['fourier', 8\]"),
    "frame": ({"frame": "image"}, "frame is image, here group"),
    "support": ({"support": "disk"}, "support is disk, here smooth"),
    "filter frequency": (
        {"filter_frequency": 0.5},
        r"filter frequency is \{'position': 0.5, .*, here \{'position': 0.075",
    ),
    "rotation coordinates": (
        {"rotation_coordinates": "log", "relax": {"rotation": 1.0}},
        "rotation coordinates is log",
    ),
    "dilation": ({"dilation": 2}, "dilation is 2, here 1"),
    "hidden size": ({"hidden_size": 5}, r"kernel net is \['fourier', 5\], here \['fourier', 8\]"),
}


@pytest.mark.parametrize("misfit", [*MISFITS, *MISFITS_OF_KAPPA])
def test_state_that_does_not_fit_says_why(misfit: str) -> None:
    arguments, message = (MISFITS | MISFITS_OF_KAPPA)[misfit]
    own = {} if misfit in MISFITS else {"soft_part": "centred"}
    with pytest.raises(RuntimeError, match=f"the state of 'this layer' does not fit: {message}"):
        _layer(**own).load_state_dict(state_of(**own, **arguments))


def test_state_of_the_default_before_it_was_tied_loads_beside_a_continuous_kernel() -> None:
    """Its description holds the kernel net, and nothing of a form."""
    state = through_a_file(state_of(soft_part="centred"), weights_only=True)
    description = state._metadata[""]["layer"]
    assert "kernel net" in description
    assert "soft part" not in description
    with pytest.raises(RuntimeError, match=r"build the layer with kernel=ContinuousKernel\(\)"):
        _layer().load_state_dict(state)
    layer = RelaxedR2Conv(*battery.types("C4", "regular -> regular"), 3, relax=SOFT, kernel=ContinuousKernel())
    layer.load_state_dict(state)
    assert all(torch.equal(value, state[name]) for name, value in layer.state_dict().items())


def test_state_of_a_tied_layer_is_refused_by_a_continuous_soft_part() -> None:
    with pytest.raises(RuntimeError, match="its soft part is tied to the strict part: build the layer without kernel"):
        _layer(soft_part="centred").load_state_dict(state_of())


@pytest.mark.parametrize("regions", [8, None])
def test_state_of_other_regions_is_refused_where_translation_is_soft(regions: int | None) -> None:
    relax = {"translation": 0.25}
    with pytest.raises(RuntimeError, match=f"does not fit: regions is {regions}, here 4"):
        _layer(relax=relax).load_state_dict(state_of(relax=relax, regions=regions))
    _layer().load_state_dict(state_of(regions=regions))


@pytest.mark.parametrize("relax", [{"translation": 0.25}, {"rotation": 0.25}], ids=["translation", "rotation"])
def test_state_from_before_regions_loads_where_it_means_the_same(relax: dict[str, float]) -> None:
    state = state_of(relax=relax)
    del state._metadata[""]["layer"]["regions"]
    layer = _layer(relax=relax)
    if "translation" in relax:
        with pytest.raises(RuntimeError, match="soft translation had a kernel for every pixel of the input: train it"):
            layer.load_state_dict(state)
    else:
        layer.load_state_dict(state)


def test_layers_of_a_network_that_do_not_fit_are_named() -> None:
    def network(kernel_size: int) -> enn.SequentialModule:
        return enn.SequentialModule(_layer(), _layer(kernel_size=kernel_size))

    with pytest.raises(RuntimeError, match="the state of '1' does not fit: kernel size is 5, here 3") as caught:
        network(3).load_state_dict(through_a_file(network(5).state_dict(), weights_only=True))
    assert "'0'" not in str(caught.value)


def test_state_names_its_format_version_and_what_it_is_of() -> None:
    metadata = through_a_file(state_of(), weights_only=True)._metadata[""]
    assert metadata["version"] == FORMAT_VERSION
    assert metadata["layer"] == _layer().describe()


def test_state_of_a_newer_format_is_refused() -> None:
    state = state_of()
    state._metadata[""]["version"] = FORMAT_VERSION + 1
    with pytest.raises(RuntimeError, match=f"format version is {FORMAT_VERSION + 1}, newer than {FORMAT_VERSION}"):
        _layer().load_state_dict(state)


@pytest.mark.parametrize("subgroups", [(), ("rotation",)])
@A_FEW_FORMS
def test_layer_that_loads_the_state_of_a_hardened_one_is_hardened(form: str, subgroups: tuple[str, ...]) -> None:
    layer, other = layer_of(form), another_draw(form)
    layer.harden(*subgroups)
    other.load_state_dict(through_a_file(layer.state_dict(), weights_only=True))
    assert other.hardened == layer.hardened
    assert torch.equal(answer_in_eval(other), answer_in_eval(layer))
    other.load_state_dict(layer_of(form).state_dict())
    assert other.hardened == ()


def test_other_ways_to_relax_keep_their_hardening_too() -> None:
    types = battery.types("C4", "regular -> regular")
    layer, other = WeightedR2Conv(*types, 3), WeightedR2Conv(*types, 3)
    layer.harden()
    other.load_state_dict(through_a_file(layer.state_dict(), weights_only=True))
    assert other.softness().item() == 0


@A_FEW_FORMS
def test_state_that_says_nothing_of_itself_loads_where_it_fits(form: str) -> None:
    """As states from before descriptions, and those that went through a plain dict."""
    layer, other = layer_of(form), another_draw(form)
    state = dict(layer.state_dict())
    assert not hasattr(state, "_metadata")
    other.load_state_dict(state)
    assert torch.equal(answer_in_eval(other), answer_in_eval(layer))
    with pytest.raises(RuntimeError, match="size mismatch for"):
        _layer(soft_part="centred").load_state_dict(dict(state_of(hidden_size=5)))
