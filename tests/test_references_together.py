"""Reference fields that differ by position in trained networks, and what several reference fields keep together."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from errors import BROKEN, ROUNDING, SINGLE, answer_to, on_grid_elements, relative_error, shift, transform
from escnn import gspaces
from escnn import nn as enn
from escnn.group import GroupElement
from escnn.gspaces import GSpace
from escnn.nn import FieldType, SequentialModule
from reference_networks import images, references, space_of, strict_network, with_values
from torch import Tensor, nn

from escnn_relaxed import (
    ReferenceField,
    RelaxedLinear,
    RelaxedR2Conv,
    RelaxedR3Conv,
    export_network,
    gate_softness,
    harden_network,
    relax_network,
    relaxation_summary,
    to_escnn,
)
from escnn_relaxed.layer.referenced_layer import ReferencedLayer
from escnn_relaxed.learning.soft_gradients import SoftWeights, gradients
from escnn_relaxed.network.reference import kept_by_references

EXACT = 1e-10  # a few layers in float64, through escnn's matrices of fields
C4 = gspaces.rot2dOnR2(4)
IMAGE = FieldType(C4, [C4.trivial_repr])
HIDDEN = FieldType(C4, [C4.regular_repr] * 3)
BY_POSITION: Any = {"input": {"relax": "translation"}}
BY_BOTH: Any = {"input": {"relax": ("rotation", "translation")}}


def of_escnn() -> SequentialModule:
    torch.manual_seed(0)
    layers = enn.R2Conv(IMAGE, HIDDEN, 5, padding=2), enn.ReLU(HIDDEN), enn.R2Conv(HIDDEN, IMAGE, 3, padding=1)
    return SequentialModule(*layers).eval()


def some(count: int = 4) -> Tensor:
    return torch.randn(count, 1, 9, 9, generator=torch.Generator().manual_seed(0))


def errors_of(network: nn.Module, features: Tensor) -> dict[GroupElement, float]:
    """The error of equivariance for each element that maps pixels to pixels; without pixels for each."""
    answer, space = answer_to(network, features), network.in_type.gspace
    elements = on_grid_elements(space) if space.dimensionality else list(space.fibergroup.elements[1:])
    return {
        element: relative_error(
            answer_to(network, transform(features, network.in_type, element)),
            transform(answer, network.out_type, element),
        )
        for element in elements
    }


# --- fields that differ by position in a trained network --------------------------------------------------------------


@pytest.mark.parametrize("reference", [BY_POSITION, BY_BOTH], ids=["translation", "both"])
def test_trained_network_gets_a_field_that_differs_by_position_and_loses_it(reference: Any) -> None:
    network, features = of_escnn(), some()
    expected = answer_to(network, features)
    found = relax_network(network, reference=reference)
    assert torch.equal(answer_to(found, features), expected)
    assert found[0].reference.kept == "C4"
    found(IMAGE(features)).tensor.square().sum().backward()
    parameters = list(found[0].reference.parameters())
    assert [parameter.numel() for parameter in parameters] == [0 if reference is BY_POSITION else 2, 2]
    assert all(parameter.grad.abs().max() > 1e-3 for parameter in parameters if parameter.numel())
    assert not found[0].reference_layer.weights.grad.any()  # v is 0: it moves first
    broken = answer_to(with_values(found), features)
    assert relative_error(broken, expected) > BROKEN
    with torch.no_grad():
        assert relative_error(export_network(found)(features), broken) <= SINGLE
    with gate_softness(found, 0.0):
        assert torch.equal(answer_to(found, features), expected)
    hardened = harden_network(found)
    assert [type(module).__name__ for module in hardened] == ["RelaxedR2Conv", "ReLU", "R2Conv"]
    back = to_escnn(hardened)
    assert [type(module) for module in back] == [type(module) for module in network]
    assert torch.equal(answer_to(back, features), expected)


@pytest.mark.parametrize("name", ["C8", "D4", "octahedral"])
def test_translation_is_broken_and_turns_about_the_centre_are_not(name: str) -> None:
    network, features = strict_network(name), images(name)
    found = with_values(relax_network(network, reference=BY_POSITION))
    assert max(errors_of(found, features).values()) <= EXACT
    field = references(found)[0]
    assert field.kept == f"{space_of(name).fibergroup.name} about the centre"
    assert field.described() == f"keeps {field.kept}, breaks translation"
    assert "breaks translation" in relaxation_summary(found).rows[1].relaxed_by
    # What is far from the border moves with the input in a strict network.
    dimension = space_of(name).dimensionality
    inside = torch.zeros(1, 3, *[11] * dimension).double()
    inside[(..., *[slice(3, 6)] * dimension)] = features[(slice(1), ..., *[slice(1, 4)] * dimension)]
    steps = (*[0] * (dimension - 1), 2)
    for module, is_strict in ((network, True), (found, False)):
        moved, expected = answer_to(module, shift(inside, *steps)), shift(answer_to(module, inside), *steps)
        assert (relative_error(moved, expected) <= EXACT) == is_strict


def test_field_of_both_becomes_constant_where_translation_is_hardened() -> None:
    network, features = of_escnn().double(), some().double()
    found = with_values(relax_network(network, reference=BY_BOTH))
    field = references(found)[0]
    assert field.kept == "nothing"
    assert field.described().endswith("keeps nothing, breaks translation")
    constant = harden_network(found, "translation")
    assert isinstance(constant[0], ReferencedLayer)
    assert "breaks translation" not in references(constant)[0].described()
    value = references(constant)[0].field(features)
    assert torch.equal(value, value[..., :1, :1].expand_as(value))
    by_position = harden_network(found, "rotation")
    assert references(by_position)[0].described() == "0, keeps C4 about the centre, breaks translation"
    assert max(errors_of(by_position, features).values()) <= SINGLE


def test_gradients_of_each_input_are_those_of_a_loop() -> None:
    network = with_values(relax_network(of_escnn(), reference=BY_BOTH).double())
    features, along = some().double(), torch.randn(4, 1, 9, 9).double()
    parameters = SoftWeights(network).parameters
    assert len(parameters) == 2
    found = gradients(network, parameters, (features,), lambda output: along)
    for number in range(4):
        output = network(IMAGE(features[number : number + 1])).tensor
        expected = torch.autograd.grad((output * along[number]).sum(), parameters)
        for rows, of_one in zip(found, expected, strict=True):
            assert relative_error(rows[number], of_one) <= ROUNDING


def test_layer_onto_scalars_can_have_a_field_that_differs_by_position() -> None:
    """Its divergence is a scalar; a constant field has none, and a kernel of one tap sees none."""
    with pytest.raises(ValueError, match="no constant field"):
        relax_network(enn.R2Conv(IMAGE, IMAGE, 3), reference="input")
    found = relax_network(enn.R2Conv(IMAGE, IMAGE, 3), reference=BY_POSITION)
    found(IMAGE(some())).tensor.square().sum().backward()
    assert found.reference.position_weights.grad.abs().max() > 1e-3
    with pytest.raises(ValueError, match="to which no field of"):
        relax_network(enn.R2Conv(IMAGE, IMAGE, 1), reference=BY_POSITION)
    scalar: Any = {"input": {"relax": "translation", "representation": C4.trivial_repr}}
    found = relax_network(enn.R2Conv(IMAGE, IMAGE, 1), reference=scalar)
    found(IMAGE(some())).tensor.square().sum().backward()
    assert found.reference.position_weights.grad.abs().max() > 1e-3


def test_several_places_get_a_field_each_with_arguments_of_their_own() -> None:
    network, features = of_escnn(), some()
    given: Any = {"input": {"keep": "C2"}, "2": {"relax": "translation", "representation": [C4.trivial_repr]}}
    found = relax_network(network, reference=given)
    first, second = references(found)
    assert (first.domain.kept.name, first.parts.relaxes) == ("C2", ("rotation",))
    assert (second.in_type, second.parts.relaxes) == (HIDDEN, ("translation",))
    assert torch.equal(answer_to(found, features), answer_to(network, features))
    soft = relax_network(network, reference=given, relax="rotation")
    assert soft[2].layer.relaxed_subgroups == ("rotation",)
    assert soft[0].reference.domain.kept.name == "C2"
    back = to_escnn(harden_network(found))
    assert torch.equal(answer_to(back, features), answer_to(network, features))


@pytest.mark.parametrize(
    ("reference", "error", "words"),
    [
        ({}, ValueError, "reference must have 'input' or the name of a layer"),
        (["input"], TypeError, "or a dict from these to arguments of ReferenceField"),
        ({3: {}}, TypeError, "reference must be 'input' or the name of a layer, got 3"),
        ({"1": {}}, ValueError, r"reference must be 'input' or the name of one of \['0', '2'\], got '1'"),
        ({"input": "translation"}, TypeError, r"reference\['input'\] must be a dict of arguments"),
        ({"input": {"samples": 4}}, TypeError, r"must have names among \['representation', 'relax', 'keep'\]"),
        ({"input": {}, "0": {}}, ValueError, "'0' is the layer '0', which has a reference field already"),
        ({"input": {"relax": "reflection"}}, ValueError, "reference before '0': relax must be one of"),
        ({"input": {"keep": "C4"}}, ValueError, "reference before '0': keep must leave a part"),
        ({"input": {"representation": "irrep"}}, TypeError, "reference before '0': representation must be"),
    ],
    ids=str,
)
def test_bad_places_and_arguments_are_named(reference: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        relax_network(of_escnn(), reference=reference)


# --- several fields keep the intersection -----------------------------------------------------------------------------


def network_with(space: GSpace, *fields: tuple[Any, tuple[float, ...]]) -> SequentialModule:
    """A network in float64 with a reference field, of a representation and a value, before each of its layers."""
    group = space.fibergroup
    of_layer: Any = {0: RelaxedLinear, 2: RelaxedR2Conv, 3: RelaxedR3Conv}[space.dimensionality]
    sizes = {"kernel_size": 3, "padding": 1} if space.dimensionality else {}
    hidden = FieldType(space, list(dict.fromkeys([space.trivial_repr, *[part for part, _ in fields]])) * 2)
    if not group.continuous:
        hidden = FieldType(space, [group.regular_representation])
    modules: list[nn.Module] = []
    in_type = hidden
    torch.manual_seed(3)
    for representation, value in fields:
        field = ReferenceField(in_type, representation)
        layer = of_layer(field.out_type, hidden, relax=None, **sizes)
        # The norm of a vector mixes what the reference and the features give.
        after = enn.NormNonLinearity(hidden, "n_relu") if group.continuous else enn.ReLU(hidden)
        modules, in_type = [*modules, field, layer, after], hidden
        with torch.no_grad():
            field.vector.copy_(torch.tensor(value))
    return SequentialModule(*modules[:-1]).double()


def turned(field: Any, frequency: float, degrees: float) -> tuple[Any, tuple[float, float]]:
    angle = math.radians(frequency * degrees)
    return field, (math.cos(angle), math.sin(angle))


D4, OCTA, C8 = space_of("D4"), space_of("octahedral"), space_of("C8")
SO2, O2, SO3, O3 = space_of("SO(2)"), space_of("O(2)"), space_of("SO(3)"), gspaces.flipRot3dOnR3()
FEATURES = space_of("C8 features")
# Vectors of D4 and O(2) have their first axis along 90°; of space the order is y, z, x.
TOGETHER: dict[str, tuple[GSpace, list[tuple[Any, tuple[float, ...]]], str]] = {
    "C8, C2 and C4": (C8, [(C8.irrep(2), (0.6, 0.8)), (C8.irrep(4), (0.5,))], "C2"),
    "C8, C4 and a vector": (C8, [(C8.irrep(4), (0.7,)), (C8.irrep(1), (0.3, 0.5))], "nothing"),
    "C8 features": (FEATURES, [(FEATURES.irrep(2), (0.6, 0.8)), (FEATURES.irrep(4), (0.5,))], "C2"),
    "D4, one axis": (D4, [(D4.irrep(1, 1), (1.0, 0.0)), (D4.irrep(1, 1), (-0.5, 0.0))], "the mirror along 90°"),
    "D4, two axes": (D4, [(D4.irrep(1, 1), (1.0, 0.0)), (D4.irrep(1, 1), (0.5, 0.5))], "nothing"),
    "D4, D2 and C4": (D4, [(D4.irrep(0, 2), (0.9,)), (D4.irrep(1, 0), (0.9,))], "C2"),
    "D4, D2 and a mirror": (D4, [(D4.irrep(0, 2), (0.9,)), (D4.irrep(1, 1), (0.9, 0.0))], "the mirror along 90°"),
    "SO(2), 2 and 4": (SO2, [(SO2.irrep(2), (0.9, 0.3)), (SO2.irrep(4), (0.3, 0.4))], "C2"),
    "SO(2), 2 and 3": (SO2, [(SO2.irrep(2), (0.9, 0.3)), (SO2.irrep(3), (0.3, 0.4))], "nothing"),
    "O(2), one axis": (O2, [turned(O2.irrep(1, 1), 1, 90), turned(O2.irrep(1, 1), 1, 270)], "the mirror along 0°"),
    "O(2), two axes": (O2, [turned(O2.irrep(1, 1), 1, 90), turned(O2.irrep(1, 1), 1, 0)], "nothing"),
    "octahedral, one axis": (OCTA, [(OCTA.irrep(1), (0.9, 0.0, 0.0)), (OCTA.irrep(1), (-0.4, 0.0, 0.0))], "C4 about y"),
    "octahedral, two axes": (OCTA, [(OCTA.irrep(1), (0.9, 0.0, 0.0)), (OCTA.irrep(1), (0.5, 0.5, 0.5))], "nothing"),
    "SO(3), one axis": (SO3, [(SO3.irrep(1), (0.0, 0.9, 0.0)), (SO3.irrep(1), (0.0, -0.4, 0.0))], "turns about z"),
    "SO(3), two axes": (SO3, [(SO3.irrep(1), (0.0, 0.9, 0.0)), (SO3.irrep(1), (0.4, 0.0, 0.0))], "nothing"),
    "O(3), two axes": (
        O3,
        [(O3.irrep(1, 1), (0.0, 0.9, 0.1)), (O3.irrep(1, 1), (0.0, 0.4, -0.5))],
        "the mirror across y",
    ),
    "O(3), axial ones": (O3, [(O3.irrep(0, 1), (0.0, 0.9, 0.1)), (O3.irrep(0, 1), (0.3, 0.4, 0.0))], "the inversion"),
}


@pytest.mark.parametrize("kind", TOGETHER)
def test_network_with_two_references_is_exact_in_the_intersection_alone(kind: str) -> None:
    space, fields, kept = TOGETHER[kind]
    network = network_with(space, *fields)
    first, second = references(network)
    assert kept_by_references(network) == kept
    summary = relaxation_summary(network)
    assert summary.kept_by_references == kept
    assert f"all references together keep {kept}" in str(summary)
    features = torch.randn(2, network.in_type.size, *[5] * space.dimensionality).double()
    errors = errors_of(network, features)
    exact = [element for element, error in errors.items() if error <= EXACT]
    assert exact == [element for element in errors if first.keeps(element) and second.keeps(element)]
    assert min([error for element, error in errors.items() if element not in exact], default=1) > 1e-5
    assert (kept == "nothing") == (not exact)


def two_vectors(space: GSpace, field: Any, *values: tuple[float, ...]) -> str:
    """What two fields with these values keep together."""
    return kept_by_references(nn.ModuleList(network_with(space, *((field, value) for value in values))))


def test_parallel_vectors_keep_what_one_keeps() -> None:
    for small in (1.0, -1e-7):  # a small vector beside a large one is no rounding
        vector = (0.3, 0.4, 0.5)
        assert two_vectors(SO3, SO3.irrep(1), vector, tuple(small * part for part in vector)).startswith("turns about")
        assert two_vectors(SO3, SO3.irrep(1), vector, (0.0, 0.0, small)) == "nothing"
        assert two_vectors(O2, O2.irrep(1, 1), (0.6, 0.8), (0.6 * small, 0.8 * small)) == "the mirror along 143.1°"
        assert two_vectors(O2, O2.irrep(1, 1), (0.6, 0.8), (0.8 * small, 0.6 * small)) == "nothing"
    assert two_vectors(O2, O2.irrep(1, 1), (0.6, 0.8), (0.0, 0.0)) == "the mirror along 143.1°"
    assert two_vectors(O2, O2.irrep(1, 1), (0.0, 0.0), (0.0, 0.0)) == "O(2)"


def test_mirror_through_two_vectors_of_o3_is_one_of_all_directions() -> None:
    vectors = np.array([[0.3, 0.5, -0.2], [0.1, 0.0, 0.4]])
    field = O3.irrep(1, 1)
    assert two_vectors(O3, field, *map(tuple, vectors)) == "the mirror across (0.25, −1, 0.7)"
    third = tuple(np.cross(*vectors))
    network = network_with(O3, (field, tuple(vectors[0])), (field, tuple(vectors[1])), (field, third))
    assert kept_by_references(network) == "nothing"
    # So are the half turns about the three axes of a tensor, and what the inversion makes of them.
    tensor = ReferenceField(O3.type(O3.trivial_repr), O3.irrep(0, 2))
    with torch.no_grad():
        tensor.vector.copy_(torch.tensor([0.3, 0.5, -0.2, 0.1, 0.7]))
    assert tensor.kept == "4 rotations, 4 mirrors"


def test_one_field_has_its_own_words_alone_and_position_is_among_them() -> None:
    assert kept_by_references(network_with(C8, (C8.irrep(2), (0.6, 0.8)))) == ""
    assert kept_by_references(of_escnn()) == ""
    places: Any = {**BY_POSITION, "2": {"keep": "C2", "representation": C4.irrep(2)}}
    network = SequentialModule(*[*of_escnn()][:2], enn.R2Conv(HIDDEN, HIDDEN, 3)).eval()
    one, two = (with_values(relax_network(network, reference=given)) for given in (BY_POSITION, places))
    assert "together" not in str(relaxation_summary(one))
    assert kept_by_references(two) == "C2 about the centre"


def test_fields_of_two_groups_have_words_of_their_own() -> None:
    plain = gspaces.rot2dOnR2(4)
    both = nn.ModuleList(
        [*network_with(D4, (D4.irrep(1, 1), (1.0, 0.0))), *network_with(plain, (plain.irrep(1), (1.0, 0.0)))]
    )
    assert kept_by_references(both) == "the mirror along 90° of D4; nothing of C4"
    # Linear maps of the same group count with its images.
    mixed = nn.ModuleList(
        [*network_with(C8, (C8.irrep(2), (0.6, 0.8))), *network_with(FEATURES, (FEATURES.irrep(4), (1.0,)))]
    )
    assert kept_by_references(mixed) == "C2"
