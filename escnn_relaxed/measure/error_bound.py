"""A bound on the equivariance error that holds for any group element, from the weights (equation (8)).

For one layer ‖f(hx) − h f(x)‖ ≤ 2 ‖K − PK‖_op ‖x‖, because hKh⁻¹ − K = h(K − PK)h⁻¹ − (K − PK). Through a network
of layers f_l with Lipschitz constants L_l the errors add up: e_l ≤ L_l e_{l−1} + 2 ‖K_l − PK_l‖_op ‖x_{l−1}‖.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from escnn import nn as enn
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..checks import check_mapping, check_module, check_number, check_size, check_subgroups
from ..integral.stationary import ConvolutionGeometry, Geometry, TransposedGeometry
from ..kernel.softness import projected
from ..layer.convolution import Convolution
from .operator_norm import convolution_norm, largest_singular_value

__all__ = ["BoundRow", "equivariance_error_bound", "soft_part_norm"]

# Of the modules that only rectify, pool or pass on, in the Euclidean norm.
_NON_EXPANSIVE = (
    enn.ReLU,
    enn.GroupPooling,
    enn.NormPool,
    enn.PointwiseAvgPool,
    enn.PointwiseAvgPoolAntialiased,
    enn.PointwiseDropout,
    enn.FieldDropout,
    enn.IdentityModule,
    enn.DisentangleModule,
)


@dataclass(frozen=True)
class BoundRow:
    """One module of a network.

    Attributes:
        name: of the module.
        lipschitz: L, an upper bound.
        soft_norm: ‖K − PK‖_op, 0 for modules that are equivariant.
        error: bound on ‖f(hx) − h f(x)‖ / ‖f(x)‖ up to and with this module, the largest of the batch.

    Example:
        >>> row = BoundRow("conv", lipschitz=1.5, soft_norm=0.1, error=0.2)
        >>> row.error
        0.2
    """

    name: str
    lipschitz: float
    soft_norm: float
    error: float


def soft_part_norm(layer: Convolution, size: tuple[int, int], subgroups: tuple[str, ...] = ()) -> float:
    """‖K − PK‖_op on images of a size: ‖f(hx) − h f(x)‖ is at most twice that times ‖x‖.

    An upper bound for a stationary layer; for one that is soft in translation the result of a Lanczos iteration, which
    comes close from below.

    Args:
        layer: the layer.
        size: height and width of the image in pixels.
        subgroups: of ``"rotation"``, ``"reflection"``, ``"translation"``, all by default.

    Raises:
        TypeError: for what is no relaxed layer, or a size that is no pair of integers.
        ValueError: for another name, or for fields on which the group does not act by orthogonal matrices.

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> image = nn.FieldType(gspace, [gspace.trivial_repr])
        >>> layer = RelaxedR2Conv(
        ...     image, image, 3, padding=1, bias=False, relax={"rotation": 0.25}
        ... ).eval()
        >>> x = torch.randn(1, 1, 9, 9)
        >>> difference = layer(image(x.rot90(1, (2, 3)))).tensor - layer(image(x)).tensor.rot90(
        ...     1, (2, 3)
        ... )
        >>> bool(difference.norm() <= 2 * soft_part_norm(layer, (9, 9)) * x.norm())
        True
    """
    if not isinstance(layer, Convolution):
        raise TypeError(f"layer must be a relaxed layer, RelaxedR2Conv for instance, got {layer!r}")
    size = check_size("size", size)
    averaged = check_subgroups(subgroups)
    _check_orthogonal(layer.in_type, layer.out_type)
    layer = _in_single_precision(layer)
    if not layer.is_stationary:

        def soft_part(features: Tensor) -> Tensor:
            with projected([layer], averaged):
                strict = layer.linear(features)
            return layer.linear(features) - strict

        return largest_singular_value(soft_part, (layer.in_type.size, *size), next(layer.parameters()))
    with torch.no_grad():
        kernel = layer.filter_bank()
        with projected([layer], averaged):
            kernel = kernel - layer.filter_bank()
    return _norm_either_way(kernel, size, layer.geometry)


def _in_single_precision(layer: Convolution) -> Convolution:
    """The layer, of half precision a copy in float32: sums over many pixels would overflow."""
    is_half = next(layer.parameters()).dtype in (torch.float16, torch.bfloat16)
    return copy.deepcopy(layer).float() if is_half else layer


def _norm_either_way(kernel: Tensor, size: tuple[int, int], geometry: Geometry) -> float:
    """The larger of the norms on images of this size and turned by 90°, since h may turn the image."""
    return max(convolution_norm(kernel, way, geometry) for way in {size, size[::-1]})


def _check_orthogonal(*field_types: enn.FieldType) -> None:
    """Raise ValueError for fields on which the group does not act by orthogonal matrices."""
    for field_type in field_types:
        group = field_type.gspace.fibergroup
        for field in set(field_type.representations):
            for element in group.testing_elements():
                matrix = field(element)
                if not np.allclose(matrix.T @ matrix, np.eye(len(matrix)), atol=1e-6):
                    raise ValueError(
                        f"the bound needs fields that the group acts on by orthogonal matrices; {field.name!r} is none"
                    )


@torch.no_grad()
def equivariance_error_bound(
    network: nn.Module,
    input: enn.GeometricTensor,
    lipschitz: Mapping[type[nn.Module], float] | None = None,
) -> list[BoundRow]:
    """A bound on the equivariance error of a network on an input, module by module.

    It holds for every group element that maps the pixel grid to itself, and all of them at once, as far as the other
    modules are equivariant (pooling with strides is, on sizes that fit).

    Args:
        network: a layer, or (nested) ``SequentialModule`` of layers, batch norms, ReLUs and pooling; in eval mode.
        input: a batch.
        lipschitz: constants of further modules by type.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for a module whose constant is not known, a constant that is not finite and >= 0, or an input that
            does not fit.
        RuntimeError: for a network in training mode, whose batch norm has no fixed constant.

    Example:
        >>> import torch
        >>> from escnn import gspaces, nn
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
        >>> layer = RelaxedR2Conv(fields, fields, 3, padding=1, relax=None)
        >>> network = nn.SequentialModule(layer, nn.ReLU(fields)).eval()
        >>> equivariance_error_bound(network, fields(torch.randn(1, 4, 9, 9)))[-1].error  # strict
        0.0
    """
    check_module("network", network)
    known = _checked_constants(lipschitz)
    _check_input(network, input)
    if any(module.training for _, module in _in_order(network)):
        raise RuntimeError("network is in training mode: call network.eval() first")
    rows = []
    norms = _norms(input.tensor)
    error = torch.zeros_like(norms)
    for name, module in _in_order(network):
        size = (input.tensor.shape[2], input.tensor.shape[3])
        constant = _lipschitz(name, module, size, known)
        soft = soft_part_norm(module, size) if isinstance(module, Convolution) else 0.0
        error = constant * error + 2 * soft * norms
        input = module(input)
        norms = _norms(input.tensor)
        relative = torch.where(error > 0, error / norms, error)
        rows.append(BoundRow(name, constant, soft, float(relative.max())))
    return rows


def _checked_constants(lipschitz: Any) -> dict[type[nn.Module], float]:
    """Finite numbers from 0 up, by type of module."""
    constants = {} if lipschitz is None else check_mapping("lipschitz", lipschitz, "constants by type of module")
    for kind, constant in constants.items():
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise TypeError(f"lipschitz must be a dict of constants by type of module, got {kind!r} as a type")
        if not 0 <= check_number(f"lipschitz of {kind.__name__}", constant) < math.inf:
            raise ValueError(f"lipschitz of {kind.__name__} must be finite and >= 0, got {constant}")
    return constants


def _check_input(network: nn.Module, input: Any) -> None:
    """A batch of images that the network takes."""
    if not isinstance(input, enn.GeometricTensor):
        raise TypeError(f"input must be a GeometricTensor, got {type(input).__name__}")
    if input.tensor.dim() != 4 or not input.tensor.numel():
        raise ValueError(f"input must be images (batch, C, H, W), got {tuple(input.tensor.shape)}")
    own = getattr(network, "in_type", input.type)
    if own != input.type:
        raise ValueError(f"input must be of the network's fields, {own}, got {input.type}")


def _norms(features: Tensor) -> Tensor:
    """‖·‖ of each image of a batch, in float32 at least."""
    dtype = torch.promote_types(features.dtype, torch.float32)
    norms: Tensor = torch.linalg.vector_norm(features, dim=tuple(range(1, features.dim())), dtype=dtype)
    return norms


def _in_order(network: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    if isinstance(network, enn.SequentialModule):
        for child_name, child in network.named_children():
            yield from _in_order(child, f"{name}.{child_name}" if name else child_name)
    else:
        yield name, network


def _lipschitz(name: str, module: nn.Module, size: tuple[int, int], known: Mapping[type[nn.Module], float]) -> float:
    for kind, constant in known.items():
        if isinstance(module, kind):
            return constant
    if isinstance(module, Convolution):
        module = _in_single_precision(module)
        if not module.is_stationary:
            return largest_singular_value(module.linear, (module.in_type.size, *size), next(module.parameters()))
        return _norm_either_way(module.filter_bank(), size, module.geometry)
    if isinstance(module, enn.R2Conv):
        return _norm_either_way(module.expand_parameters()[0], size, ConvolutionGeometry.of(module))
    if isinstance(module, enn.R2ConvTransposed):
        return _norm_either_way(module.expand_parameters()[0], size, TransposedGeometry.of(module))
    if isinstance(module, enn.InnerBatchNorm):
        return max(_batch_norm_scale(norm) for norm in module.modules() if isinstance(norm, _BatchNorm))
    if isinstance(module, _NON_EXPANSIVE):
        return 1.0
    raise ValueError(
        f"lipschitz: no constant is known of {name!r}, a {type(module).__name__}; "
        f"give one as lipschitz={{{type(module).__name__}: …}}"
    )


def _batch_norm_scale(norm: _BatchNorm) -> float:
    variance = norm.running_var
    if variance is None:
        raise ValueError("a batch norm without running statistics has no fixed Lipschitz constant")
    scale = (variance + norm.eps).rsqrt()
    return float((scale if norm.weight is None else scale * norm.weight.abs()).max())
