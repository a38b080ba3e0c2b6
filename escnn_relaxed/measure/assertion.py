"""An assertion for tests: a layer or a network is equivariant, up to rounding and interpolation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from escnn.group import GroupElement
from escnn.nn import FieldType
from torch import Tensor, nn

from ..checks import check_not_negative
from ..layer.reference_field import ReferenceField
from ..layer.relaxed_layer import RelaxedLayer
from ..layer.relaxed_point_conv import PointConvolution
from ..network.relaxed_layers import in_eval_mode, strict_layers
from .clouds import measured_network
from .equivariance import error_report
from .forward_probe import OutputSelector
from .measured_network import Data, Shifts
from .reports import EquivarianceReport, ErrorRow, plain_table

# The largest relative error that rounding makes. escnn's matrices of irreps are exact to about 1e-10 in float64. Strict
# networks of 1 and of 16 layers had 2e-7 in float32, 3e-4 in float16, 2e-3 in bfloat16: a margin of 10 and more.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# Strict layers exceed the error of resampling by up to 0.03, strict networks by up to 0.17: taps and pixels are no
# continuous kernel. An ordinary 3×3 convolution exceeds it by 0.5 to 1.5.
_BETWEEN_PIXELS = 0.2
# A softness below this is rounding.
_SOFT = 1e-10


@torch.no_grad()
def assert_equivariant(
    module: nn.Module,
    input_size: int | tuple[int, ...] | None = None,
    *,
    data: Data = None,
    layer: str = "",
    in_type: FieldType | None = None,
    out_type: FieldType | None = None,
    elements: Sequence[GroupElement] | None = None,
    angles: Sequence[float] = (),
    shifts: Shifts = (),
    output: OutputSelector = None,
    atol: float | None = None,
    interpolated_atol: float | None = None,
) -> EquivarianceReport:
    """Raise an ``AssertionError`` unless a layer or a network is equivariant; for the tests of your own code.

    It measures what :func:`~escnn_relaxed.equivariance_error` measures, on the same noise or on your data, and compares
    the error ‖f(gx) − g f(x)‖ / ‖f(x)‖ of each transformation g with a tolerance:

    - g that maps pixels to pixels (*exact*): ``atol``, for rounding. Where a stride does not fit the size (*strided*)
      the tolerance is the same, and the message says so.
    - g between pixels (*interpolated*): ``interpolated_atol`` above the error of resampling alone.

    The message lists each transformation that errs with its error and tolerance, and the layers that are soft. A soft
    network is equivariant only to the subgroup that it keeps: name its elements by ``elements=``.

    Args:
        module: a layer or network, as for :func:`~escnn_relaxed.equivariance_error`.
        input_size: sides in pixels of noise to measure on, or one number for all.
        data: a batch to measure on in its place, or a tuple of all inputs, images first.
        layer: name of a module inside whose output is compared; the whole by default.
        in_type: fields of the input, where the module does not say.
        out_type: fields of an output that is a plain tensor with pixels.
        elements: of the fiber group; all by default (of a continuous group 16 rotations, of SO(3) and O(3) the 24 of
            the cube), ``()`` for none.
        angles: further rotations, in degrees, in space about z.
        shifts: in pixels, (rows down, columns to the right), of volumes (planes, rows, columns).
        output: from what the module returns to the tensor that is compared.
        atol: largest relative error of exact transformations. By default that of rounding, by the coarsest dtype of
            weights and output: 1e-9 in float64, 1e-4 in float32, 4e-3 in float16 and 3e-2 in bfloat16. escnn's own
            linear maps, and all convolutions of clouds, count as float32, since their bases are sampled so; float32 on
            a GPU counts as float16, since TF32 has as many digits.
        interpolated_atol: how much the error of interpolated transformations may exceed that of resampling. By default
            0.2: strict networks have up to 0.17, ordinary convolutions 0.5 and more.

    Returns:
        The :class:`~escnn_relaxed.measure.EquivarianceReport` that was compared.

    Raises:
        AssertionError: for a transformation whose error is above its tolerance, or not finite.
        TypeError: for an argument of another type.
        ValueError: for arguments that do not go together, nothing to measure, an output that is 0 wherever it is
            compared, or a tolerance below 0.

    Example:
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> strict = RelaxedR2Conv(fields, fields, 3, relax=None)
        >>> report = assert_equivariant(strict, 9)
        >>> soft = RelaxedR2Conv(fields, fields, 3, initial_softness=0.1)
        >>> try:
        ...     assert_equivariant(soft, 9)
        ... except AssertionError as error:
        ...     print(str(error).splitlines()[-1])
        soft: the layer itself in rotation (s = 0.1)
    """
    given = {"atol": atol, "interpolated_atol": interpolated_atol}
    tolerances = {name: None if value is None else check_not_negative(name, value) for name, value in given.items()}
    network = measured_network(module, input_size, data, in_type, out_type, (layer,), output)
    with in_eval_mode(module):
        report = error_report(network, layer, network.passes(elements, angles, shifts))
        whole = network.whole[layer].tensor
    empty = [row.name for row in report.rows if row.is_empty]
    if empty:
        raise ValueError(
            f"{_described(module, layer)} was not tested under {', '.join(empty)}: its output is 0 in all pixels that "
            f"are compared, or there are none; check its weights and the data, and take larger images or smaller shifts"
        )
    exact, between = tolerances.values()
    exact = _rounding(module, whole) if exact is None else exact
    between = _BETWEEN_PIXELS if between is None else between
    allowed = [between + row.resampling if row.kind == "interpolated" else exact for row in report.rows]
    # An error that is no number is none below the tolerance.
    failed = [(row, most) for row, most in zip(report.rows, allowed, strict=True) if not row.error <= most]
    if failed:
        raise AssertionError(_message(module, layer, failed, len(report.rows)))
    return report


def _rounding(module: nn.Module, output: Tensor) -> float:
    """Return the tolerance of exact transformations, by the coarsest numbers in a network."""
    dtypes = {tensor.dtype for tensor in (*module.parameters(), output) if tensor.is_floating_point()}
    if strict_layers(module) or any(isinstance(part, PointConvolution) for part in module.modules()):
        dtypes.add(torch.float32)
    if torch.float32 in dtypes and output.is_cuda:
        dtypes.add(torch.float16)
    return max(_ROUNDING.get(dtype, _ROUNDING[torch.float32]) for dtype in dtypes)


def _described(module: nn.Module, layer: str) -> str:
    """Return the module, and the one inside whose output is compared, as text."""
    return type(module).__name__ + (f" up to {layer!r}" if layer else "")


def _message(module: nn.Module, layer: str, failed: Sequence[tuple[ErrorRow, float]], count: int) -> str:
    """Return the message of a failed assertion: errors, tolerances and soft layers."""
    lines = [(row.name, row.kind, f"{row.error:.2g}", f"{allowed:.2g}") for row, allowed in failed]
    table = plain_table(["transformation", "kind", "error", "tolerance"], lines)
    what = _described(module, layer)
    message = [f"{what} is not equivariant: {len(failed)} of {count} transformations are above their tolerance", table]
    if any(row.kind == "strided" for row, _ in failed):
        message.append(
            "strided: a stride does not fit the size or the shift, so that pixels do not map to pixels; choose sides "
            "with (side + 2 padding − kernel size) a multiple of the stride"
        )
    return "\n".join([*message, _softness(module)])


def _softness(module: nn.Module) -> str:
    """Return the soft layers with their subgroups and softness, as text."""
    soft = []
    for name, layer in module.named_modules():
        if isinstance(layer, (RelaxedLayer, ReferenceField)) and (whole := layer.softness().item()) > _SOFT:
            each = {subgroup: layer.softness(subgroup).item() for subgroup in layer.relaxed_subgroups}
            values = {subgroup: value for subgroup, value in each.items() if value > _SOFT} or {"all": whole}
            subgroups = ", ".join(f"{subgroup} (s = {value:.2g})" for subgroup, value in values.items())
            soft.append(f"{name or 'the layer itself'} in {subgroups}")
    return f"soft: {'; '.join(soft)}" if soft else "soft: no layer; measure modules inside by layer= to find what errs"
