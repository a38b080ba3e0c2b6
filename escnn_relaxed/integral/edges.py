"""Convolutions of clouds on plain tensors, for exported networks.

Runs without escnn and without torch_geometric.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..group.edges import edge_directions, edge_lengths, monomials, node_functions, turned_to_axis


class EdgeFunctions(nn.Module):
    """Functions of an offset d: Gaussians of |d| at some radii times harmonics of d/|d|.

    Args:
        radii: where the Gaussians are, (R,).
        widths: theirs, (R,).
        first: from a direction to its harmonics of degree 1, (n, d).
        steps: of each degree above, from the products of the harmonics one below with those of degree 1.
        used: the numbers of the functions among all R × (harmonics of all degrees).
    """

    radii: Tensor
    widths: Tensor
    first: Tensor
    used: Tensor

    def __init__(self, radii: Tensor, widths: Tensor, first: Tensor, steps: Sequence[Tensor], used: Tensor) -> None:
        super().__init__()
        self.degrees = len(steps) + 1 if len(first) else 0
        for name, value in (("radii", radii), ("widths", widths), ("first", first), ("used", used)):
            self.register_buffer(name, value.clone())
        for number, step in enumerate(steps):
            self.register_buffer(f"step_{number}", step.clone())

    def forward(self, offsets: Tensor) -> Tensor:
        """Offsets (E, d) → (E, S)."""
        radial = torch.exp(-0.5 * (edge_lengths(offsets) - self.radii).square() / self.widths.square())
        harmonics = [torch.ones_like(offsets[:, :1])]
        if self.degrees:
            harmonics.append(edge_directions(offsets) @ self.first.T)
        for number in range(self.degrees - 1):
            products = (harmonics[-1].unsqueeze(2) * harmonics[1].unsqueeze(1)).flatten(1)
            harmonics.append(products @ getattr(self, f"step_{number}").T)
        every = radial.unsqueeze(2) * torch.cat(harmonics, 1).unsqueeze(1)
        return every.flatten(1).index_select(1, self.used)


class NodeFactors(nn.Module):
    """f_T of each channel at a node, on plain tensors: coefficients times functions h, less their means.

    Args:
        action: the matrices of the M group elements, (M, d, d).
        frequency: ω′ of each axis, (d,) or (1,).
        means: of the J functions, (J, 1, 1).
        coefficients: those of the functions at each element, (C, J·M).
        radius: the length that positions are told in.
        orbit: how many of the first axes the continuous rotations of the group mix.
    """

    action: Tensor
    frequency: Tensor
    means: Tensor

    def __init__(
        self, action: Tensor, frequency: Tensor, means: Tensor, coefficients: Tensor, radius: float, orbit: int
    ) -> None:
        super().__init__()
        self.radius, self.orbit = radius, orbit
        self.coefficients = nn.Parameter(coefficients.clone())
        for name, value in (("action", action), ("frequency", frequency), ("means", means)):
            self.register_buffer(name, value.clone())

    def forward(self, coordinates: Tensor) -> Tensor:
        """Coordinates (nodes, d) → (nodes, C)."""
        positions = turned_to_axis(coordinates / self.radius, self.orbit)
        values = node_functions(self.frequency, positions, self.action) - self.means
        return (self.coefficients @ values.flatten(0, 1)).T


class CloudConvolution(nn.Module):
    """A convolution of clouds: the mean of the messages to each node, with the bias.

    The message of an edge d to a channel c is Σ_s φ_s(d) Σ_c′ C_s(c, c′) f(c′), times a polynomial of d/|d| where
    there is one. With several blocks of channels the output is their sum, and f_T belongs to the last block.

    Args:
        functions: φ.
        weight: C, (S, C_in, blocks · C_out).
        bias: (C_out,) or None.
        polynomial: coefficients of the monomials of directions in each channel, (n, blocks · C_out), or None for 1.
        degrees: of the monomials.
        factors: f_T of the last block, which is multiplied by 1 + f_T; None for 0.
    """

    def __init__(
        self,
        functions: EdgeFunctions,
        weight: Tensor,
        bias: Tensor | None,
        polynomial: Tensor | None = None,
        degrees: Sequence[int] = (),
        factors: NodeFactors | None = None,
        blocks: int = 1,
    ) -> None:
        super().__init__()
        self.functions, self.factors = functions, factors
        self.degrees, self.blocks = tuple(degrees), blocks
        self.weight = nn.Parameter(weight.clone())
        self.bias = None if bias is None else nn.Parameter(bias.clone())
        self.polynomial = None if polynomial is None else nn.Parameter(polynomial.clone())

    def forward(
        self, features: Tensor, coordinates: Tensor, edge_index: Tensor, edge_delta: Tensor | None = None
    ) -> Tensor:
        """Apply the convolution: (nodes, C_in) → (nodes, C_out).

        Args:
            features: (nodes, C_in).
            coordinates: of the nodes, (nodes, d).
            edge_index: numbers of nodes, (2, edges): a message goes from ``edge_index[0]`` to ``edge_index[1]``.
            edge_delta: coordinates of the source less those of the target, (edges, d), where they are known.
        """
        source, target = edge_index[0].long(), edge_index[1].long()
        if edge_delta is None:
            edge_delta = coordinates.index_select(0, source) - coordinates.index_select(0, target)
        # The weights come first, since there are fewer nodes than edges.
        functions, given, channels = self.weight.shape
        at_nodes = features @ self.weight.transpose(0, 1).reshape(given, functions * channels)
        at_edges = at_nodes.index_select(0, source).view(-1, functions, channels)
        messages = (self.functions(edge_delta).unsqueeze(1) @ at_edges).squeeze(1)
        if self.polynomial is not None:
            messages = messages * (monomials(edge_directions(edge_delta), self.degrees) @ self.polynomial)
        ones = torch.ones_like(messages[:, :1])
        sums = torch.cat([messages, ones], 1)
        sums = sums.new_zeros(features.shape[0], channels + 1).index_add(0, target, sums)
        output = sums[:, :-1] / sums[:, -1:].clamp_min(1)
        if self.factors is not None:
            factors = 1 + self.factors(coordinates)
            alone, last = output[:, : -factors.shape[1]], output[:, -factors.shape[1] :]
            output = torch.cat([alone, last * factors], 1)
        if self.blocks > 1:
            first, *others = output.chunk(self.blocks, 1)
            output = sum(others, first)
        return output if self.bias is None else output + self.bias
