"""Convolutions of clouds between escnn and this package: their arguments, and escnn's layer of one of this package."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from ..kernel.point_kernel import cast_buffers
from ..layer.relaxed_point_conv import PointConvolution
from ..on_escnn.point_sampler import POINT_CONVOLUTIONS
from ..on_escnn.sampled_basis import as_escnn_builds


def basis_arguments(layer: Any) -> dict[str, Any]:
    """Return the arguments that shape the basis of a layer, escnn's or of this package, but for a ``basis_filter``."""
    highest = layer._maximum_frequency
    return {"rings": list(layer._rings), "sigma": list(layer._sigma), "frequencies_cutoff": lambda radius: highest}


@torch.no_grad()
def as_escnn_points(layer: PointConvolution, parameters: dict[int, nn.Parameter]) -> nn.Module:
    """Return escnn's layer with the parameters and the basis of a hardened layer."""
    arguments = {"bias": layer.bias is not None, "initialize": False, **basis_arguments(layer)}
    with as_escnn_builds():
        strict = POINT_CONVOLUTIONS[layer.d](layer.in_type, layer.out_type, **arguments)
    strict._basissampler = copy.deepcopy(layer.basissampler)
    strict.weights = parameters[id(layer.weights)]
    cast_buffers(strict, layer.weights)
    if layer.bias is not None and layer.bias_expansion is not None:
        strict.bias = parameters[id(layer.bias)]
        strict.bias_expansion = layer.bias_expansion.expansion.clone()
        strict.expanded_bias = strict.expand_bias()
    nn.Module.train(strict, layer.training)
    return strict
