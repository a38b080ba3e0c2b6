"""escnn's own modules exported: same numbers and dtype, memory of their own, and no need of escnn."""

from __future__ import annotations

import copy
from pathlib import Path

import battery
import pytest
import torch
from escnn import nn as enn
from escnn.nn import EquivariantModule, FieldType
from forms import tensors_of
from networks_to_export import C4, IRREPS, MIXED, answers, assert_run_without_escnn, mixed_network, settled
from tolerances import ROUNDING, SINGLE
from transformations import relative_error

from escnn_relaxed import export_network
from escnn_relaxed.network.export_modules import plain_module


def _restricted(fields: FieldType) -> FieldType:
    return fields.restrict((None, 4))


# Modules that pool channels make float32 of any dtype, in escnn.
MODULES: dict[str, tuple[EquivariantModule, float]] = {
    "transposed": (
        enn.R2ConvTransposed(MIXED, MIXED, 3, stride=2, padding=1, output_padding=1, recompute=True),
        ROUNDING,
    ),
    "transposed, no bias": (enn.R2ConvTransposed(C4, C4, 3, padding=1, bias=False, recompute=True), ROUNDING),
    "relu": (enn.ReLU(MIXED), 0),
    "elu": (enn.ELU(MIXED, alpha=0.5), 0),
    "leaky relu": (enn.LeakyReLU(MIXED), 0),
    "identity": (enn.IdentityModule(MIXED), 0),
    "max pool": (enn.PointwiseMaxPool2D(C4, 3, stride=2, padding=1), 0),
    "max pool, ceil": (enn.PointwiseMaxPool2D(C4, 2, ceil_mode=True), 0),
    "max pool, antialiased": (enn.PointwiseMaxPoolAntialiased2D(C4, 3, stride=2, padding=1), ROUNDING),
    "average pool": (enn.PointwiseAvgPool2D(MIXED, 2, stride=1, padding=1), ROUNDING),
    "average pool, ceil": (enn.PointwiseAvgPool2D(MIXED, 2, ceil_mode=True), ROUNDING),
    "average pool, antialiased": (enn.PointwiseAvgPoolAntialiased2D(MIXED, 0.66, stride=2), ROUNDING),
    "adaptive average": (enn.PointwiseAdaptiveAvgPool2D(MIXED, 3), ROUNDING),
    "adaptive maximum": (enn.PointwiseAdaptiveMaxPool2D(C4, 3), 0),
    "group pooling": (enn.GroupPooling(C4), SINGLE),
    "group pooling, sizes mixed": (enn.GroupPooling(MIXED), SINGLE),
    "norm pooling": (enn.NormPool(IRREPS), SINGLE),
    "inner batch norm": (enn.InnerBatchNorm(C4), ROUNDING),
    "inner batch norm, sizes mixed": (enn.InnerBatchNorm(MIXED), ROUNDING),
    "inner batch norm, not affine": (enn.InnerBatchNorm(MIXED, affine=False), ROUNDING),
    "iid batch norm": (enn.IIDBatchNorm2d(C4), ROUNDING),
    "iid batch norm, sizes mixed": (enn.IIDBatchNorm2d(MIXED), ROUNDING),
    "mask": (enn.MaskModule(MIXED, 9, margin=1), 0),
    "dropout": (enn.PointwiseDropout(MIXED, 0.5), 0),
    "field dropout": (enn.FieldDropout(MIXED, 0.5), 0),
    "upsampling": (enn.R2Upsampling(MIXED, scale_factor=2), ROUNDING),
    "restriction": (enn.RestrictionModule(C4, 2), 0),
    "disentangling": (enn.DisentangleModule(_restricted(MIXED)), ROUNDING),
    "reshuffling": (enn.ReshuffleModule(MIXED, [2, 0, *range(3, len(MIXED)), 1]), 0),
    "norm relu": (enn.NormNonLinearity(IRREPS), ROUNDING),
    "norm sigmoid": (enn.NormNonLinearity(IRREPS, "n_sigmoid"), ROUNDING),
    "norm softplus, no bias": (enn.NormNonLinearity(IRREPS, "n_softplus", bias=False), ROUNDING),
    "squash": (enn.NormNonLinearity(IRREPS, "squash", bias=False), ROUNDING),
}


def gated(fields: FieldType, order: str) -> enn.GatedNonLinearity1:
    """Gates first, or last, or each before its field."""
    trivial = [fields.gspace.trivial_repr]
    values = list(fields.representations)
    if order == "in turn":
        representations = [field for value in values for field in (*trivial, value)]
        labels = ["gate", "gated"] * len(values)
    else:
        parts = [(trivial * len(values), ["gate"] * len(values)), (values, ["gated"] * len(values))]
        (first, first_labels), (second, second_labels) = parts if order == "first" else parts[::-1]
        representations, labels = first + second, first_labels + second_labels
    return enn.GatedNonLinearity1(FieldType(fields.gspace, representations), labels)


for _order in ("first", "last", "in turn"):
    MODULES[f"gates {_order}"] = (gated(IRREPS, _order), SINGLE)
MODULES["multiple modules"] = (
    enn.MultipleModule(
        FieldType(IRREPS.gspace, [*IRREPS.representations, IRREPS.gspace.trivial_repr]),
        ["norm"] * len(IRREPS) + ["relu"],
        [
            (enn.ReLU(FieldType(IRREPS.gspace, [IRREPS.gspace.trivial_repr])), "relu"),
            (enn.NormNonLinearity(IRREPS), "norm"),
        ],
    ),
    SINGLE,
)


PRECISIONS = {"float32": torch.float32, "float64": torch.float64}
# escnn's gates do not take float64.
IN_PRECISIONS = [(name, "float32") for name in MODULES]
IN_PRECISIONS += [(name, "float64") for name in MODULES if not name.startswith("gates")]


@pytest.mark.whole
@pytest.mark.parametrize(("name", "precision"), IN_PRECISIONS)
def test_modules_of_escnn_are_exported(name: str, precision: str) -> None:
    original, bound = MODULES[name]
    bound = bound if precision == "float64" else SINGLE
    module = settled(copy.deepcopy(original)).to(PRECISIONS[precision]).train()
    expected, found = answers(module, export_network(module))
    assert found.shape == expected.shape
    assert relative_error(found, expected.to(found)) <= bound
    shared = {tensor.data_ptr() for tensor in tensors_of(module)}
    assert not shared & {tensor.data_ptr() for tensor in tensors_of(export_network(module))}


def is_exported_by_escnn(original: EquivariantModule) -> bool:
    """Whether its own ``export()`` gives the same numbers by modules of torch's."""
    module = settled(copy.deepcopy(original)).eval()
    try:
        expected, found = answers(module, copy.deepcopy(module.export()))
    except NotImplementedError:
        return False
    of_torch = all(type(part).__module__.startswith("torch.") for part in module.export().modules())
    return of_torch and found.shape == expected.shape and relative_error(found, expected) <= SINGLE


KINDS = dict.fromkeys(type(module) for module, _ in MODULES.values())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_this_package_has_plain_forms_where_escnn_has_none_or_others(kind: type[EquivariantModule]) -> None:
    """The table of docs/how-to/export.md; what escnn learns to export has no need of one here."""
    by_escnn = [is_exported_by_escnn(module) for module, _ in MODULES.values() if type(module) is kind]
    has_plain_form = plain_module.dispatch(kind) is not plain_module.dispatch(object)
    assert has_plain_form == (not all(by_escnn))


@pytest.mark.parametrize("name", ["norm softplus, no bias", "norm relu", "norm pooling"])
def test_norms_have_finite_gradients_at_zero(name: str) -> None:
    exported = export_network(settled(copy.deepcopy(MODULES[name][0])))
    features = torch.zeros(1, IRREPS.size, 3, 3, requires_grad=True)
    exported(features).sum().backward()
    assert features.grad.isfinite().all()


@pytest.mark.slow
def test_exported_networks_run_where_escnn_is_not_installed(tmp_path: Path) -> None:
    modules = [settled(mixed_network()), *(settled(copy.deepcopy(module)) for module, _ in MODULES.values())]
    inputs = [battery.random_input(module.in_type, 9, 9, dtype=torch.float32) for module in modules]
    assert_run_without_escnn([(export_network(of), each) for of, each in zip(modules, inputs, strict=True)], tmp_path)
