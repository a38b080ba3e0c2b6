"""escnn's own modules exported: same numbers and dtype, memory of their own, in ONNX, and no need of escnn."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import small
import small_networks as networks
import torch
from errors import ROUNDING, SINGLE, SINGLE_REORDERED, relative_error
from escnn import gspaces
from escnn import nn as enn
from escnn.group import directsum
from escnn.gspaces import GSpace2D
from escnn.nn import EquivariantModule, FieldType
from reference_networks import with_values
from small_networks import C4, IRREPS, MIXED, settled
from torch import Tensor, nn

from escnn_relaxed import ReferenceField, export_network, relax_network

C8, D4 = gspaces.rot2dOnR2(8), gspaces.flipRot2dOnR2(4)
SO2, O2 = gspaces.rot2dOnR2(-1, maximum_frequency=3), gspaces.flipRot2dOnR2(-1, maximum_frequency=3)
SPACES = {"C8": C8, "D4": D4, "SO(2)": SO2, "O(2)": O2}


LOAD_WITHOUT_ESCNN = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("escnn", "lie_learn"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

sys.meta_path.insert(0, Blocker())
import torch
saved = torch.load(sys.argv[1], weights_only=False)
assert not any(name.split(".")[0] in ("escnn", "lie_learn") for name in sys.modules)
for network, features, expected in saved:
    error = (network(features) - expected).norm() / expected.norm()
    assert error <= 1e-6, error
import escnn_relaxed
try:
    escnn_relaxed.RelaxedR2Conv
except ImportError as error:
    assert "needs escnn and lie_learn, which are not installed" in str(error)
    print("done")
"""


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


def fourier(space: GSpace2D, **arguments: object) -> enn.FourierPointwise:
    options = {"irreps": space.fibergroup.bl_irreps(2), "inplace": False, "type": "regular", "N": 8}
    return enn.FourierPointwise(space, 2, **{**options, **arguments})


def gated() -> enn.GatedNonLinearity1:
    """Gates each before its field, and last those of the last two."""
    trivial, (first, *more, one, other) = IRREPS.gspace.trivial_repr, IRREPS.representations
    representations = [field for value in (first, *more) for field in (trivial, value)]
    representations += [one, other, trivial, trivial]
    labels = ["gate", "gated"] * (1 + len(more)) + ["gated"] * 2 + ["gate"] * 2
    return enn.GatedNonLinearity1(FieldType(IRREPS.gspace, representations), labels)


def branches(fields: FieldType) -> enn.MultipleModule:
    """Norms of fields and an ELU of trivial ones that stand between them."""
    trivial = fields.gspace.trivial_repr
    between = [field for value in fields.representations for field in (value, trivial)]
    elu = enn.ELU(FieldType(fields.gspace, [trivial] * len(fields)))
    parts = [(elu, "trivial"), (enn.NormNonLinearity(fields), "fields")]
    return enn.MultipleModule(FieldType(fields.gspace, between), ["fields", "trivial"] * len(fields), parts)


def uniform(space: GSpace2D) -> enn.GatedNonLinearityUniform:
    field = directsum([space.trivial_repr, space.trivial_repr, space.irrep(1), space.irrep(2)])
    return enn.GatedNonLinearityUniform(FieldType(space, [field] * 2))


def regular(space: GSpace2D, count: int = 2) -> FieldType:
    return FieldType(space, [space.regular_repr] * count)


MODULES: dict[str, Callable[[], EquivariantModule]] = {
    "reference field": lambda: with_values(ReferenceField(MIXED, relax=("rotation", "translation"))),
    "layer with a reference": lambda: with_values(relax_network(enn.R2Conv(MIXED, MIXED, 3), reference="input")),
    "transposed": lambda: enn.R2ConvTransposed(MIXED, MIXED, 3, 1, 1, stride=2, recompute=True),
    "relu": lambda: enn.ReLU(MIXED),
    "elu": lambda: enn.ELU(MIXED, alpha=0.5),
    "max pool": lambda: enn.PointwiseMaxPool2D(C4, 3, stride=2, padding=1),
    "max pool, ceil": lambda: enn.PointwiseMaxPool2D(C4, 2, ceil_mode=True),
    "max pool, antialiased": lambda: enn.PointwiseMaxPoolAntialiased2D(C4, 3, stride=2, padding=1),
    "average pool": lambda: enn.PointwiseAvgPool2D(MIXED, 2, stride=1, padding=1),
    "average pool, ceil": lambda: enn.PointwiseAvgPool2D(MIXED, 2, ceil_mode=True),
    "average pool, antialiased": lambda: enn.PointwiseAvgPoolAntialiased2D(MIXED, 0.66, stride=2),
    "adaptive average": lambda: enn.PointwiseAdaptiveAvgPool2D(MIXED, 3),
    "group pooling": lambda: enn.GroupPooling(C4),
    "group pooling, sizes mixed": lambda: enn.GroupPooling(MIXED),
    "norm pooling": lambda: enn.NormPool(IRREPS),
    "inner batch norm": lambda: enn.InnerBatchNorm(C4),
    "inner batch norm, sizes mixed": lambda: enn.InnerBatchNorm(MIXED),
    "inner batch norm, not affine": lambda: enn.InnerBatchNorm(MIXED, affine=False),
    "iid batch norm": lambda: enn.IIDBatchNorm2d(C4),
    "iid batch norm, sizes mixed": lambda: enn.IIDBatchNorm2d(MIXED),
    "mask": lambda: enn.MaskModule(MIXED, 9, margin=1),
    "dropout": lambda: enn.PointwiseDropout(MIXED, 0.5),
    "field dropout": lambda: enn.FieldDropout(MIXED, 0.5),
    "upsampling": lambda: enn.R2Upsampling(MIXED, scale_factor=2),
    "restriction": lambda: enn.RestrictionModule(C4, 2),
    "disentangling": lambda: enn.DisentangleModule(MIXED.restrict((None, 4))),
    "reshuffling": lambda: enn.ReshuffleModule(MIXED, [2, 0, *range(3, len(MIXED)), 1]),
    "norm relu": lambda: enn.NormNonLinearity(IRREPS),
    "norm softplus, no bias": lambda: enn.NormNonLinearity(IRREPS, "n_softplus", bias=False),
    "gates in any order": gated,
    "branches": lambda: branches(vectors(SO2)),
    "gates inside": lambda: uniform(SO2),
    "pointwise elu": lambda: enn.PointwiseNonLinearity(regular(D4), "p_elu"),
    "pointwise tanh": lambda: enn.PointwiseNonLinearity(FieldType(SO2, [SO2.trivial_repr] * 3), "p_tanh"),
    "Fourier elu": lambda: enn.FourierELU(SO2, 2, SO2.fibergroup.bl_irreps(2), type="regular", N=8),
    "Fourier tanh, O(2)": lambda: fourier(O2, function="p_tanh"),
    "Fourier sigmoid, C8": lambda: fourier(C8, function="p_sigmoid", irreps=C8.fibergroup.bl_irreps(4)),
    "Fourier relu, other irreps": lambda: fourier(SO2, out_irreps=SO2.fibergroup.bl_irreps(1)),
    "Fourier on a quotient": lambda: enn.QuotientFourierELU(
        O2, (0.0, 1), 3, O2.fibergroup.bl_irreps(2), type="regular", N=8
    ),
    "any batch norm, not affine": lambda: enn.GNormBatchNorm(mixed(D4, again=0), affine=False),
    "independent batch norm, not affine": lambda: enn.IIDBatchNorm2d(mixed(D4), affine=False),
}  # fmt: skip
for _name, _space in SPACES.items():
    MODULES[f"any batch norm, {_name}"] = lambda space=_space: enn.GNormBatchNorm(mixed(space, again=0))
    MODULES[f"independent batch norm, {_name}"] = lambda space=_space: enn.IIDBatchNorm2d(mixed(space))
    MODULES[f"norm batch norm, {_name}"] = lambda space=_space: enn.NormBatchNorm(vectors(space))
GEOMETRIES: dict[str, dict[str, object]] = {
    "replicate": {"padding": (1, 3), "padding_mode": "replicate"},
    "circular, even": {"kernel_size": 4, "padding": (2, 1), "padding_mode": "circular"},
    "groups": {"groups": 2, "padding": (1, 2)},
    "dilated, no bias": {"bias": False, "dilation": 2, "padding": 2},
}
for _name, _options in GEOMETRIES.items():
    MODULES[f"R2Conv, {_name}"] = lambda options={"kernel_size": 3, "recompute": True} | _options: enn.R2Conv(
        C4, C4, **options
    )
# escnn makes float32 of any dtype in these, or takes no other.
IN_SINGLE = ("group pooling", "norm pooling", "gates", "branches")

# escnn's einsum of two regular fields in a row fails in GNormBatchNorm, and its concatenation leaves a file open.
pytestmark = [
    *networks.WHAT_EXPORTERS_WARN_OF,
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO name='/dev/null':Warning"),
    pytest.mark.filterwarnings("ignore:unclosed file <_io.TextIOWrapper name='/dev/null':ResourceWarning"),
]


@pytest.mark.whole
@pytest.mark.parametrize("name", MODULES)
def test_module_is_exported_with_its_precision_and_in_memory_of_its_own(name: str) -> None:
    single = settled(MODULES[name]()).train()
    features = small.random_input(single.in_type, 9, 9, dtype=torch.float32)
    exported = export_network(single)
    assert not any(isinstance(part, EquivariantModule) for part in exported.modules())
    assert not {t.data_ptr() for t in networks.tensors_of(single)} & {
        t.data_ptr() for t in networks.tensors_of(exported)
    }
    with torch.no_grad():
        # A copy: some of escnn's functions are in place.
        expected, found = single.eval()(single.in_type(features.clone())).tensor, exported(features)
        assert found.shape == expected.shape
        assert found.dtype == torch.float32
        assert relative_error(found, expected) <= SINGLE
        assert relative_error(exported.double()(features.double()).float(), found) <= SINGLE
    if not name.startswith(IN_SINGLE):
        double = settled(MODULES[name]()).double()
        expected, found = networks.answers(double, export_network(double))
        assert found.dtype == expected.dtype
        assert relative_error(found, expected) <= ROUNDING


@pytest.mark.parametrize("name", ["norm softplus, no bias", "norm relu", "norm pooling"])
def test_norms_have_finite_gradients_at_zero(name: str) -> None:
    exported = export_network(settled(MODULES[name]()))
    features = torch.zeros(1, IRREPS.size, 3, 3, requires_grad=True)
    exported(features).sum().backward()
    assert features.grad.isfinite().all()


class Flattened(nn.Module):
    """A module and what often follows it, by the batch size that its output says it has."""

    def __init__(self, fields: nn.Module) -> None:
        super().__init__()
        self.fields = fields

    def forward(self, features: Tensor) -> Tensor:
        features = self.fields(features)
        return features.reshape(features.shape[0], -1)


# One of each plain module.
FOR_ONNX = ["Fourier elu", "gates inside", "branches", "group pooling", "norm pooling", "mask", "any batch norm, D4"]


@pytest.mark.parametrize(
    ("name", "dynamo"),
    [(name, False) for name in FOR_ONNX] + [pytest.param(name, True, marks=pytest.mark.slow) for name in FOR_ONNX[:3]],
)
def test_exported_module_runs_in_onnx_runtime_for_any_batch_size(name: str, dynamo: bool) -> None:
    module = settled(MODULES[name]())
    exported, file = Flattened(export_network(module)).eval(), io.BytesIO()
    features = small.random_input(module.in_type, 9, 9, dtype=torch.float32)
    named = {"input_names": ["features"], "dynamo": dynamo}
    if dynamo:
        torch.onnx.export(exported, (features,), dynamic_shapes=({0: networks.BATCH},), verbose=False, **named).save(
            file
        )
    else:
        torch.onnx.export(exported, (features,), file, dynamic_axes={"features": {0: "batch"}}, **named)
    more = torch.cat([features, 2 * features.flip(0)])
    with torch.no_grad():
        assert relative_error(networks.of_onnx_runtime(file, more), exported(more)) <= SINGLE_REORDERED


@pytest.mark.slow
def test_exported_networks_run_where_escnn_is_not_installed(tmp_path: Path) -> None:
    """Saved modules give the same numbers in a process where escnn cannot be imported."""
    saved, file = [], tmp_path / "networks.pt"
    for module in (settled(networks.mixed_network()), *(settled(make()) for make in MODULES.values())):
        exported = export_network(module)
        features = small.random_input(module.in_type, 9, 9, dtype=torch.float32)
        saved.append((exported, features, exported(features).detach()))
    torch.save(saved, file)
    command = [sys.executable, "-c", LOAD_WITHOUT_ESCNN, str(file)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "done", found.stderr
