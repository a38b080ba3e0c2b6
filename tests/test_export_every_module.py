"""Each class of escnn's modules that has a plain form is exported without base space, in the plane and in space."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from errors import ROUNDING, SINGLE, relative_error
from escnn import gspaces
from escnn import nn as enn
from escnn.group import dihedral_group, directsum, so2_group
from escnn.gspaces import GSpace, no_base_space
from escnn.nn import EquivariantModule, FieldType
from small import volume_space
from small_networks import settled

from escnn_relaxed import RelaxedLinear, RelaxedR2Conv, RelaxedR3Conv, export_network
from escnn_relaxed.network.export_modules import plain_module

# D4 and SO(2) by the number of axes.
FINITE = {0: no_base_space(dihedral_group(4)), 2: gspaces.flipRot2dOnR2(4), 3: gspaces.dihedralOnR3(4)}
CIRCLES = {
    0: no_base_space(so2_group(2)),
    2: gspaces.rot2dOnR2(-1, maximum_frequency=2),
    3: gspaces.rot2dOnR3(-1, maximum_frequency=2),
}
SIDE = 5

Make = Callable[[int], EquivariantModule]


def regular(axes: int, count: int = 3) -> FieldType:
    return FieldType(FINITE[axes], [FINITE[axes].regular_repr] * count)


def irreps(space: GSpace, trivial: bool = True) -> FieldType:
    """One field of each kind of irrep, then those of the first two kinds again."""
    fields = [space.irrep(*irrep.id) for irrep in space.fibergroup.irreps() if trivial or not irrep.is_trivial()]
    return FieldType(space, fields + fields[:2])


def mixed(axes: int) -> FieldType:
    """Irreps between regular fields, which have a change of basis."""
    between = irreps(FINITE[axes]).representations
    return FieldType(FINITE[axes], [FINITE[axes].regular_repr, *between, *regular(axes, 2).representations])


def restriction(axes: int) -> enn.RestrictionModule:
    """Fields of D4, or in space, where escnn restricts few groups, of SO(3), as those of C4."""
    if axes == 3:
        return enn.RestrictionModule(irreps(gspaces.rot3dOnR3(2)), (False, 4))
    return enn.RestrictionModule(regular(axes), (None, 4))


def gated(axes: int) -> EquivariantModule:
    fields = irreps(CIRCLES[axes], trivial=False)
    trivial = [CIRCLES[axes].trivial_repr] * len(fields)
    labels = ["gate", "gated"] * len(fields)
    pairs = [field for pair in zip(trivial, fields.representations, strict=True) for field in pair]
    return enn.GatedNonLinearity1(FieldType(CIRCLES[axes], pairs), labels)


def gates_inside(axes: int) -> EquivariantModule:
    space = CIRCLES[axes]
    field = directsum([space.trivial_repr, space.trivial_repr, *irreps(space, trivial=False).representations[:2]])
    return enn.GatedNonLinearityUniform(FieldType(space, [field] * 2))


def branches(axes: int) -> EquivariantModule:
    fields = regular(axes)
    norm = enn.IIDBatchNorm2d(FieldType(fields.gspace, fields.representations[:2]))
    elu = enn.ELU(FieldType(fields.gspace, fields.representations[:1]))
    return enn.MultipleModule(fields, ["norm", "elu", "norm"], [(norm, "norm"), (elu, "elu")])


def fourier(kind: type[EquivariantModule]) -> Make:
    return lambda axes: kind(
        CIRCLES[axes], 2, CIRCLES[axes].fibergroup.bl_irreps(2), type="regular", N=8, inplace=False
    )


def on_quotient(kind: type[EquivariantModule]) -> Make:
    """Functions on O(2) over a mirror, of which the elements are the rotations."""
    spaces = {
        0: no_base_space(gspaces.flipRot2dOnR2(-1, maximum_frequency=2).fibergroup),
        2: gspaces.flipRot2dOnR2(-1, maximum_frequency=2),
        3: gspaces.conicalOnR3(-1, maximum_frequency=2),
    }
    return lambda axes: kind(
        spaces[axes], (0.0, 1), 2, spaces[axes].fibergroup.bl_irreps(2), type="regular", N=8, inplace=False
    )


def on_fields(kind: type[EquivariantModule], fields: Callable[[int], FieldType] = regular, *options: Any) -> Make:
    return lambda axes: kind(fields(axes), *options)


def convolution(kind: type[EquivariantModule], *options: Any, groups: int = 2) -> Make:
    return lambda axes: kind(regular(axes, 2), regular(axes, 2), 3, 1, *options, groups=groups)


def icosahedral(kind: type[EquivariantModule]) -> Make:
    def make(axes: int) -> EquivariantModule:
        space = volume_space("icosahedral")
        fields = FieldType(space, [space.trivial_repr, space.irrep(1)])
        return kind(fields, fields, 3)

    return make


# Each class with the numbers of axes at which escnn has it, and what builds one.
EVERYWHERE, IMAGES = (0, 2, 3), (2, 3)
CLASSES: dict[type[EquivariantModule], tuple[tuple[int, ...], Make]] = {
    enn.IdentityModule: (EVERYWHERE, on_fields(enn.IdentityModule)),
    enn.SequentialModule: (EVERYWHERE, lambda axes: enn.SequentialModule(enn.ELU(regular(axes)))),
    enn.MultipleModule: (EVERYWHERE, branches),
    enn.ReLU: (EVERYWHERE, on_fields(enn.ReLU)),
    enn.ELU: (EVERYWHERE, on_fields(enn.ELU, regular, 0.5)),
    enn.LeakyReLU: (EVERYWHERE, on_fields(enn.LeakyReLU)),
    enn.PointwiseNonLinearity: (EVERYWHERE, on_fields(enn.PointwiseNonLinearity, regular, "p_sigmoid")),
    enn.NormNonLinearity: (EVERYWHERE, lambda axes: enn.NormNonLinearity(irreps(CIRCLES[axes]), "n_softplus")),
    enn.GatedNonLinearity1: (EVERYWHERE, gated),
    enn.GatedNonLinearityUniform: (EVERYWHERE, gates_inside),
    enn.FourierPointwise: (EVERYWHERE, fourier(enn.FourierPointwise)),
    enn.FourierELU: (EVERYWHERE, fourier(enn.FourierELU)),
    enn.QuotientFourierPointwise: (EVERYWHERE, on_quotient(enn.QuotientFourierPointwise)),
    enn.QuotientFourierELU: (EVERYWHERE, on_quotient(enn.QuotientFourierELU)),
    enn.InnerBatchNorm: (IMAGES, on_fields(enn.InnerBatchNorm)),
    enn.NormBatchNorm: (EVERYWHERE, lambda axes: enn.NormBatchNorm(irreps(FINITE[axes], trivial=False))),
    enn.GNormBatchNorm: (EVERYWHERE, lambda axes: enn.GNormBatchNorm(irreps(FINITE[axes]))),
    # escnn takes each of them with any number of axes.
    enn.IIDBatchNorm1d: (EVERYWHERE, on_fields(enn.IIDBatchNorm1d, mixed)),
    enn.IIDBatchNorm2d: (EVERYWHERE, on_fields(enn.IIDBatchNorm2d, mixed)),
    enn.IIDBatchNorm3d: (EVERYWHERE, on_fields(enn.IIDBatchNorm3d, mixed)),
    enn.GroupPooling: (EVERYWHERE, on_fields(enn.GroupPooling)),
    enn.NormPool: (EVERYWHERE, on_fields(enn.NormPool, mixed)),
    enn.PointwiseDropout: (EVERYWHERE, on_fields(enn.PointwiseDropout)),
    enn.FieldDropout: (EVERYWHERE, on_fields(enn.FieldDropout)),
    enn.RestrictionModule: (EVERYWHERE, restriction),
    enn.DisentangleModule: (EVERYWHERE, lambda axes: enn.DisentangleModule(restriction(axes).out_type)),
    enn.ReshuffleModule: (EVERYWHERE, on_fields(enn.ReshuffleModule, regular, [2, 0, 1])),
    enn.MaskModule: (IMAGES, on_fields(enn.MaskModule, regular, SIDE)),
    enn.Linear: ((0,), lambda axes: enn.Linear(mixed(0), mixed(0))),
    RelaxedLinear: ((0,), lambda axes: RelaxedLinear(mixed(0), mixed(0), initial_softness=0.1)),
    enn.R2Conv: ((2,), convolution(enn.R2Conv)),
    enn.R2ConvTransposed: ((2,), convolution(enn.R2ConvTransposed)),
    RelaxedR2Conv: ((2,), convolution(RelaxedR2Conv)),
    enn.R3Conv: ((3,), convolution(enn.R3Conv)),
    enn.R3ConvTransposed: ((3,), convolution(enn.R3ConvTransposed)),
    RelaxedR3Conv: ((3,), convolution(RelaxedR3Conv)),
    enn.R3IcoConv: ((3,), icosahedral(enn.R3IcoConv)),
    enn.R3IcoConvTransposed: ((3,), icosahedral(enn.R3IcoConvTransposed)),
    enn.R2Upsampling: ((2,), on_fields(enn.R2Upsampling, regular, 2)),
    enn.R3Upsampling: ((3,), on_fields(enn.R3Upsampling, regular, 2)),
    enn.PointwiseMaxPool2D: ((2,), on_fields(enn.PointwiseMaxPool2D, regular, 2)),
    enn.PointwiseMaxPool3D: ((3,), on_fields(enn.PointwiseMaxPool3D, regular, 2)),
    enn.PointwiseMaxPoolAntialiased2D: ((2,), on_fields(enn.PointwiseMaxPoolAntialiased2D, regular, 3, 2, 1)),
    enn.PointwiseMaxPoolAntialiased3D: ((3,), on_fields(enn.PointwiseMaxPoolAntialiased3D, regular, 3, 2, 1)),
    enn.PointwiseAvgPool2D: ((2,), on_fields(enn.PointwiseAvgPool2D, regular, 2)),
    enn.PointwiseAvgPool3D: ((3,), on_fields(enn.PointwiseAvgPool3D, regular, 2)),
    enn.PointwiseAvgPoolAntialiased2D: ((2,), on_fields(enn.PointwiseAvgPoolAntialiased2D, regular, 0.66, 2)),
    enn.PointwiseAvgPoolAntialiased3D: ((3,), on_fields(enn.PointwiseAvgPoolAntialiased3D, regular, 0.66, 2)),
    enn.PointwiseAdaptiveAvgPool2D: ((2,), on_fields(enn.PointwiseAdaptiveAvgPool2D, regular, 3)),
    enn.PointwiseAdaptiveAvgPool3D: ((3,), on_fields(enn.PointwiseAdaptiveAvgPool3D, regular, 3)),
    enn.PointwiseAdaptiveMaxPool2D: ((2,), on_fields(enn.PointwiseAdaptiveMaxPool2D, regular, 3)),
    enn.PointwiseAdaptiveMaxPool3D: ((3,), on_fields(enn.PointwiseAdaptiveMaxPool3D, regular, 3)),
}
# escnn takes float32 alone in these, or makes float32 of any dtype.
IN_SINGLE = (enn.GroupPooling, enn.NormPool, enn.GatedNonLinearity1, enn.MultipleModule)
CASES = [(kind, axes) for kind, (dimensions, _) in CLASSES.items() for axes in dimensions]


@pytest.mark.parametrize(("kind", "axes"), CASES, ids=[f"{kind.__name__}-{axes}" for kind, axes in CASES])
def test_module_is_exported_in_each_dimension(kind: type[EquivariantModule], axes: int) -> None:
    dtype, bound = (torch.float32, SINGLE) if kind in IN_SINGLE else (torch.float64, ROUNDING)
    module = settled(CLASSES[kind][1](axes)).to(dtype)
    exported = export_network(module)
    assert not any(isinstance(part, EquivariantModule) for part in exported.modules())
    features = torch.randn(3, module.in_type.size, *[SIDE] * axes, dtype=dtype)
    with torch.no_grad():
        # A copy: some of escnn's functions are in place.
        expected, found = module.eval()(module.in_type(features.clone())).tensor, exported(features)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert relative_error(found, expected) <= bound


def test_inner_batch_norm_without_base_space_is_that_of_the_plane() -> None:
    """escnn builds it and cannot run it."""
    module, plane = (settled(enn.InnerBatchNorm(regular(axes))).double() for axes in (0, 2))
    plane.load_state_dict(module.state_dict())
    features = torch.randn(3, plane.in_type.size, dtype=torch.float64)
    with torch.no_grad():
        expected = plane.eval()(plane.in_type(features[..., None, None])).tensor[..., 0, 0]
        assert relative_error(export_network(module)(features), expected) <= ROUNDING


def test_every_class_with_a_plain_form_is_tested() -> None:
    classes = {value for name in enn.__all__ if isinstance(value := getattr(enn, name), type)}
    with_export = {
        kind
        for kind in classes
        if issubclass(kind, EquivariantModule)
        and kind is not EquivariantModule
        and (kind.export is not EquivariantModule.export or set(kind.__mro__) & set(plain_module.registry) - {object})
    }
    # The first one's own export() raises NotImplementedError; tests/test_export_clouds.py has the others.
    elsewhere = {"TensorProductModule", "R2PointConv", "R3PointConv"}
    assert {kind.__name__ for kind in with_export - set(CLASSES)} <= elsewhere | {
        kind.__name__ for kind in with_export if set(kind.__mro__[1:]) & set(CLASSES)
    }
