"""Gradients of the soft weights of a convolution of clouds for each cloud alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..kernel.point_kernel import PointKernel
from .clouds import checked_edges
from .input_gradients import AnyLayer, LayerCall, input_gradients
from .relaxed_point_conv import PointConvolution


def cloud_gradients(
    call: LayerCall[AnyLayer], slope: Tensor, own: dict[str, nn.Parameter], clouds: Tensor, count: int
) -> dict[str, Tensor]:
    """Return the gradients for each cloud, (count, …), of the soft weights of a layer that it uses.

    Args:
        call: the call of the layer with all clouds.
        slope: the gradient of its output.
        own: the weights.
        clouds: the number of the cloud of each node, (nodes,).
        count: of the clouds.
    """
    if isinstance(call.layer, PointConvolution):
        return _of_convolution(call, slope, own, clouds, count)
    rows = len(call.features)
    if rows not in (len(clouds), count):
        raise ValueError(
            f"network: a {type(call.layer).__name__} has {rows} inputs, neither the {count} clouds nor their "
            f"{len(clouds)} nodes, so that the gradient of a cloud alone is not known"
        )
    gradients = input_gradients(call, slope, own, rows)
    if rows == count:
        return gradients
    return {name: _summed(of_nodes, clouds, count) for name, of_nodes in gradients.items()}


def _summed(values: Tensor, clouds: Tensor, count: int) -> Tensor:
    """Return the sum over the nodes, or edges, of each cloud, (count, …)."""
    return values.new_zeros(count, *values.shape[1:]).index_add(0, clouds, values)


def _of_convolution(
    call: LayerCall[AnyLayer], slope: Tensor, own: dict[str, nn.Parameter], clouds: Tensor, count: int
) -> dict[str, Tensor]:
    """Return the gradients of the weights of f_G and f_T."""
    # The output is the mean of K_strict f times (1 + f_G) over edges, times 1 + f_T. Of each cloud alone the gradients
    # of the coefficients of f_G and f_T are sums over its edges and nodes, and those of the weights follow at once.
    layer: Any = call.layer
    kernel, hardened = layer.kernel, layer.hardened
    features, (coordinates, edge_index, edge_delta) = call.features, call.edges
    source, target = checked_edges(edge_index, len(features), features.device)
    if not torch.equal(clouds[source], clouds[target]):
        raise ValueError("batch must give both nodes of each edge the same cloud: clouds that are joined are one input")
    if edge_delta is None:
        edge_delta = coordinates.index_select(0, source) - coordinates.index_select(0, target)
    sent, weights = features.index_select(0, source), layer.weights.detach()
    factors: list[tuple[Tensor, Tensor]] = []
    of_means = slope / torch.bincount(target, minlength=len(features)).clamp_min(1).to(slope).unsqueeze(1)
    with torch.no_grad():
        strict = kernel.basis.messages(weights, sent, edge_delta) if len(source) else slope[:0]
    if kernel.varies(hardened):
        with torch.no_grad():
            messages, factor = kernel.messages(strict, weights, sent, edge_delta, {hardened: 1.0}, True)
            sums = torch.zeros_like(slope).index_add(0, target, (messages if factor is None else messages * factor))
            values = kernel.position_modulation.node_values(kernel.frequency, coordinates)  # (J·M, nodes)
            of_nodes = (of_means * sums).unsqueeze(2) * values.T.unsqueeze(1)
            of_means = of_means * kernel.node_factors(coordinates)
        factors.append((kernel.position_modulation.node_coefficients(), _summed(of_nodes, clouds, count)))
    at_edges = of_means.index_select(0, target)
    factors += _of_group(kernel, hardened, (at_edges, strict, sent, edge_delta), weights, clouds[target], count)
    learned = [(of, slopes) for of, slopes in factors if of.requires_grad]
    if not learned:
        return {}
    tensors, slopes = zip(*learned, strict=True)
    rows = torch.autograd.grad(tensors, list(own.values()), slopes, is_grads_batched=True, allow_unused=True)
    return {name: row for name, row in zip(own, rows, strict=True) if row is not None}


def _of_group(
    kernel: PointKernel, hardened: Any, edges: tuple[Tensor, ...], weights: Tensor, clouds: Tensor, count: int
) -> list[tuple[Tensor, Tensor]]:
    """Return the coefficients of f_G, of channels and of pairs, with their gradients for each cloud."""
    at_edges, strict, sent, offsets = edges
    factors = []
    with torch.no_grad():
        if kernel.modulation is not None:
            powers, products = kernel.powers(offsets), at_edges * strict
            columns = [products] if powers is None else [products * of.unsqueeze(1) for of in powers.unbind(1)]
            of_channels = torch.stack([_summed(column, clouds, count) for column in columns], 2)
        if kernel.input_modulation is not None:
            pairs = at_edges.unsqueeze(2) * kernel.basis.at(weights, offsets) * sent.unsqueeze(1)
            of_pairs = _summed(pairs, clouds, count).unsqueeze(1)
    if kernel.modulation is not None:
        factors.append((kernel.modulation.edge_coefficients(kernel.frequency, hardened), of_channels))
    if kernel.input_modulation is not None:
        factors.append((kernel.of_pairs(hardened), of_pairs))
    return factors
