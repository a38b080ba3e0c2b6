"""Measures of softness: the equivariance error of a network, its loss when hardened, tables and logs.

Example:
    >>> from escnn import gspaces, nn
    >>> from escnn_relaxed import RelaxedR2Conv
    >>> gspace = gspaces.rot2dOnR2(4)
    >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
    >>> layer = RelaxedR2Conv(fields, fields, 3, padding=1, relax={"rotation": 0.25})
    >>> largest = max(row.error for row in equivariance_error(layer, 9).exact)
    >>> 0 < largest < 1
    True
"""

from .equivariance import equivariance_error, prediction_agreement
from .monitoring import RelaxationMonitor, relaxation_scalars
from .reports import AblationReport, AblationRow, AgreementReport, AgreementRow, EquivarianceReport, ErrorRow
from .summary import (
    AxisSoftness,
    LayerSummary,
    RelaxationSummary,
    relaxation_summary,
    softness_ablation,
    softness_by_axis,
)

__all__ = [
    "AblationReport",
    "AblationRow",
    "AgreementReport",
    "AgreementRow",
    "AxisSoftness",
    "EquivarianceReport",
    "ErrorRow",
    "LayerSummary",
    "RelaxationMonitor",
    "RelaxationSummary",
    "equivariance_error",
    "prediction_agreement",
    "relaxation_scalars",
    "relaxation_summary",
    "softness_ablation",
    "softness_by_axis",
]
