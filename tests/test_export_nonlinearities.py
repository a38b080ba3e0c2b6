"""Non-linearities, batch norms of any representation and pooling by norms: exported, the same numbers as escnn's."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import battery
import onnxruntime
import pytest
import torch
from escnn import gspaces
from escnn import nn as enn
from escnn.group import directsum
from escnn.gspaces import GSpace2D
from escnn.nn import EquivariantModule, FieldType
from networks_to_export import assert_run_without_escnn, settled
from networks_with_forwards import soft
from tolerances import ROUNDING, SINGLE, SINGLE_REORDERED
from torch import Tensor, nn
from transformations import relative_error

from escnn_relaxed import export_network

C8, D4 = gspaces.rot2dOnR2(8), gspaces.flipRot2dOnR2(4)
SO2, O2 = gspaces.rot2dOnR2(-1, maximum_frequency=3), gspaces.flipRot2dOnR2(-1, maximum_frequency=3)
SPACES = {"C8": C8, "D4": D4, "SO(2)": SO2, "O(2)": O2}


def irreps(space: GSpace2D) -> list[object]:
    """A field of each kind of irrep, and of one kind in two places."""
    numbers = [irrep.id for irrep in space.fibergroup.irreps()]
    fields = [space.irrep(*number) for number in dict.fromkeys([space.fibergroup.trivial_representation.id, *numbers])]
    return [*fields[:4], fields[0]]


def mixed(space: GSpace2D, again: int = 2) -> FieldType:
    """Irreps and, where there is one, the regular representation: a change of basis, of another size, in two places."""
    regular = [] if space.fibergroup.continuous else [space.regular_repr]
    return FieldType(space, [*regular, *irreps(space), *regular * again])


def vectors(space: GSpace2D) -> FieldType:
    """Without trivial fields, of two sizes where there are, in turn."""
    fields = [field for field in irreps(space) if not field.is_trivial()]
    return FieldType(space, [*fields, fields[-1], fields[0]])


def sampled(space: GSpace2D) -> dict[str, object]:
    reflections = {"irreps": space.fibergroup.bl_irreps(2), "inplace": False}
    return {**reflections, "type": "regular", "N": 8} if space.fibergroup.continuous else {**reflections}


def fourier(space: GSpace2D, **arguments: object) -> enn.FourierPointwise:
    return enn.FourierPointwise(space, 2, **{**sampled(space), "type": "regular", "N": 8, **arguments})


def induced() -> FieldType:
    """From rotations to rotations and reflections."""
    group = O2.fibergroup
    subgroup = (None, -1)
    rotations, *_ = group.subgroup(subgroup)
    fields = [group.induced_representation(subgroup, rotations.irrep(number)) for number in (1, 2)]
    return FieldType(O2, [fields[1], fields[0], fields[1], fields[1]])


def with_gates(fields: FieldType) -> enn.GatedNonLinearity2:
    return enn.GatedNonLinearity2((FieldType(fields.gspace, [fields.gspace.trivial_repr] * len(fields)), fields))


def two_inputs(fields: FieldType) -> enn.MultipleModule:
    """Gates between the fields that they are for, beside another field, behind a module that hands them out."""
    trivial = fields.gspace.trivial_repr
    between = [field for value in fields.representations for field in (value, trivial)]
    branches = [(enn.ELU(FieldType(fields.gspace, [trivial])), "other"), (with_gates(fields), ["gates", "fields"])]
    labels = ["fields", "gates"] * len(fields) + ["other"]
    return enn.MultipleModule(FieldType(fields.gspace, [*between, trivial]), labels, branches)


def uniform(space: GSpace2D) -> enn.GatedNonLinearityUniform:
    trivial = space.trivial_repr
    field = directsum([trivial, trivial, space.irrep(1), space.irrep(2)])
    return enn.GatedNonLinearityUniform(FieldType(space, [field] * 2))


MODULES: dict[str, Callable[[], EquivariantModule]] = {
    "pointwise relu": lambda: enn.PointwiseNonLinearity(FieldType(C8, [C8.regular_repr] * 2)),
    "pointwise elu": lambda: enn.PointwiseNonLinearity(FieldType(D4, [D4.regular_repr] * 2), "p_elu"),
    "pointwise sigmoid": lambda: enn.PointwiseNonLinearity(FieldType(D4, [D4.regular_repr]), "p_sigmoid"),
    "pointwise tanh": lambda: enn.PointwiseNonLinearity(FieldType(SO2, [SO2.trivial_repr] * 3), "p_tanh"),
    "Fourier elu": lambda: enn.FourierELU(SO2, 2, SO2.fibergroup.bl_irreps(2), type="regular", N=8),
    "Fourier relu": lambda: fourier(SO2),
    "Fourier tanh, O(2)": lambda: fourier(O2, function="p_tanh"),
    "Fourier sigmoid, C8": lambda: fourier(C8, function="p_sigmoid", irreps=C8.fibergroup.bl_irreps(4)),
    "Fourier relu, other irreps": lambda: fourier(SO2, out_irreps=SO2.fibergroup.bl_irreps(1)),
    "Fourier on a quotient": lambda: enn.QuotientFourierELU(
        O2, (0.0, 1), 3, O2.fibergroup.bl_irreps(2), type="regular", N=8
    ),
    "concatenated": lambda: enn.ConcatenatedNonLinearity(FieldType(C8, [C8.regular_repr, C8.trivial_repr])),
    "concatenated tanh": lambda: enn.ConcatenatedNonLinearity(FieldType(D4, [D4.regular_repr]), "c_tanh"),
    "vector field": lambda: enn.VectorFieldNonLinearity(FieldType(C8, [C8.regular_repr] * 2)),
    "gates apart": lambda: two_inputs(vectors(SO2)),
    "gates apart, D4": lambda: two_inputs(mixed(D4)),
    "gates apart, O(2)": lambda: two_inputs(mixed(O2)),
    "gates inside": lambda: uniform(SO2),
    "induced norms": lambda: enn.InducedNormNonLinearity(induced()),
    "induced norms squashed": lambda: enn.InducedNormNonLinearity(induced(), "squash", bias=False),
    "induced norm pooling": lambda: enn.InducedNormPool(induced()),
    "induced batch norm": lambda: enn.InducedNormBatchNorm(induced()),
    "norm max pool, stride": lambda: enn.NormMaxPool(vectors(O2), 3, stride=2, padding=1),
}  # fmt: skip
for _name, _space in SPACES.items():
    MODULES[f"any batch norm, {_name}"] = lambda space=_space: enn.GNormBatchNorm(mixed(space, again=0))
    MODULES[f"independent batch norm, {_name}"] = lambda space=_space: enn.IIDBatchNorm2d(mixed(space))
    MODULES[f"norm batch norm, {_name}"] = lambda space=_space: enn.NormBatchNorm(vectors(space))
    MODULES[f"norm max pool, {_name}"] = lambda space=_space: enn.NormMaxPool(mixed(space), 2)
MODULES["group pooling"] = lambda: enn.GroupPooling(FieldType(C8, [C8.regular_repr] * 2))
MODULES["any batch norm, not affine"] = lambda: enn.GNormBatchNorm(mixed(D4, again=0), affine=False)
MODULES["independent batch norm, not affine"] = lambda: enn.IIDBatchNorm2d(mixed(D4), affine=False)
EVERY_MODULE = pytest.mark.parametrize("name", MODULES)
# escnn's einsum of two regular fields in a row fails in GNormBatchNorm, and its concatenation leaves a file open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO name='/dev/null':Warning"),
    pytest.mark.filterwarnings("ignore:unclosed file <_io.TextIOWrapper name='/dev/null':ResourceWarning"),
]
# Modules that escnn computes in float64.
IN_DOUBLE = (
    "pointwise",
    "Fourier",
    "induced norms",
    "induced batch",
    "any batch",
    "independent",
    "norm batch",
    "gates in",
)


def answers(name: str, dtype: torch.dtype, side: int = 9) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    module = settled(MODULES[name]()).to(dtype)
    features = battery.random_input(module.in_type, side, side, dtype=dtype)
    exported = export_network(module.train())
    with torch.no_grad():
        # A copy: some of escnn's functions are in place.
        return exported, features, exported(features), module.eval()(module.in_type(features.clone())).tensor


@pytest.mark.whole
@EVERY_MODULE
def test_module_is_exported(name: str) -> None:
    dtype = torch.float64 if name.startswith(IN_DOUBLE) else torch.float32
    exported, _, found, expected = answers(name, dtype)
    assert not any(isinstance(module, EquivariantModule) for module in exported.modules())
    assert found.shape == expected.shape
    assert found.dtype == dtype
    assert relative_error(found, expected) <= (ROUNDING if dtype == torch.float64 else SINGLE)


@EVERY_MODULE
def test_exported_module_keeps_its_precision(name: str) -> None:
    exported, features, found, _ = answers(name, torch.float32)
    assert found.dtype == torch.float32
    with torch.no_grad():
        assert relative_error(exported.double()(features.double()).float(), found) <= SINGLE


def test_gates_in_two_tensors_are_taken_from_two_tensors() -> None:
    module = with_gates(vectors(SO2))
    exported = export_network(module)
    parts = [battery.random_input(fields, 7, 7, dtype=torch.float32) for fields in module.in_type]
    expected = module(*(fields(part) for fields, part in zip(module.in_type, parts, strict=True))).tensor
    assert relative_error(exported(*parts).detach(), expected.detach()) <= SINGLE


# One of each plain module.
FOR_ONNX = ["Fourier elu", "concatenated", "vector field", "gates apart", "norm max pool, D4", "any batch norm, D4"]


@pytest.mark.filterwarnings("ignore:You are using the legacy TorchScript-based ONNX export:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The feature will be removed:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("name", "dynamo"),
    [(name, False) for name in FOR_ONNX] + [pytest.param(name, True, marks=pytest.mark.slow) for name in FOR_ONNX],
)
def test_exported_module_runs_in_onnx_runtime(name: str, dynamo: bool) -> None:
    exported, features, _, _ = answers(name, torch.float32)
    file = io.BytesIO()
    named = {"input_names": ["features"], "dynamo": dynamo}
    if dynamo:
        shapes = ({0: torch.export.Dim("batch")},)
        torch.onnx.export(exported, (features,), dynamic_shapes=shapes, verbose=False, **named).save(file)
    else:
        torch.onnx.export(exported, (features,), file, dynamic_axes={"features": {0: "batch"}}, **named)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    more = torch.cat([features, 2 * features.flip(0)])
    (found,) = session.run(None, {"features": more.numpy()})
    with torch.no_grad():
        assert relative_error(torch.from_numpy(found), exported(more)) <= SINGLE_REORDERED


class Flattened(nn.Module):
    """A module and what often follows it, by the batch size that its output says it has."""

    def __init__(self, fields: nn.Module) -> None:
        super().__init__()
        self.fields = fields

    def forward(self, features: Tensor) -> Tensor:
        features = self.fields(features)
        return features.reshape(features.shape[0], -1)


@pytest.mark.filterwarnings("ignore:You are using the legacy TorchScript-based ONNX export:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The feature will be removed:DeprecationWarning")
@pytest.mark.parametrize("name", ["group pooling", "Fourier elu", "vector field", "norm max pool, D4"])
def test_batch_size_that_is_read_from_the_output_is_free_in_the_older_export_to_onnx(name: str) -> None:
    fields, features, _, _ = answers(name, torch.float32)
    exported = Flattened(fields).eval()
    file = io.BytesIO()
    named = {"input_names": ["features"], "dynamic_axes": {"features": {0: "batch"}}}
    torch.onnx.export(exported, (features,), file, dynamo=False, **named)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    more = torch.cat([features, features])
    (found,) = session.run(None, {"features": more.numpy()})
    assert found.shape == exported(more).shape


def test_recipe_for_so2_is_exported_as_a_whole() -> None:
    function = enn.FourierELU(SO2, 2, SO2.fibergroup.bl_irreps(2), type="regular", N=8)
    image = FieldType(SO2, [SO2.trivial_repr])
    network = settled(
        enn.SequentialModule(soft(image, function.in_type), enn.GNormBatchNorm(function.in_type), function)
    )
    features = battery.random_input(image, 9, 9, dtype=torch.float32)
    exported = export_network(network)
    assert [type(module).__name__ for module in exported] == ["Conv2d", "Conv2d", "Sequential"]
    with torch.no_grad():
        assert relative_error(exported(features), network.eval()(image(features)).tensor) <= SINGLE


@pytest.mark.slow
def test_exported_modules_run_where_escnn_is_not_installed(tmp_path: Path) -> None:
    assert_run_without_escnn([answers(name, torch.float32)[:2] for name in MODULES], tmp_path)
