"""Geometries of convolutions: a case of each argument, and some together."""

from __future__ import annotations

import pytest

from escnn_relaxed.integral.geometry import ConvolutionGeometry

GEOMETRIES = {
    "plain": ConvolutionGeometry(3),
    "one by one": ConvolutionGeometry(1),
    "even": ConvolutionGeometry(2, padding=(1, 1)),
    "padding": ConvolutionGeometry(3, padding=(1, 1)),
    "unequal padding": ConvolutionGeometry(3, padding=(0, 2)),
    "padding beyond the kernel": ConvolutionGeometry(2, padding=(3, 2)),
    "stride": ConvolutionGeometry(3, padding=(1, 1), stride=2),
    "stride beyond the kernel": ConvolutionGeometry(2, stride=3),
    "dilation": ConvolutionGeometry(3, padding=(2, 2), dilation=2),
    "groups": ConvolutionGeometry(3, padding=(1, 1), groups=2),
    "reflect": ConvolutionGeometry(3, padding=(2, 1), padding_mode="reflect"),
    "replicate": ConvolutionGeometry(3, padding=(1, 3), padding_mode="replicate"),
    "circular": ConvolutionGeometry(4, padding=(2, 1), padding_mode="circular", stride=2),
    "everything": ConvolutionGeometry(3, (2, 3), "circular", stride=2, dilation=2, groups=2),
}
EACH_GEOMETRY = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())
