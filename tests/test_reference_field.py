"""Reference fields: strict at v = 0, equivariant where v turns too, and to what fixes v; as modules of torch."""

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from errors import (
    BROKEN,
    ROUNDING,
    SINGLE_REORDERED,
    answer_to,
    fiber_action,
    on_grid_elements,
    relative_error,
    transform,
)
from escnn import gspaces
from escnn import nn as enn
from escnn.group import GroupElement
from escnn.gspaces import no_base_space
from escnn.nn import FieldType, GeometricTensor
from reference_networks import SPACES, image_type, images, references, space_of, strict_network, with_vector
from small_networks import WHAT_EXPORTERS_WARN_OF, of_onnx_runtime
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from escnn_relaxed import (
    ReferenceField,
    RelaxedR2Conv,
    equivariance_error,
    export_network,
    gate_softness,
    relax_network,
)

pytestmark = WHAT_EXPORTERS_WARN_OF

EVERY_SPACE = pytest.mark.parametrize("name", SPACES)
A_FEW = pytest.mark.parametrize("name", ["D4", "SO(3)", "C8 features"])
EXACT = 1e-10  # a few layers in float64, through escnn's matrices of fields


def elements_of(name: str) -> list[GroupElement]:
    """Elements that map pixels to pixels; all of a group without pixels."""
    space = space_of(name)
    return on_grid_elements(space) if space.dimensionality else list(space.fibergroup.elements[1:])


def field_of(name: str, vector: Any = None, **arguments: Any) -> ReferenceField:
    field = ReferenceField(image_type(space_of(name)), **arguments).double()
    if vector is not None:
        with torch.no_grad():
            field.vector.copy_(torch.as_tensor(vector, dtype=torch.float64))
    return field


def errors_of(network: nn.Module, name: str, features: Tensor) -> dict[GroupElement, float]:
    answer = answer_to(network, features)
    return {
        element: relative_error(
            answer_to(network, transform(features, network.in_type, element)),
            transform(answer, network.out_type, element),
        )
        for element in elements_of(name)
    }


# --- the symmetry -----------------------------------------------------------------------------------------------------


@EVERY_SPACE
def test_network_is_strict_while_v_is_0(name: str) -> None:
    network = with_vector(strict_network(name), vector=0.0)
    assert max(errors_of(network, name, images(name)).values()) <= EXACT


@EVERY_SPACE
def test_network_is_equivariant_where_the_vector_turns_with_the_data(name: str) -> None:
    network, features = with_vector(strict_network(name)), images(name)
    (reference,) = references(network)
    answer, value = answer_to(network, features), reference.vector.detach().clone()
    still = errors_of(network, name, features)
    assert min(still.values()) > BROKEN
    for element in elements_of(name):
        turned = fiber_action(value[None], reference.reference_type, element)[0]
        with torch.no_grad():
            reference.vector.copy_(turned)
        found = answer_to(network, transform(features, network.in_type, element))
        assert relative_error(found, transform(answer, network.out_type, element)) <= EXACT


@pytest.mark.parametrize(
    ("name", "vector", "kept", "count"),
    [
        ("D4", (1.0, 0.0), "the mirror along 90°", 1),
        ("D4", (0.5, 0.5), "the mirror along 135°", 1),
        ("O(2)", (0.0, 0.8), "the mirror along 0°", 1),
        ("octahedral", (0.0, 0.9, 0.0), "C4 about", 3),
        ("octahedral", (0.5, 0.5, 0.5), "C3 about", 2),
        ("SO(3)", (0.0, 0.0, 0.9), "turns about", 3),
        ("C8", (0.9, 0.0), "nothing", 0),
        ("SO(2)", (0.9, 0.3), "nothing", 0),
    ],
)
def test_network_stays_exact_in_what_fixes_the_vector(name: str, vector: tuple[float], kept: str, count: int) -> None:
    network = with_vector(strict_network(name), vector)
    (reference,) = references(network)
    assert reference.kept.startswith(kept)
    assert kept in repr(reference.relaxed_by)
    errors = errors_of(network, name, images(name))
    exact = [element for element, error in errors.items() if error <= EXACT]
    assert len(exact) == count
    assert exact == [element for element in errors if reference.keeps(element)]
    assert min([error for element, error in errors.items() if element not in exact]) > BROKEN


def test_what_a_vector_of_o2_keeps_follows_its_direction() -> None:
    field = field_of("O(2)", (-0.6, 0.2))
    # escnn's mirror of this group is along 90°, where its vectors have their first axis.
    assert field.direction == pytest.approx(161.565 + 90, abs=1e-3)
    assert field.kept == "the mirror along 71.6°"


@pytest.mark.parametrize(
    ("frequency", "vector", "kept"),
    [(2, (0.3, 0.4), "D2 with the mirror along 26.6°"), (0, (0.3,), "SO(2)"), (1, (0.0, 0.0), "O(2)")],
)
def test_symmetry_of_other_fields_of_o2(frequency: int, vector: tuple[float], kept: str) -> None:
    field = field_of("O(2)", vector, representation=space_of("O(2)").irrep(1, frequency))
    assert field.kept == kept


def test_two_vectors_of_so3_keep_nothing_and_of_o3_a_mirror() -> None:
    so3, o3 = gspaces.rot3dOnR3(), gspaces.flipRot3dOnR3()
    mirror = "the mirror across (0.25, −1, 0.7)"
    for space, irrep, kept in ((so3, so3.irrep(1), "nothing"), (o3, o3.irrep(1, 1), mirror)):
        field = ReferenceField(FieldType(space, [space.trivial_repr]), [irrep, irrep]).double()
        with torch.no_grad():
            field.vector.copy_(torch.tensor([0.3, 0.5, -0.2, 0.1, 0.0, 0.4]))
        # The mirror through both vectors of O(3) is in no sample of a few elements.
        assert field.kept == kept
    polar = ReferenceField(FieldType(o3, [o3.trivial_repr]))
    with torch.no_grad():
        polar.vector.fill_(0.5)
    assert polar.kept == "turns about (1, 1, 1), mirrors through it"


@pytest.mark.parametrize("name", ["C8", "O(2)", "SO(3)"])
def test_error_of_equivariance_grows_with_the_vector(name: str) -> None:
    network, features = strict_network(name), images(name)
    sizes, errors = (0.0, 0.03, 0.1, 0.3, 1.0), []
    for size in sizes:
        vector = torch.zeros(2 if space_of(name).dimensionality == 2 else 3)
        vector[0] = size
        report = equivariance_error(with_vector(network, vector), data=features)
        errors.append(max(row.error for row in report.rows if row.kind == "exact"))
    assert errors[0] <= EXACT
    assert errors == sorted(errors)
    assert errors[1] > 0
    assert errors[-1] > 0.1


# --- fields -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "fields"),
    [
        (gspaces.rot2dOnR2(2), ["irrep_1"]),
        (gspaces.rot2dOnR2(3), ["irrep_1"]),
        (gspaces.flip2dOnR2(), ["irrep_1"]),
        (gspaces.flipRot2dOnR2(1), ["irrep_1"]),
        (gspaces.flipRot2dOnR2(2), ["irrep_0,1", "irrep_1,1"]),
        (gspaces.flipRot2dOnR2(3), ["irrep_1,1"]),
        (gspaces.flipRot3dOnR3(), ["irrep_1,1"]),
        (gspaces.rot2dOnR3(-1), ["irrep_1"]),
        (gspaces.icoOnR3(), ["irrep_1"]),
        (no_base_space(gspaces.flipRot2dOnR2(4).fibergroup), ["irrep_1,1"]),
        (no_base_space(gspaces.rot2dOnR2(-1).fibergroup), ["irrep_1"]),
        (no_base_space(gspaces.rot3dOnR3().fibergroup), ["irrep_1"]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_default_is_the_smallest_field_that_points(space: Any, fields: list[str]) -> None:
    field = ReferenceField(FieldType(space, [space.trivial_repr]))
    assert [each.name for each in field.reference_type] == fields
    assert field.out_type.size == 1 + field.reference_type.size


def test_field_appends_the_same_value_at_every_pixel() -> None:
    field, features = field_of("C8", (0.5, -0.25)), images("C8")
    output = field(field.in_type(features))
    assert output.type == field.out_type == field.in_type + field.reference_type
    assert torch.equal(output.tensor[:, :3], features)
    assert torch.equal(output.tensor[:, 3:], torch.tensor([0.5, -0.25]).double().view(1, 2, 1, 1).expand(3, 2, 5, 5))
    assert field.evaluate_output_shape((3, 3, 5, 5)) == (3, 5, 5, 5)
    assert field.direction == pytest.approx(333.435, abs=0.001)


@EVERY_SPACE
def test_field_beside_the_features_is_the_sum_of_two_layers(name: str) -> None:
    """A network with ``ReferenceField`` and one bigger layer is equivariant to what fixes v, as is the other form."""
    field = field_of(name)
    with torch.no_grad():
        field.vector.normal_(generator=torch.Generator().manual_seed(1))
    layer = strict_network(name)[0]
    sizes = {"kernel_size": 3, "padding": 1} if space_of(name).dimensionality else {}
    whole = type(layer)(field.out_type, layer.out_type, relax=None, **sizes).double()
    features = images(name)
    value = torch.cat([field.field(features)] * 3)
    with_field, without = (whole(field.out_type(torch.cat([features, each], 1))).tensor for each in (value, 0 * value))
    assert relative_error(whole(field(field.in_type(features))).tensor, with_field) <= ROUNDING
    # What the field adds is the same for each input.
    added = with_field - without
    assert relative_error(added, added[:1].expand_as(added)) <= ROUNDING


def test_several_fields_and_those_asked_for() -> None:
    space = space_of("D4")
    both = field_of("D4", representation=[space.irrep(1, 1), space.irrep(1, 0)])
    assert both.vector.shape == (3,)
    assert both.relaxed_subgroups == ("rotation", "reflection")
    assert [(group.name, len(group.entries[0][1])) for group in both.weight_groups()] == [
        ("rotation", 2),
        ("reflection", 1),
    ]
    both.harden("rotation")
    with torch.no_grad():
        both.vector.fill_(1.0)
    assert both.value.tolist() == pytest.approx([0, 0, 1])
    both.harden()
    assert both.is_nothing
    assert both.relaxed_subgroups == ()
    both.hardened = ()
    assert both.value.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "arguments", "fields", "count"),
    [
        ("D4", {"relax": "rotation"}, ["irrep_1,1"], 1),  # along the mirror's axis
        ("D4", {"relax": "reflection"}, ["irrep_1,0"], 1),
        ("C8", {"keep": "C4"}, ["irrep_4"], 1),
        ("C8", {"keep": "C2"}, ["irrep_2"], 2),
        ("D4", {"keep": "D1"}, ["irrep_1,1"], 1),
        ("SO(3)", {"keep": "SO(2)"}, ["irrep_1"], 1),
    ],
)
def test_what_is_kept_and_not_relaxed_stays_exact(
    name: str, arguments: dict[str, Any], fields: list[str], count: int
) -> None:
    field = field_of(name, **arguments)
    assert ([each.name for each in field.reference_type], len(field.vector)) == (fields, count)
    with torch.no_grad():
        field.vector.normal_()
    space, kept = space_of(name), field.domain.kept
    elements = list(space.testing_elements)
    held = kept.holds(np.stack([space.basespace_action(element) for element in elements]))
    if arguments == {"relax": "reflection"}:
        held = np.array([np.linalg.det(space.basespace_action(element)) > 0 for element in elements])
    if arguments == {"relax": "rotation"}:
        held = field_of(name, keep="D1").domain.kept.holds(np.stack([*map(space.basespace_action, elements)]))
    assert [field.keeps(element) for element in elements] == held.tolist()
    assert not held.all()


@pytest.mark.parametrize("name", ["C8", "D4", "octahedral"])
def test_field_of_the_position_breaks_translation_and_keeps_turns_about_the_centre(name: str) -> None:
    field = field_of(name, relax="translation")
    with torch.no_grad():
        field.position_weights.normal_()
    assert len(field.vector) == 0
    assert len(field.position_weights) > 0
    features = images(name)
    value = field.field(features)
    assert (value - value.mean(dim=tuple(range(2, value.dim())), keepdim=True)).abs().max() > BROKEN
    for element in elements_of(name):
        assert relative_error(transform(value, field.reference_type, element), value) <= EXACT
    field.harden("translation")
    assert field.is_nothing
    assert not field.field(features).any()


# --- at home in torch -------------------------------------------------------------------------------------------------


@A_FEW
def test_gradients_reach_the_vector_and_its_weights(name: str) -> None:
    network, features = with_vector(strict_network(name), vector=0.0), images(name)
    network(network.in_type(features)).tensor.square().mean().backward()
    (reference,) = references(network)
    assert reference.vector.grad.norm() > 1e-4
    assert not network[0].reference_layer.weights.grad.any()  # v is 0: it moves first
    values = [reference.vector.detach().clone().fill_(0.3).requires_grad_(), features.requires_grad_()]

    def output(vector: Tensor, features: Tensor) -> Tensor:
        state = {"0.reference.vector": vector}
        return functional_call(network, state, (GeometricTensor(features, network.in_type),)).tensor

    assert torch.autograd.gradcheck(output, values, fast_mode=True)


@A_FEW
def test_copies_and_files_have_the_same_state(name: str) -> None:
    network, features = with_vector(strict_network(name)), images(name)
    expected = answer_to(network, features)
    for copied in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(answer_to(copied, features), expected)
    file = io.BytesIO()
    torch.save(network.state_dict(), file)
    file.seek(0)
    fresh = relax_network(strict_network(name), reference="input")
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(answer_to(fresh, features), expected)


def test_state_says_what_is_hardened_and_of_which_field_it_is() -> None:
    field, fresh = field_of("D4", (0.2, 0.5)), field_of("D4")
    field.harden("reflection")
    fresh.load_state_dict(field.state_dict())
    assert fresh.hardened == ("reflection",)
    assert torch.equal(fresh.value, field.value)
    field.hardened = ()
    fresh.load_state_dict(field.state_dict())
    assert fresh.hardened == ()
    other = field_of("O(2)")
    with pytest.raises(RuntimeError, match="does not fit: group is"):
        other.load_state_dict(field.state_dict())


@A_FEW
def test_vmap_over_vectors_is_a_loop_over_them(name: str) -> None:
    layers = [with_vector(strict_network(name), size=size)[0] for size in (0.2, 0.7)]
    features = images(name)
    state, constants = stack_module_state(layers)
    skeleton = copy.deepcopy(layers[0]).to("meta")

    def loss(parameters: dict[str, Tensor], constants: dict[str, Tensor]) -> Tensor:
        given = GeometricTensor(features, skeleton.in_type)
        return functional_call(skeleton, (parameters, constants), (given,)).tensor.square().mean()

    found = vmap(grad(loss))(state, constants)
    for number, layer in enumerate(layers):
        loss_of_one = layer(layer.in_type(features)).tensor.square().mean()
        expected = torch.autograd.grad(loss_of_one, layer.reference.vector)[0]
        assert relative_error(found["reference.vector"][number], expected) <= ROUNDING


@pytest.mark.parametrize("name", ["C8", "SO(3)"])
def test_compiled_without_breaks_of_the_graph(name: str) -> None:
    network, features = with_vector(strict_network(name, torch.float32), size=0.4), images(name, dtype=torch.float32)
    positions = ReferenceField(network.in_type, relax=("rotation", "translation"))
    with torch.no_grad():
        positions.position_weights.fill_(0.5)
    for module in (network[0], ReferenceField(network.in_type), positions):
        compiled = torch.compile(module, fullgraph=True, backend="eager")
        found = compiled(network.in_type(features)).tensor
        assert torch.equal(found, module(network.in_type(features)).tensor)


def test_half_precision_and_autocast() -> None:
    network, features = with_vector(strict_network("C8", torch.float32)), images("C8", dtype=torch.float32)
    field = ReferenceField(network.in_type)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert network[0](network.in_type(features)).tensor.dtype == torch.bfloat16
        assert field(network.in_type(features.bfloat16())).tensor.dtype == torch.bfloat16
    assert field.bfloat16()(network.in_type(features.bfloat16())).tensor.dtype == torch.bfloat16
    with pytest.raises(TypeError, match=r"input must be of the layer's dtype, torch.bfloat16"):
        field(network.in_type(features))


@pytest.mark.parametrize("relax", ["default", ("rotation", "translation")])
def test_exported_field_gives_the_same_numbers_and_runs_in_onnx_runtime(relax: Any) -> None:
    pytest.importorskip("onnxruntime")
    network, features = strict_network("C8", torch.float32), images("C8", dtype=torch.float32)
    field = ReferenceField(network.in_type, relax=relax)
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.normal_()
    whole = enn.SequentialModule(field, RelaxedR2Conv(field.out_type, network.in_type, 3, relax=None)).eval()
    expected, exported = answer_to(whole, features), export_network(whole).requires_grad_(False)
    assert relative_error(exported(features), expected) <= SINGLE_REORDERED
    file = io.BytesIO()
    axes = {"images": {0: "batch"}}
    torch.onnx.export(exported, (features,), file, dynamo=False, input_names=["images"], dynamic_axes=axes)
    more = torch.cat([features, features])
    assert relative_error(of_onnx_runtime(file, more), exported(more)) <= SINGLE_REORDERED


@pytest.mark.parametrize("arguments", [{}, {"relax": ("rotation", "translation")}], ids=str)
def test_gate_multiplies_the_field(arguments: dict[str, Any]) -> None:
    field, features = field_of("C8", (0.5, 0.2), **arguments), images("C8")
    if field.position_weights is not None:
        with torch.no_grad():
            field.position_weights.normal_()
    whole = field.field(features)
    for gate in (0.0, 0.5, torch.tensor(0.3).double()):
        with gate_softness(field, gate):
            assert relative_error(field.field(features) + 1, gate * whole + 1) <= ROUNDING
    with gate_softness(field, torch.tensor([0.0, 1.0, -0.5]).double()):
        found = field.field(features)
    assert not found[0].any()
    assert relative_error(found[1:], torch.cat([whole, -0.5 * whole])) <= ROUNDING
    maps = torch.rand(3, 1, 5, 5).double()
    with gate_softness(field, maps):
        assert relative_error(field.field(features), maps * whole) <= ROUNDING
    if field.position_weights is None:
        with pytest.raises(ValueError, match="soft in translation, got none"):
            gate_softness(field, 0.5, "translation")
    else:
        with gate_softness(field, 0.0, "translation"):
            found = field.field(features)
        assert relative_error(found, found.mean((2, 3), keepdim=True).expand_as(found)) <= ROUNDING
        assert relative_error(found, whole) > 0.1


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"representation": "irrep_1"}, TypeError, "representation must be a sequence"),
        ({"representation": [3]}, TypeError, "representation must be one of escnn's"),
        ({"representation": []}, ValueError, "representation must be one field or more"),
        ({"representation": gspaces.rot2dOnR2(3).irrep(1)}, ValueError, "representation must be of C8"),
        ({"relax": "reflection"}, ValueError, "relax must be one of"),
        ({"relax": ()}, ValueError, "relax must name a subgroup"),
        ({"relax": 3}, TypeError, "relax must be a sequence"),
        ({"keep": "D2"}, ValueError, "keep='D2' has a reflection"),
        ({"keep": "C8"}, ValueError, "keep must leave a part"),
        ({"keep": "C8", "representation": space_of("C8").irrep(1)}, ValueError, "representation must have a vector"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        field_of("C8", **arguments)


def test_bad_input_is_refused() -> None:
    field = field_of("C8")
    with pytest.raises(TypeError, match="input must be a GeometricTensor"):
        field(images("C8"))
    with pytest.raises(TypeError, match="input must be of type"):
        field(field.out_type(torch.zeros(1, 5, 3, 3)))
    with pytest.raises(TypeError, match="in_type must be"):
        ReferenceField(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="relax must name a subgroup"):
        ReferenceField(gspaces.trivialOnR2().type(gspaces.trivialOnR2().trivial_repr))
