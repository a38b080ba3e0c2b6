"""What a state says when it does not fit, what it holds of itself, and pickles; the rest is in the small."""

import pickle
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch
from escnn import nn as enn
from escnn.group import change_basis
from escnn.gspaces import no_base_space
from escnn.nn import FieldType
from small import with_kernel
from small_networks import A_FEW_FORMS, another_draw, answer, answer_in_eval, layer_of, through_a_file

from escnn_relaxed import RelaxedLinear, RelaxedR2Conv, RelaxedR2ConvTransposed
from escnn_relaxed.baselines import LAYERS
from escnn_relaxed.continuous import SirenKernel
from escnn_relaxed.layer.relaxed_layer import RelaxedLayer
from escnn_relaxed.layer.state_dict import FORMAT_VERSION

ROOT = Path(__file__).parents[1]
SOFT = {"rotation": 0.2}
CONTINUOUS = {"soft_part": "continuous"}


def built(**arguments: Any) -> RelaxedR2Conv:
    arguments = {"space": "C4", "pair": "regular -> regular", "kernel_size": 3, "relax": SOFT, **arguments}
    in_type, out_type = small.types(arguments.pop("space"), arguments.pop("pair"))
    return RelaxedR2Conv(in_type, out_type, **with_kernel(arguments))


def state_of(**arguments: Any) -> OrderedDict[str, torch.Tensor]:
    return built(**arguments).state_dict()


MISFITS: dict[str, tuple[dict[str, object], str]] = {
    "fields of the input": ({"pair": "two regular -> regular"}, "input is 2 regular, here 1 regular"),
    "fields of the output": (
        {"pair": "regular -> trivial + regular"},
        r"output is 1 irrep_0 \+ 1 regular, here 1 regular",
    ),
    "groups": (
        {"pair": "two regular -> two regular", "groups": 2},
        "2 reg.*; output is 2 reg.*; number of groups is 2, here 1",
    ),
    "softness": ({"relax": None}, r"soft in is \[\], here \['rotation'\], .* harden_network"),
    "continuous": (CONTINUOUS, "strict kernel is continuous, here steerable"),
}
MISFITS_OF_KAPPA: dict[str, tuple[dict[str, object], str]] = {
    "kernel net": ({"net": SirenKernel}, r"kernel net is \['siren', 32\], here \['fourier', 32\]"),
    "filter frequency": (
        {"filter_frequency": 0.5},
        r"filter frequency is \{'position': 0.5, .*, here \{'position': 0.18",
    ),
    "coordinates": (
        {"rotation_coordinates": "log", "relax": {"rotation": 1.0}},
        "rotation coordinates is log, here circle",
    ),
}


@pytest.mark.parametrize("misfit", [*MISFITS, *MISFITS_OF_KAPPA])
def test_state_that_does_not_fit_says_why(misfit: str) -> None:
    arguments, message = (MISFITS | MISFITS_OF_KAPPA)[misfit]
    own = {} if misfit in MISFITS else CONTINUOUS
    layer, state = built(**own), state_of(**{**own, **arguments})
    state["hardened_in"] = torch.ones(3, dtype=torch.bool)
    with pytest.raises(RuntimeError, match=f"the state of 'this layer' does not fit: .*{message}"):
        layer.load_state_dict(state)
    assert layer.hardened == ()


C4 = small.types("C4", "regular -> regular")
VECTORS = FieldType(no_base_space(C4[0].fibergroup), C4[0].representations)
OPERATORS: dict[str, Callable[[], RelaxedLayer]] = {
    "convolution": lambda: RelaxedR2Conv(*C4, 1),
    "transposed convolution": lambda: RelaxedR2ConvTransposed(*C4, 1),
    "linear map": lambda: RelaxedLinear(VECTORS, VECTORS),
}
OTHERS = [(OPERATORS[a], OPERATORS[b], f"operator is {a}, here {b}") for a, b in permutations(OPERATORS, 2)]
WAYS = {way: partial(layer, *C4, 3) for way, layer in LAYERS.items()}
OTHERS += [(WAYS[a], WAYS[b], f"soft part is {a}, here ") for a, b in permutations(WAYS, 2) if a != "relaxed"]


@pytest.mark.parametrize(("saved", "loaded", "message"), OTHERS, ids=[message for *_, message in OTHERS])
def test_state_of_another_kind_of_layer_is_refused(saved: Callable, loaded: Callable, message: str) -> None:
    with pytest.raises(RuntimeError, match=f"does not fit: .*{message}"):
        loaded().load_state_dict(saved().state_dict())


def test_layers_of_a_network_that_do_not_fit_are_named() -> None:
    def network(kernel_size: int) -> enn.SequentialModule:
        return enn.SequentialModule(built(), built(kernel_size=kernel_size))

    with pytest.raises(RuntimeError, match="the state of '1' does not fit: kernel size is 5, here 3") as caught:
        network(3).load_state_dict(through_a_file(network(5).state_dict(), weights_only=True))
    assert "'0'" not in str(caught.value)


def test_state_names_its_format_version_and_what_it_is_of() -> None:
    metadata = through_a_file(state_of(), weights_only=True)._metadata[""]
    assert metadata["version"] == FORMAT_VERSION
    assert metadata["layer"] == built().describe()
    state = state_of()
    state._metadata[""]["version"] = FORMAT_VERSION + 1
    with pytest.raises(RuntimeError, match=f"format version is {FORMAT_VERSION + 1}, newer than {FORMAT_VERSION}"):
        built().load_state_dict(state)


@A_FEW_FORMS
def test_state_that_says_nothing_of_itself_loads_where_it_fits(form: str) -> None:
    """As states from before descriptions, and those that went through a plain dict."""
    layer, other = layer_of(form), another_draw(form)
    state = dict(layer.state_dict())
    assert not hasattr(state, "_metadata")
    other.load_state_dict(state)
    assert torch.equal(answer_in_eval(other), answer_in_eval(layer))
    with pytest.raises(RuntimeError, match="size mismatch for"):
        built(**CONTINUOUS).load_state_dict(dict(state_of(**CONTINUOUS, hidden_size=5)))


@pytest.mark.parametrize("space", ["trivial", "flip axis 0", "C4", "D4 axis 45°", "SO(2)", "O(2)"])
def test_field_types_pickle_to_equal_ones_on_the_same_group(space: str) -> None:
    names = ["trivial", "irreps", "mixed", "mixed, sheared"]
    names += ["band-limited"] if space in small.CONTINUOUS else ["regular", "hidden regular", "reordered regular"]
    names += ["induced", "quotient"] if space in small.WITH_ROTATION and space != "SO(2)" else []
    fields = small.field_type(space, " + ".join(names))
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


@pytest.mark.parametrize("way", LAYERS)
def test_layers_whose_basis_is_shaped_by_lambdas_pickle(way: str) -> None:
    shaping = {"frequencies_cutoff": lambda radius: 3 * radius, "basis_filter": lambda element: True}
    fields = small.field_type("C4", "regular")
    layer = LAYERS[way](fields, fields, 3, **shaping).eval()
    features = fields(torch.randn(1, 4, 5, 5))
    assert torch.equal(pickle.loads(pickle.dumps(layer))(features).tensor, layer(features).tensor)


def test_representation_whose_name_the_group_knows_with_another_basis_is_unpickled_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bases that escnn finds by solving for them may differ from process to process."""
    fields = small.field_type("D4", "induced")
    (known,) = fields.representations
    assert known.group.representations[known.name] is known
    pickled = pickle.dumps(fields)
    assert pickle.loads(pickled).representations[0] is known
    other = change_basis(known, small.mixing(known.size, seed=0, orthogonal=True), name="other basis")
    monkeypatch.setitem(known.group.representations, known.name, other)
    (found,) = pickle.loads(pickled).representations
    assert found is not other
    assert found == known
    assert np.array_equal(found.change_of_basis_inv, known.change_of_basis_inv)


# A layer of each continuous group at the least frequency, and whether it, its copies and its states add irreps.
_COUNTS = """
import copy, pickle
from escnn import gspaces, nn
from escnn_relaxed import RelaxedR2Conv, RelaxedR3Conv, relax_network
plane, space = (RelaxedR2Conv, nn.R2Conv), (RelaxedR3Conv, nn.R3Conv)
for build, (kind, conv) in ((gspaces.rot2dOnR2, plane), (gspaces.flipRot2dOnR2, plane), (gspaces.rot3dOnR3, space)):
    gspace = build(maximum_frequency=1)
    fields = nn.FieldType(gspace, gspace.irreps)
    strict = conv(fields, fields, 3)  # escnn adds those of its products
    before = len(gspace.irreps)
    network = relax_network(nn.SequentialModule(kind(fields, fields, 3), strict))
    pickle.loads(pickle.dumps(copy.deepcopy(network))).state_dict()
    assert len(gspace.irreps) == before, gspace
"""


@pytest.mark.slow
def test_layers_copies_and_pickles_add_no_irreps_to_a_group() -> None:
    """In a process of its own, since groups are for ever."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", _COUNTS], check=True, cwd=ROOT)


def _answer_of_another_process(pickled: bytes) -> bytes:
    torch.set_num_threads(1)
    return pickle.dumps(answer(pickle.loads(pickled)))


@pytest.mark.slow
def test_spawned_process_gets_the_layer_and_computes_the_same() -> None:
    """The process has not built the group, field types and representations yet; one has a change of basis."""
    in_type, out_type = small.types("D4 axis 45°", "mixed, sheared -> hidden regular")
    layer = RelaxedR2Conv(in_type, out_type, 3, relax={"rotation": 0.2, "translation": 0.3}).double().eval()
    with torch.multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pickle.loads(pool.apply(_answer_of_another_process, (pickle.dumps(layer),)))
    assert torch.equal(found, answer(layer))


def test_part_of_a_state_and_one_of_r2conv_leave_a_hardened_layer_hardened() -> None:
    layer = built()
    layer.harden()
    layer.load_state_dict({"weights": layer.weights.detach().clone()}, strict=False)
    assert layer.hardened
    original = enn.R2Conv(layer.in_type, layer.out_type, 3)
    layer.load_state_dict(original.state_dict())
    assert layer.hardened
    layer.load_state_dict(built().state_dict())
    assert not layer.hardened
