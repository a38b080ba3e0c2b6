"""Reference fields in trained networks: put in, measured, learned by the data, and taken out again."""

import io
from typing import Any

import pytest
import torch
from errors import BROKEN, ROUNDING, SINGLE, answer_to, relative_error
from escnn import gspaces
from escnn import nn as enn
from escnn.gspaces import no_base_space
from escnn.nn import FieldType, SequentialModule
from reference_networks import SPACES, images, references, strict_network, with_vector
from torch import Tensor, nn

from escnn_relaxed import (
    ReferenceField,
    RelaxedR2Conv,
    SoftnessEvidence,
    export_network,
    gate_softness,
    harden_network,
    parameter_groups,
    relax_network,
    relaxation_scalars,
    relaxation_summary,
    robustness_report,
    to_escnn,
    which_softness_helps,
)
from escnn_relaxed.layer.referenced_layer import ReferencedLayer
from escnn_relaxed.layer.relaxed_layer import RelaxedLayer
from escnn_relaxed.learning.soft_gradients import SoftWeights, gradients
from escnn_relaxed.measure import assert_equivariant, symmetry_profile
from escnn_relaxed.network import write_gate
from escnn_relaxed.network.reference import geometry_of

EVERY_SPACE = pytest.mark.parametrize("name", SPACES)
C4 = gspaces.rot2dOnR2(4)
IMAGE = FieldType(C4, [C4.trivial_repr])
HIDDEN = FieldType(C4, [C4.regular_repr] * 3)
CLASSES = FieldType(C4, [C4.trivial_repr] * 2)


def of_escnn() -> SequentialModule:
    """A network of escnn's own layers alone, in eval mode."""
    torch.manual_seed(0)
    network = SequentialModule(
        enn.R2Conv(IMAGE, HIDDEN, 5, padding=2), enn.ReLU(HIDDEN), enn.R2Conv(HIDDEN, CLASSES, 9, bias=False)
    )
    return network.eval()


def some(count: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(count, 1, 9, 9, generator=torch.Generator().manual_seed(seed))


class Classifier(nn.Module):
    """A network with a forward of its own, from images to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.body = of_escnn()

    def forward(self, images: Tensor) -> Tensor:
        return self.body(IMAGE(images)).tensor.flatten(1)


# Layers of each kind, and those that are not as usual.
VOLUMES = gspaces.octaOnR3()
SCALARS = FieldType(VOLUMES, [VOLUMES.trivial_repr] * 2)
FEATURES = FieldType(no_base_space(C4.fibergroup), [C4.regular_repr] * 2)
LAYERS: dict[str, Any] = {
    "R2Conv": lambda: enn.R2Conv(IMAGE, HIDDEN, 3),
    "strided, reflected": lambda: enn.R2Conv(IMAGE, HIDDEN, 5, stride=2, padding=2, padding_mode="reflect"),
    "groups": lambda: enn.R2Conv(HIDDEN, HIDDEN, 3, groups=3, padding=1),
    "without a bias": lambda: enn.R2Conv(IMAGE, HIDDEN, 3, bias=False),
    "R2ConvTransposed": lambda: enn.R2ConvTransposed(IMAGE, HIDDEN, 3, stride=2, padding=1, output_padding=1),
    "RelaxedR2Conv, strict": lambda: RelaxedR2Conv(IMAGE, HIDDEN, 3, relax=None),
    "RelaxedR2Conv, soft": lambda: RelaxedR2Conv(IMAGE, HIDDEN, 3, initial_softness=0.1),
    "R3Conv": lambda: enn.R3Conv(SCALARS, SCALARS + FieldType(VOLUMES, [VOLUMES.irrep(1)]), 3),
    "Linear": lambda: enn.Linear(FEATURES, FEATURES),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_layer_with_a_reference_computes_the_same_learns_and_comes_back(kind: str) -> None:
    torch.manual_seed(1)
    layer = LAYERS[kind]().eval()
    features = torch.randn(2, layer.in_type.size, *[9] * layer.in_type.gspace.dimensionality)
    expected = answer_to(layer, features)
    found = relax_network(SequentialModule(layer), reference="input")
    assert type(found[0]) is ReferencedLayer
    assert torch.equal(answer_to(found, features), expected)
    assert found[0].evaluate_output_shape(tuple(features.shape)) == tuple(expected.shape)
    found(layer.in_type(features)).tensor.square().sum().backward()
    (reference,) = references(found)
    assert reference.vector.grad.abs().max() > 1e-3
    with torch.no_grad():
        reference.vector.fill_(0.5)
    broken = answer_to(found, features)
    assert relative_error(broken, expected) > BROKEN
    with torch.no_grad():
        assert relative_error(export_network(found)(features), broken) <= SINGLE
    hardened = harden_network(found)
    assert isinstance(hardened[0], RelaxedLayer)
    assert torch.equal(hardened[0].weights, layer.weights)
    if "soft" not in kind:
        assert torch.equal(answer_to(hardened, features), expected)


def test_network_is_of_escnn_alone_after_it_is_hardened() -> None:
    network, features = of_escnn(), some()
    found = with_vector(network, (0.4, 0.3))
    assert [type(module).__name__ for module in found] == ["ReferencedLayer", "ReLU", "R2Conv"]
    assert relative_error(answer_to(found, features), answer_to(network, features)) > BROKEN
    back = to_escnn(harden_network(found))
    assert [type(module) for module in back] == [type(module) for module in network]
    assert torch.equal(answer_to(back, features), answer_to(network, features))
    network.load_state_dict(back.state_dict())
    with pytest.raises(ValueError, match=r"0.reference is a reference field, for which escnn has no layer"):
        to_escnn(found)


def test_reference_goes_before_the_first_layer_or_the_one_that_is_named() -> None:
    classifier = Classifier()
    classifier.body = SequentialModule(*[*classifier.body][:2], enn.R2Conv(HIDDEN, HIDDEN, 3), enn.ReLU(HIDDEN))
    classifier.eval()
    found = relax_network(classifier, reference="input")
    assert isinstance(found.body[0], ReferencedLayer)
    assert torch.equal(found(some()), classifier(some()))
    assert not references(classifier)
    named = relax_network(classifier, reference="body.2")
    assert isinstance(named.body[2], ReferencedLayer)
    assert named.body[2].reference.in_type == HIDDEN
    both = relax_network(found, reference="body.2")
    assert len(references(both)) == 2
    alone = relax_network(classifier.body[0], reference="input")
    assert isinstance(alone, ReferencedLayer)
    assert isinstance(harden_network(alone), RelaxedR2Conv)


def test_layers_are_soft_only_where_relax_is_given() -> None:
    alone = with_vector(of_escnn(), (0.4, 0.3))
    assert not any(layer.relaxed_subgroups for layer in alone.modules() if isinstance(layer, RelaxedLayer))
    soft = relax_network(alone, relax="rotation")
    at_once = relax_network(of_escnn(), reference="input", relax="rotation")
    for network in (soft, at_once):
        names = [name for name, layer in network.named_modules() if isinstance(layer, RelaxedLayer)]
        assert names == ["0.layer", "0.reference_layer", "2"]
        assert [network.get_submodule(name).relaxed_subgroups for name in names] == [("rotation",), (), ("rotation",)]
    assert torch.equal(answer_to(soft, some()), answer_to(alone, some()))


@EVERY_SPACE
def test_gate_of_0_is_the_network_without_the_reference(name: str) -> None:
    network, features = strict_network(name), images(name)
    found, expected = with_vector(network), answer_to(network, features)
    whole = answer_to(found, features)
    with gate_softness(found, 0.0):
        assert torch.equal(answer_to(found, features), expected)
    with gate_softness(found, torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64)):
        gated = answer_to(found, features)
    assert torch.equal(gated[0], expected[0])
    assert relative_error(gated[1], whole[1]) <= ROUNDING
    assert relative_error(gated[2], whole[2]) > 1e-4


def test_summary_names_the_vector_and_what_it_keeps() -> None:
    network = with_vector(of_escnn(), (0.0, 0.5))
    summary = relaxation_summary(network, data=some())
    rows = {row.name: row for row in summary.rows}
    assert list(rows) == ["0.layer", "0.reference", "0.reference_layer"]
    row = rows["0.reference"]
    assert (row.fields, row.parameters, row.soft_parameters) == ("+ 1 irrep_1", 2, 2)
    assert row.relaxed_by == "a reference, 0.5 at 90°, keeps nothing"
    # ‖v‖² / (‖v‖² + C_in)
    assert row.softness["rotation"] == pytest.approx(0.25 / 1.25)
    assert rows["0.layer"].error < 1e-5 < BROKEN < row.error
    assert "keeps nothing" in str(summary)
    scalars = relaxation_scalars(network)
    assert scalars["softness/0.reference"] == pytest.approx(0.2)
    with pytest.raises(AssertionError, match=r"0\.reference in rotation \(s = 0\.2\)"):
        assert_equivariant(network, data=some())


def test_robustness_and_profile_see_the_reference() -> None:
    torch.manual_seed(3)
    classifier = Classifier().eval()
    found = with_vector(classifier, (3.0, 0.0))
    data, labels = some(64), classifier(some(64)).argmax(1)
    strict = robustness_report(classifier, data, labels, in_type=IMAGE)
    broken = robustness_report(found, data, labels, in_type=IMAGE)
    assert {row.accuracy for row in strict.rows} == {1.0}
    assert min(row.accuracy for row in broken.rows) < 1
    profile = symmetry_profile(found)
    errors = {row.name: row.error for row in profile.rows if row.layer.endswith("reference")}
    # |ρ(h)v − v| / √(|v|² + 1)
    assert errors["rotation 90°"] == pytest.approx((18 / 10) ** 0.5)
    assert errors["rotation 180°"] == pytest.approx((36 / 10) ** 0.5)


def test_states_of_networks_go_round() -> None:
    network, file = with_vector(of_escnn(), (0.4, 0.3)), io.BytesIO()
    torch.save(network.state_dict(), file)
    file.seek(0)
    fresh = relax_network(of_escnn(), reference="input")
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(answer_to(fresh, some()), answer_to(network, some()))
    assert "0.reference.vector" in network.state_dict()


def test_layer_of_escnn_with_a_reference_is_exported_with_its_padding() -> None:
    """``R2Conv.export`` drops the padding mode."""
    first = enn.R2Conv(IMAGE, HIDDEN, 5, padding=2, padding_mode="reflect")
    network = SequentialModule(first, enn.ReLU(HIDDEN), enn.R2Conv(HIDDEN, CLASSES, 9))
    found = with_vector(network.eval(), (0.4, 0.3), relax="rotation", where=lambda name, layer: name == "2")
    assert type(found[0].layer) is enn.R2Conv
    expected = answer_to(found, some())
    exported = export_network(found)
    with torch.no_grad():
        assert relative_error(exported(some()), expected) <= SINGLE
    assert all(isinstance(module, nn.Conv2d) for module in (exported[0].layer, exported[0].of_field))


def test_gate_is_written_into_the_vector() -> None:
    network = with_vector(of_escnn(), (0.4, 0.3))
    with gate_softness(network, 0.5):
        expected = answer_to(network, some())
    write_gate(network, 0.5)
    assert network[0].reference.vector.tolist() == pytest.approx([0.2, 0.15])
    assert relative_error(answer_to(network, some()), expected) <= SINGLE
    field = network[0].reference
    field.set_softness(0.5)
    assert field.vector.square().sum().item() == pytest.approx(1.0)
    for wrong in (0.0, 1.0):
        with pytest.raises(ValueError, match="softness"):
            field.set_softness(wrong)
    with gate_softness(field, 0.5), pytest.raises(RuntimeError, match="a gate is on this reference field"):
        field.set_softness(0.5)


def test_vector_has_no_weight_decay() -> None:
    network = with_vector(of_escnn(), (0.4, 0.3))
    soft = next(group for group in parameter_groups(network) if group.get("weight_decay") == 0)
    assert [value is network[0].reference.vector for value in soft["params"]] == [True]


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if "soft" not in kind and kind != "groups"])
def test_field_in_a_sequence_is_folded_into_the_layer_behind_it(kind: str) -> None:
    """Of a layer whose input has a vector among its fields, too, between the others."""
    torch.manual_seed(1)
    made = LAYERS[kind]()
    space, fields = made.in_type.gspace, made.in_type.representations
    in_type = FieldType(space, [*fields, space.fibergroup.irrep(1), *fields])
    field = ReferenceField(in_type)
    geometry = geometry_of(made)
    build = type(made)
    arguments = {"relax": None} if isinstance(made, RelaxedLayer) else {}
    layer = build(field.out_type, made.out_type, bias=made.bias is not None, **geometry, **arguments)
    after = FieldType(space, made.out_type.representations)
    network = SequentialModule(field, layer, enn.IdentityModule(after)).eval()
    features = torch.randn(2, in_type.size, *[9] * space.dimensionality)
    expected = answer_to(network, features)  # v is 0
    with torch.no_grad():
        field.vector.fill_(0.7)
    assert relative_error(answer_to(network, features), expected) > BROKEN
    hardened = harden_network(network)
    assert list(hardened._modules) == ["0", "1"]
    assert hardened[0].in_type == hardened.in_type == in_type
    assert relative_error(answer_to(hardened, features), expected) <= SINGLE
    back = to_escnn(hardened)
    fresh = SequentialModule(build(in_type, made.out_type, bias=made.bias is not None, **geometry), back[1])
    if not arguments:
        fresh.eval().load_state_dict(back.state_dict())
        assert relative_error(answer_to(fresh, features), expected) <= SINGLE


def test_field_that_cannot_be_folded_stays_and_is_0() -> None:
    network = beside_the_features(of_escnn())
    with torch.no_grad():
        references(network)[0].vector.fill_(0.5)
    hardened = harden_network(network, "rotation")
    (field,) = references(hardened)
    assert field.is_nothing
    assert not field.value.any()
    assert [type(module).__name__ for module in hardened][2] == "ReferenceField"
    assert len(references(harden_network(nn.Sequential(references(network)[0])))) == 1


# --- how much, by the data --------------------------------------------------------------------------------------------


def beside_the_features(network: SequentialModule) -> SequentialModule:
    """The field as channels, before the second layer, which takes them."""
    field = ReferenceField(HIDDEN)
    layer = RelaxedR2Conv(field.out_type, CLASSES, 9, initial_softness=0.05)
    return SequentialModule(network[0], network[1], field, layer)


@pytest.mark.parametrize(
    "form", ["in a layer", "in a soft layer", "frozen in a soft layer", "beside the features", "differs by position"]
)
def test_gradients_of_each_input_are_those_of_a_loop(form: str) -> None:
    torch.manual_seed(2)
    network = of_escnn()
    if form == "beside the features":
        network = beside_the_features(network)
    elif form == "differs by position":
        field = ReferenceField(IMAGE, relax=("rotation", "translation"))
        network = SequentialModule(field, RelaxedR2Conv(field.out_type, CLASSES, 9, relax=None))
    else:
        network = relax_network(network, reference="input", **({"relax": "rotation"} if "soft" in form else {}))
    network = network.double().eval()
    with torch.no_grad():
        for value in [value for reference in references(network) for value in reference.parameters()]:
            value.normal_()
    features, along = some().double(), torch.randn(4, 2, 1, 1).double()
    references(network)[0].vector.requires_grad_("frozen" not in form)
    parameters = SoftWeights(network).parameters
    assert any(value is references(network)[0].vector for value in parameters) == ("frozen" not in form)
    found = gradients(network, parameters, (features,), lambda output: along)
    for number in range(4):
        output = network(IMAGE(features[number : number + 1])).tensor
        expected = torch.autograd.grad((output * along[number]).sum(), parameters)
        for rows, of_one in zip(found, expected, strict=True):
            assert relative_error(rows[number], of_one) <= ROUNDING


def test_evidence_learns_the_precision_of_the_vector() -> None:
    network = with_vector(of_escnn(), (0.4, 0.3))
    evidence = SoftnessEvidence(network, observations=100)
    assert evidence.penalty() == 0
    evidence.update(IMAGE(some(50)))
    (row,) = evidence.table()
    assert (row.layer, row.subgroup, row.weights) == ("0.reference", "rotation", 2)
    assert 0 < row.determined <= 2
    assert row.softness == pytest.approx(0.2)
    expected = row.precision * 0.25 / 200  # δ‖v‖² / 2N
    assert float(evidence.penalty().detach()) == pytest.approx(expected, rel=1e-5)
    state = evidence.state_dict()
    again = SoftnessEvidence(network, observations=100)
    again.load_state_dict(state)
    assert float(again.penalty().detach()) == pytest.approx(expected, rel=1e-5)
    harden_network(network)
    network[0].reference.harden()
    assert evidence.penalty() == 0


def upper_half(network: nn.Module, chosen: slice, has_way_up: bool) -> Tensor:
    """The squared error of each image: its target is the mean of its upper half, or of all of it."""
    data = some(1200, seed=1)[..., 2:7, 2:7]
    targets = data[:, 0, : 2 if has_way_up else 5].mean((1, 2))
    return (network(IMAGE(data[chosen])).tensor.flatten() - targets[chosen]).square()


@pytest.mark.parametrize("has_way_up", [True, False])
def test_reference_is_a_candidate_beside_the_subgroups(has_way_up: bool) -> None:
    torch.manual_seed(0)
    network = SequentialModule(
        enn.R2Conv(IMAGE, HIDDEN, 5), enn.ReLU(HIDDEN), enn.R2Conv(HIDDEN, IMAGE, 1, initialize=True)
    )
    network = relax_network(network, reference="input")

    def train(network: nn.Module) -> None:
        optimiser = torch.optim.Adam(network.parameters(), 0.03)
        for _ in range(40):
            optimiser.zero_grad()
            upper_half(network, slice(600), has_way_up).mean().backward()
            optimiser.step()

    train(network)
    found = which_softness_helps(
        network, train, lambda network: 50 * upper_half(network, slice(600, None), has_way_up), verbose=False
    )
    assert found.helps == {"reference": has_way_up}
    assert references(found.network)[0].is_nothing == (not has_way_up)


def test_candidates_are_checked() -> None:
    network = relax_network(of_escnn(), reference="input", relax="rotation")

    def losses(network: nn.Module) -> Tensor:
        has_reference = not references(network)[0].hardened
        return torch.full((100,), 1.0 - has_reference) + 0.1 * network[2].softness().item()

    found = which_softness_helps(network, lambda network: None, losses, verbose=False)
    assert set(found.helps) == {"rotation", "reference"}
    only = which_softness_helps(network, lambda network: None, losses, subgroups=["reference"], verbose=False)
    assert only.helps == {"reference": True}
    assert not which_softness_helps(network, lambda network: None, losses, subgroups="rotation", verbose=False).helps[
        "rotation"
    ]
    with pytest.raises(ValueError, match="subgroups must be of"):
        which_softness_helps(network, lambda network: None, losses, subgroups=["references"], verbose=False)
    with pytest.raises(ValueError, match="network must be soft in one of the subgroups"):
        which_softness_helps(
            relax_network(of_escnn(), relax="rotation"), lambda network: None, losses, subgroups=["reference"]
        )


# --- bad calls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"reference": 3}, TypeError, "reference must be 'input' or the name of a layer"),
        ({"reference": "1"}, ValueError, r"reference must be 'input' or the name of one of \['0', '2'\]"),
        ({"reference": "input", "where": callable}, ValueError, "where must be left out"),
        ({"reference": "input", "freeze": True}, ValueError, "freeze must be left out"),
        ({"reference": "input", "samples": 4}, ValueError, "samples must be left out"),
        ({"reference": "input", "positions": True}, TypeError, "relax_network has no argument 'positions'"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        relax_network(of_escnn(), **arguments)


def test_a_reference_that_would_do_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="has a reference field already"):
        relax_network(relax_network(of_escnn(), reference="input"), reference="0.layer")
    with pytest.raises(ValueError, match="network has none of"):
        relax_network(SequentialModule(enn.ReLU(HIDDEN)), reference="input")
    space = FEATURES.gspace
    to_scalars = enn.Linear(FEATURES, FieldType(space, [space.trivial_repr]))
    for layer in (to_scalars, enn.R2Conv(IMAGE, CLASSES, 5), enn.R3Conv(SCALARS, SCALARS, 3)):
        with pytest.raises(ValueError, match="so that one before it would do nothing"):
            relax_network(layer, reference="input")


def test_check_equivariance_names_what_is_broken() -> None:
    network = with_vector(of_escnn(), (0.4, 0.0))
    with pytest.warns(UserWarning, match="v is not 0, so 3 of 4 elements are not checked"):
        found = network[0].check_equivariance(verbose=False)
    assert [element.value for element, _ in found] == [0]
    field = ReferenceField(IMAGE, relax=("rotation", "translation"))
    with torch.no_grad():
        field.position_weights.fill_(0.5)
    assert [error for _, error in field.check_equivariance(verbose=False)] == pytest.approx([0] * 4, abs=1e-6)
    assert len(relax_network(of_escnn(), reference="input")[0].check_equivariance(verbose=False)) == 4
