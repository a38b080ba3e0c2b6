"""``RelaxedR2PointConv`` and ``RelaxedR3PointConv`` beside escnn's layers, their softness, and what they refuse."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric", reason="escnn's convolutions of clouds need it")

from errors import BROKEN, ROUNDING, SINGLE, SINGLE_REORDERED, relative_error
from escnn import nn as enn
from escnn.nn import FieldType, GeometricTensor
from small_clouds import SPACES, SUPPORT, build, cloud, fields
from torch import Tensor, nn

from escnn_relaxed import (
    ContinuousKernel,
    RelaxedR2PointConv,
    RelaxedR3PointConv,
    assert_equivariant,
    equivariance_error,
    gate_softness,
    harden_network,
    relax_network,
    relaxation_summary,
    to_escnn,
    which_softness_helps,
)
from escnn_relaxed.measure import symmetry_profile

STRICT = {2: enn.R2PointConv, 3: enn.R3PointConv}
# escnn's matrices of SO(3) are in float32.
OF_ESCNN = 1e-6


def escnn_layer(of: FieldType, **arguments: Any) -> Any:
    layer = STRICT[of.gspace.dimensionality](of, of, **{**SUPPORT, **arguments})
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer


def in_single(x: GeometricTensor) -> GeometricTensor:
    return GeometricTensor(x.tensor.float(), x.type, x.coords.float())


def answer(layer: nn.Module, x: GeometricTensor, *others: Tensor) -> Tensor:
    with torch.no_grad():
        return layer(x, *others).tensor


def errors(layer: nn.Module, x: GeometricTensor, edges: Tensor, **options: Any) -> dict[str, float]:
    rows = equivariance_error(layer, data=(x, edges), **options).rows
    assert all(row.kind == "exact" for row in rows)
    return {row.name: row.error for row in rows}


# --- beside escnn -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPACES)
def test_strict_layer_is_that_of_escnn(name: str) -> None:
    x, edges = cloud(fields(name))
    theirs = escnn_layer(fields(name), bias=False)
    ours = build(fields(name), bias=False, relax=None).float()
    ours.load_state_dict(theirs.state_dict())
    assert relative_error(answer(ours, in_single(x), edges), answer(theirs, in_single(x), edges)) <= SINGLE
    offsets = x.coords[edges[0]] - x.coords[edges[1]]
    if name not in ("D4", "octahedral", "C8"):  # escnn's own layers cannot always be cast
        in_double = copy.deepcopy(theirs).double()  # and share their parts
        assert relative_error(answer(ours.double(), x, edges, offsets), answer(in_double, x, edges)) <= ROUNDING


@pytest.mark.parametrize("name", ["C8", "SO(3)"])
@pytest.mark.parametrize("mode", ["as built", "training", "eval"])
def test_states_of_escnn_load(name: str, mode: str) -> None:
    x, edges = cloud(fields(name))
    theirs = escnn_layer(fields(name))
    theirs.train(mode != "eval") if mode != "as built" else None
    soft = build(fields(name), initial_softness=0.1).float()
    soft.load_state_dict(theirs.state_dict())
    assert soft.softness() == 0
    assert relative_error(answer(soft, in_single(x), edges), answer(theirs.train(), in_single(x), edges)) <= SINGLE


def test_states_with_another_basis_are_expressed_in_that_of_the_layer() -> None:
    theirs = escnn_layer(fields("D4"))
    x, edges = cloud(fields("D4"))
    # escnn solves for these in each process anew.
    state = {key: -value if "coeff" in key else value for key, value in theirs.state_dict().items()}
    state = {key: value.clone() for key, value in state.items()}
    ours = build(fields("D4"), relax=None).float()
    ours.load_state_dict(state)
    assert relative_error(ours.weights, theirs.weights) > BROKEN
    theirs.weights.data.neg_()
    assert relative_error(answer(ours, in_single(x), edges), answer(theirs, in_single(x), edges)) <= SINGLE


def test_layer_is_no_part_of_what_layers_of_escnn_share() -> None:
    x, edges = cloud(fields("SO(2)"))
    theirs, ours = escnn_layer(fields("SO(2)")), build(fields("SO(2)"))
    expected = answer(ours, x, edges)
    theirs.double()
    after = build(fields("SO(2)")).float()
    after.load_state_dict(ours.state_dict())
    assert relative_error(answer(after, in_single(x), edges), expected) <= SINGLE
    theirs.float()
    assert torch.equal(answer(ours, x, edges), expected)


def test_same_seed_draws_the_weights_of_escnn() -> None:
    drawn = []
    for kind in (enn.R3PointConv, RelaxedR3PointConv):
        torch.manual_seed(3)
        drawn.append(kind(fields("SO(3)"), fields("SO(3)"), **SUPPORT).weights.detach())
    assert relative_error(*drawn) <= SINGLE


def test_layer_passes_for_that_of_escnn() -> None:
    layer = build(fields("SO(2)"), initialize=False)
    assert isinstance(layer, enn.R2PointConv)
    enn.init.generalized_he_init(layer.weights.data, layer.basissampler)
    assert layer.weights.abs().min() > 0
    assert layer.evaluate_output_shape((5, layer.in_type.size)) == (5, layer.out_type.size)
    filters, bias = layer.expand_parameters(torch.randn(4, 2).double())
    assert filters.shape == (4, layer.out_type.size, layer.in_type.size)
    assert bias is not None


# --- softness ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["C8", "D4", "SO(2)", "O(2)", "octahedral", "SO(3)", "SO(2) about z"])
@pytest.mark.parametrize("subgroup", ["translation", "default"])
def test_layer_is_strict_where_it_is_not_soft(name: str, subgroup: str) -> None:
    x, edges = cloud(fields(name), nodes=20)
    layer = build(fields(name), relax=subgroup, initial_softness=0.2, domain_radius=3.0)
    shift = (0.5,) * layer.d
    found = errors(layer, x, edges, shifts=[shift])
    moved = found.pop(f"shift {', '.join(['0.5'] * layer.d)}")
    if subgroup == "translation":
        assert max(found.values()) <= OF_ESCNN
        assert moved > BROKEN
    else:
        assert max(found.values()) > BROKEN
        assert moved <= ROUNDING
    layer.harden()
    assert max(errors(layer, x, edges, shifts=[shift]).values()) <= OF_ESCNN


def test_all_rotations_are_exact_where_translation_alone_is_soft() -> None:
    layer = build(fields("SO(3)"), relax="translation", initial_softness=0.2, domain_radius=2.0)
    x, edges = cloud(fields("SO(3)"), nodes=20)
    some = [layer.space.fibergroup.sample() for _ in range(3)]
    assert max(errors(layer, x, edges, elements=some).values()) <= OF_ESCNN


def test_kept_axis_keeps_all_turns_about_it() -> None:
    layer = build(fields("SO(3)"), keep="SO(2)", initial_softness=0.2)
    x, edges = cloud(fields("SO(3)"), nodes=20)
    assert max(errors(layer, x, edges, elements=(), angles=(17, 140)).values()) <= OF_ESCNN
    assert max(errors(layer, x, edges).values()) > 10 * BROKEN


@pytest.mark.parametrize("name", ["C8", "D4", "SO(3)"])
def test_softness_is_the_part_of_the_kernel_on_shells_that_is_not_strict(name: str) -> None:
    layer = build(fields(name), initial_softness=0.2)
    points = torch.from_numpy(layer.kernel.config.taps)
    whole = layer.expand_filter(points).detach()
    layer.harden()
    strict = layer.expand_filter(points).detach()
    layer.hardened = ()
    norms = (whole - strict).square().sum(), strict.square().sum()
    assert abs(layer.softness().item() - (norms[0] / sum(norms)).item()) <= ROUNDING
    layer.set_softness(0.05)
    assert layer.softness().item() == pytest.approx(0.05, rel=1e-6)
    errors = layer.element_errors([layer.space.fibergroup.identity, *list(layer.domain.sample.elements)[1:3]])
    assert errors[0] == 0
    assert errors[1] > BROKEN


def test_softness_in_translation_is_over_the_domain() -> None:
    layer = build(fields("D4"), relax="translation", initial_softness=0.1, domain_radius=2.0)
    angles, radii = torch.rand(20_000).double() * 2 * torch.pi, 2 * torch.rand(20_000).double().sqrt()
    places = torch.stack([angles.cos(), angles.sin()], 1) * radii.unsqueeze(1)
    factors = layer.kernel.node_factors(places).detach() - 1
    assert factors.mean(0).abs().max() < 0.02  # of samples of 20,000
    of_entries = layer.kernel(layer.weights, ("translation",)).detach().square().mean((1, 2))
    soft = (factors.square().mean(0) * of_entries).mean() / of_entries.mean()
    assert layer.softness().item() == pytest.approx((soft / (1 + soft)).item(), rel=0.05)


def test_state_dict_and_copies_compute_the_same() -> None:
    layer = build(
        fields("D4"), initial_softness=0.1, learn_relaxation=True, relax=("rotation", "translation"), domain_radius=3.0
    )
    layer.harden("translation")
    x, edges = cloud(fields("D4"))
    expected = answer(layer, x, edges)
    other = build(fields("D4"), learn_relaxation=True, relax=("rotation", "translation"), domain_radius=3.0)
    other.load_state_dict(layer.state_dict())
    assert not any("sampler" in key for key in layer.state_dict())
    for same in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.half().double()):
        if same is not layer:
            assert relative_error(answer(same, x, edges), expected) <= ROUNDING
    layer.load_state_dict(other.state_dict())
    assert relative_error(answer(layer, x, edges), expected) <= ROUNDING
    with pytest.raises(RuntimeError, match="rings is"):
        build(fields("D4"), width=2.0, relax=None).load_state_dict(build(fields("D4"), relax=None).state_dict())


# --- networks ---------------------------------------------------------------------------------------------------------


class Network(nn.Module):
    """Two convolutions of clouds."""

    def __init__(self, of: FieldType) -> None:
        super().__init__()
        self.first, self.second = escnn_layer(of), escnn_layer(of)
        self.note = "a user's own"

    def forward(self, x: GeometricTensor, edges: Tensor) -> GeometricTensor:
        return self.second(self.first(x, edges), edges)


@pytest.mark.parametrize("name", ["D4", "SO(3)"])
def test_networks_are_relaxed_hardened_and_handed_back(name: str) -> None:
    network = Network(fields(name))
    x, edges = cloud(fields(name))
    x = in_single(x)
    expected = answer(network, x, edges)
    soft = relax_network(network, relax=("rotation", "translation"), domain_radius=3.0)
    assert isinstance(soft.first, (RelaxedR2PointConv, RelaxedR3PointConv))
    assert relative_error(answer(soft, x, edges), expected) <= SINGLE
    soft = relax_network(network, initial_softness=0.1)
    assert relative_error(answer(soft, x, edges), expected) > BROKEN
    hard = harden_network(soft)
    assert not list(hard.first.soft_parameters())
    assert relative_error(answer(hard, x, edges), expected) <= SINGLE
    again = relax_network(hard, initial_softness=0.1)
    assert again.first.softness().item() == pytest.approx(0.1, rel=1e-3)
    back = to_escnn(hard)
    assert type(back.first) is STRICT[x.type.gspace.dimensionality]
    assert relative_error(answer(back, x, edges), expected) <= SINGLE
    Network(fields(name)).load_state_dict(back.state_dict())
    assert relative_error(answer(back.eval(), x, edges), expected) <= SINGLE


def test_measures_take_clouds() -> None:
    network = Network(fields("SO(3)"))
    x, edges = cloud(fields("SO(3)"), nodes=20)
    data = in_single(x), edges
    assert_equivariant(network, data=data)
    soft = relax_network(network.first, initial_softness=0.1)
    with pytest.raises(AssertionError, match=r"soft: the layer itself in rotation \(s = 0.1\)"):
        assert_equivariant(soft, data=data)
    (row,) = relaxation_summary(soft, data=data).rows
    assert row.error is not None
    assert row.error > BROKEN
    assert "rotation 0.25" in str(relaxation_summary(soft))
    with pytest.raises(ValueError, match=r"data must be \(cloud, edge_index\)"):
        equivariance_error(soft, 9)
    with pytest.raises(ValueError, match=r"shifts of a cloud must be 3 numbers"):
        equivariance_error(soft, data=data, shifts=[(1, 2)])
    offsets = data[0].coords[edges[0]] - data[0].coords[edges[1]]
    assert_equivariant(harden_network(soft), data=(*data, offsets))


@pytest.mark.parametrize("relax", ["rotation", ("rotation", "translation")], ids=str)
def test_output_is_linear_in_a_gate(relax: Any) -> None:
    layer = build(fields("SO(2)"), relax=relax, initial_softness=0.2, domain_radius=3.0)
    x, edges = cloud(fields("SO(2)"))
    whole, strict = answer(layer, x, edges), answer(harden_network(layer), x, edges)
    for gate in (0.0, 0.3, 1.0):
        with gate_softness(layer, gate):
            assert relative_error(answer(layer, x, edges), strict + gate * (whole - strict)) <= ROUNDING
    gates = torch.rand(len(whole)).double()
    with gate_softness(layer, gates):
        expected = strict + gates.unsqueeze(1) * (whole - strict)
        assert relative_error(answer(layer, x, edges), expected) <= ROUNDING
    s = layer.softness().item()
    with gate_softness(layer, 0.3):
        assert layer.softness().item() == pytest.approx(0.09 * s / (1 - s + 0.09 * s))
    with gate_softness(layer, torch.rand(3).double()), pytest.raises(ValueError, match="one for each of the 7 nodes"):
        layer(x, edges)


def test_training_step_learns_everything() -> None:
    layer = build(fields("octahedral"), relax=("rotation", "translation"), domain_radius=2.0, learn_relaxation=True)
    x, edges = cloud(fields("octahedral"))
    layer(x, edges).tensor.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in layer.parameters())
    layer.zero_grad()
    layer.harden()
    layer(x, edges).tensor.square().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_layer_checks_itself_where_it_is_strict() -> None:
    for name in ("D4", "SO(3)"):
        found = build(fields(name), relax=None).check_equivariance(atol=1e-4, verbose=False)
        assert len(found) > 3
        assert max(error for _, error in found) <= SINGLE_REORDERED
    soft = build(fields("D4"), relax="reflection", initial_softness=0.2)
    with pytest.warns(UserWarning, match="the layer is soft in reflection: 4 of 8 elements are not checked"):
        assert len(soft.check_equivariance(atol=1e-4, verbose=False)) == 4


def test_decider_and_profile_take_clouds() -> None:
    layer = build(fields("C8"), fields("C8"), initial_softness=0.05)
    x, edges = cloud(fields("C8"), nodes=60)
    up = (x.coords[edges[0]] - x.coords[edges[1]])[:, 1] > 0
    targets = torch.zeros(60).double().index_add(0, edges[1], up * x.tensor[edges[0], 0]) / 3

    def losses(network: nn.Module) -> Tensor:
        return (network(x, edges).tensor[:, 0] - targets).square()

    def train(network: nn.Module) -> None:
        optimiser = torch.optim.Adam(network.parameters(), 0.05)
        for _ in range(20):
            optimiser.zero_grad()
            losses(network).mean().backward()
            optimiser.step()

    trials = which_softness_helps(layer, train, losses, verbose=False)
    assert list(trials.helps) == ["rotation"]
    profile = symmetry_profile(layer)
    assert len(profile.rows) == 7
    assert min(row.error for row in profile.rows) > BROKEN


def test_what_clouds_have_not_is_refused_in_words() -> None:
    layer = build(fields("SO(2)"))
    with pytest.raises(RuntimeError, match="has no taps, see expand_filter"):
        layer.filter_bank()


# --- clouds -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def soft() -> Any:
    return build(fields("SO(2)"), relax=("rotation", "translation"), domain_radius=3.0, initial_softness=0.1)


def test_clouds_of_a_batch_are_convolved_as_each_alone(soft: Any) -> None:
    (one, its_edges), (other, others_edges) = cloud(soft.in_type, 5), cloud(soft.in_type, 8)
    joined = GeometricTensor(torch.cat([one.tensor, other.tensor]), soft.in_type, torch.cat([one.coords, other.coords]))
    edges = torch.cat([its_edges, others_edges + 5], 1)
    expected = torch.cat([answer(soft, one, its_edges), answer(soft, other, others_edges)])
    assert relative_error(answer(soft, joined, edges), expected) <= ROUNDING


def test_nodes_without_edges_get_the_bias(soft: Any) -> None:
    x, edges = cloud(soft.in_type)
    assert torch.equal(answer(soft, x, edges)[-1], soft.expanded_bias)
    no_edges = torch.empty(2, 0, dtype=torch.long)
    assert torch.equal(answer(soft, x, no_edges), soft.expanded_bias.expand(7, -1))
    nothing = GeometricTensor(torch.empty(0, soft.in_type.size).double(), soft.in_type, torch.empty(0, 2).double())
    assert answer(soft, nothing, no_edges).shape == (0, soft.out_type.size)
    assert torch.equal(answer(soft, x, edges.int()), answer(soft, x, edges))


def without_coordinates(x: GeometricTensor) -> GeometricTensor:
    x.coords = None
    return x


def in_space(x: GeometricTensor) -> GeometricTensor:
    x.coords = torch.randn(7, 3).double()
    return x


def single(x: GeometricTensor) -> GeometricTensor:
    x.coords = x.coords.float()
    return x


BAD: list[tuple[Callable[[GeometricTensor, Tensor], tuple[Any, ...]], type[Exception], str]] = [
    (lambda x, e: (x.tensor, e), TypeError, "GeometricTensor of type"),
    (lambda x, e: (without_coordinates(x), e), ValueError, r"x must have coordinates \(nodes, 2\)"),
    (lambda x, e: (in_space(x), e), ValueError, r"x.coords must be \(nodes, 2\), here \(7, 2\), got \(7, 3\)"),
    (lambda x, e: (single(x), e), TypeError, "x.coords must be of the dtype of the features"),
    (lambda x, e: (in_single(x), e), TypeError, "of the layer's dtype"),
    (lambda x, e: (x, e.tolist()), TypeError, "edge_index must be a tensor of integers"),
    (lambda x, e: (x, e.double()), TypeError, "edge_index must be of integers"),
    (lambda x, e: (x, e > 1), TypeError, "edge_index must be of integers"),
    (lambda x, e: (x, e.T), ValueError, r"edge_index must be \(2, edges\), got .*its transpose is"),
    (lambda x, e: (x, e[0]), ValueError, r"edge_index must be \(2, edges\)"),
    (lambda x, e: (x, e + 3), ValueError, "numbers of nodes, 0 to 6, got 9"),
    (lambda x, e: (x, e - 1), ValueError, "numbers of nodes, 0 to 6, got -1"),
    (lambda x, e: (x, e, torch.randn(3, 2).double()), ValueError, r"edge_delta must be \(edges, 2\)"),
    (lambda x, e: (x, e, 3), TypeError, "edge_delta must be a tensor"),
]


@pytest.mark.parametrize(("arguments", "kind", "message"), BAD, ids=[message for *_, message in BAD])
def test_bad_clouds_are_refused_in_words(
    soft: Any, arguments: Callable[[GeometricTensor, Tensor], tuple[Any, ...]], kind: type[Exception], message: str
) -> None:
    x, edges = cloud(soft.in_type)
    with pytest.raises(kind, match=message):
        soft(*arguments(x, edges))


ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"groups": 2}, ValueError, "groups must be 1"),
    ({"kernel": ContinuousKernel()}, ValueError, "kernel must be None"),
    ({"relax": "translation"}, ValueError, "domain_radius must be given where translation is soft"),
    ({"relax": "translation", "domain_radius": 0}, ValueError, "domain_radius must be finite and > 0"),
    ({"width": None, "n_rings": None}, ValueError, "width and n_rings must be given, or rings"),
    ({"rings": [0.0, 1.0]}, ValueError, "width and n_rings must be given, or rings"),
    ({"width": -1.0}, ValueError, "width must be finite and > 0"),
    ({"n_rings": 1.5}, TypeError, "n_rings must be an integer"),
    ({"sigma": [0.1]}, ValueError, "sigma must be one width or one for each of the 3 rings"),
    ({"basis_filter": lambda attributes: False}, ValueError, "must leave an element of the basis"),
    ({"relax": "reflection"}, ValueError, "no reflection to relax"),
    ({"kernel_size": 3}, TypeError, "has no argument 'kernel_size'"),
]


@pytest.mark.parametrize(("arguments", "kind", "message"), ARGUMENTS, ids=[message for *_, message in ARGUMENTS])
def test_bad_arguments_are_refused_in_words(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        build(fields("SO(2)"), **arguments)


def test_other_spaces_are_refused() -> None:
    with pytest.raises(ValueError, match="must live on a gspace of space"):
        RelaxedR3PointConv(fields("SO(2)"), fields("SO(2)"), **SUPPORT)


WITHOUT = """
import sys
sys.modules["torch_geometric"] = None
import escnn_relaxed
from escnn import gspaces
scalar = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
escnn_relaxed.relax_network(escnn_relaxed.RelaxedR2Conv(scalar, scalar, 3, relax=None))
try:
    escnn_relaxed.RelaxedR2PointConv(scalar, scalar, width=1.0, n_rings=2)
except ImportError as error:
    print(error)
"""


@pytest.mark.slow
def test_package_works_without_torch_geometric_and_names_the_extra() -> None:
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert "escnn_relaxed[points]" in found.stdout
