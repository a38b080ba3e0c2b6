"""Coordinates → hidden values φ of the continuous kernel κ; knows no groups.

κ is linear in φ, and the output weights belong to the pair of field types that they serve
(:mod:`escnn_relaxed.filter_bank`). A kernel net gives J hidden values at each pair of a filter point and a
domain point. Coordinates are already scaled by their frequencies, ω ⊙ α and ω′ ⊙ α.

What a net does at each point alone is its *encoding*, so that many pairs of few points cost little: ``decode`` takes
one encoding of either side to φ.

Shapes: coordinates have their dimension last; hidden values have J first. Filter and domain coordinates have
the same number of leading dimensions, which broadcast against each other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["FourierKernel", "KernelNet", "SirenKernel"]


class KernelNet(nn.Module, ABC):
    """What a kernel net has to offer.

    Attributes:
        hidden_size: J, the number of hidden values.
        domain_weight: the weights through which the domain coordinates enter, None without any.
    """

    hidden_size: int
    domain_weight: nn.Parameter | None

    @abstractmethod
    def forward(self, filter_coordinates: Tensor, domain_coordinates: Tensor) -> Tensor:
        """Hidden values (J, …) at coordinates (…, F) and (…, D)."""

    @abstractmethod
    def encode_filter(self, filter_coordinates: Tensor) -> Tensor:
        """What φ needs to know of filter coordinates (…, F): (E, …)."""

    @abstractmethod
    def encode_domain(self, domain_coordinates: Tensor) -> Tensor:
        """What the mean of φ over L domain points (…, L, D) needs to know of them: (E′, …)."""

    @staticmethod
    @abstractmethod
    def decode(
        filter_encoding: Tensor, domain_encoding: Tensor, parameters: Sequence[Tensor], dimension: int = 0
    ) -> Tensor:
        """Hidden values (J, …) of encodings that broadcast against each other and ``decoder_parameters``.

        E, E′ and J are found at ``dimension``: 0, or negative.
        """

    @abstractmethod
    def domain_variation(self, differences: Tensor) -> Tensor:
        """Bound on the change of each hidden value, (J,).

        Args:
            differences: (r, D); domain coordinates change by at most u @ differences, |u| ≤ 1.
        """

    @property
    def decoder_parameters(self) -> tuple[Tensor, ...]:
        """The weights of :meth:`decode`."""
        return ()

    def domain_mean(self, filter_coordinates: Tensor, domain_coordinates: Tensor) -> Tensor:
        """Mean of the hidden values over domain points (…, L, D), over L: (J, …) at filter coordinates (…, F)."""
        return self.decode(
            self.encode_filter(filter_coordinates), self.encode_domain(domain_coordinates), self.decoder_parameters
        )


class FourierKernel(KernelNet):
    r"""Random Fourier features and one hidden layer of cosines (paper, "Weight-space implementation").

    .. math::
        \gamma(\alpha) = D^{-1/2} [\cos 2\pi W\alpha;\ \sin 2\pi W\alpha], \qquad
        \varphi = \cos(A\,\gamma(\omega \odot \alpha) + A'\gamma'(\omega' \odot \alpha') + b)

    W is random, fixed and saved with the model; A, A′ and b are trained.

    Args:
        filter_dimension: number F of filter coordinates.
        domain_dimension: number of domain coordinates, 0 for a kernel that is strict for good.
        hidden_size: J.
        features: D, the number of random projections of each space.
        integer_filter: filter coordinates whose projections are rounded to integers (log rotation).
        integer_domain: the same for domain coordinates.

    Example:
        >>> kernel = FourierKernel(filter_dimension=2, domain_dimension=1)
        >>> kernel(torch.zeros(5, 37, 2), torch.zeros(5, 1, 1)).shape
        torch.Size([32, 5, 37])
    """

    filter_projection: Tensor
    domain_projection: Tensor

    def __init__(
        self,
        filter_dimension: int,
        domain_dimension: int,
        hidden_size: int = 32,
        features: int = 16,
        integer_filter: tuple[int, ...] = (),
        integer_domain: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.register_buffer("filter_projection", _projection(features, filter_dimension, integer_filter))
        self.filter_weight = nn.Parameter(torch.randn(hidden_size, 2 * features))
        # Uniform phases: cos of a small argument alone would be a constant plus a quadratic.
        self.bias = nn.Parameter(torch.empty(hidden_size).uniform_(-math.pi, math.pi))
        if domain_dimension:
            self.register_buffer("domain_projection", _projection(features, domain_dimension, integer_domain))
            self.domain_weight = nn.Parameter(torch.randn(hidden_size, 2 * features))
        else:
            self.domain_weight = None

    def forward(self, filter_coordinates: Tensor, domain_coordinates: Tensor) -> Tensor:
        """Hidden values (J, …)."""
        filter_phase = self._filter_phase(filter_coordinates)
        if self.domain_weight is None:
            return torch.cos(filter_phase)
        return torch.cos(filter_phase + self._domain_phase(domain_coordinates))

    def encode_filter(self, filter_coordinates: Tensor) -> Tensor:
        """Cos p and sin p, (2J, …)."""
        phase = self._filter_phase(filter_coordinates)
        return torch.cat([phase.cos(), phase.sin()])

    def encode_domain(self, domain_coordinates: Tensor) -> Tensor:
        """Means of cos q and sin q, (2J, …)."""
        phase = self._domain_phase(domain_coordinates)
        return torch.cat([phase.cos(), phase.sin()]).mean(dim=-1)

    @staticmethod
    def decode(
        filter_encoding: Tensor, domain_encoding: Tensor, parameters: Sequence[Tensor], dimension: int = 0
    ) -> Tensor:
        """cos(p + q) = cos p cos q − sin p sin q, (J, …)."""
        filter_cosine, filter_sine = filter_encoding.chunk(2, dimension)
        domain_cosine, domain_sine = domain_encoding.chunk(2, dimension)
        return torch.addcmul(filter_cosine * domain_cosine, filter_sine, domain_sine, value=-1)

    def domain_variation(self, differences: Tensor) -> Tensor:
        """|A′_j| · 2π‖W Δ‖/√D: a point of the circle moves at most by its angle, and a cosine by its phase."""
        if self.domain_weight is None:
            return differences.new_zeros(self.hidden_size)
        angles = 2 * math.pi * torch.linalg.matrix_norm(self.domain_projection @ differences.mT, ord=2)
        return self.domain_weight.norm(dim=1) * angles / math.sqrt(len(self.domain_projection))

    def _filter_phase(self, coordinates: Tensor) -> Tensor:
        return _linear(self.filter_weight, _fourier_features(coordinates, self.filter_projection), self.bias)

    def _domain_phase(self, coordinates: Tensor) -> Tensor:
        if self.domain_weight is None:
            return coordinates.new_zeros(self.hidden_size, *coordinates.shape[:-1])
        return _linear(self.domain_weight, _fourier_features(coordinates, self.domain_projection))


class SirenKernel(KernelNet):
    """Sine layers on the concatenated coordinates, d → J → J, all trained: the paper's 3-layer SIREN.

    The parameter counts of the paper come from this net (docs/baselines.md).

    Args:
        filter_dimension: number of filter coordinates.
        domain_dimension: number of domain coordinates.
        hidden_size: J, the width of both hidden layers.

    Example:
        >>> sum(p.numel() for p in SirenKernel(2, 0).parameters())  # 2·32 + 32 + 32·32 + 32
        1152
    """

    def __init__(self, filter_dimension: int, domain_dimension: int, hidden_size: int = 32) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        # Phases 2πW(ω ⊙ α) of unit weights, as in the Fourier features, so that ω means the same in both nets.
        self.filter_weight = nn.Parameter(torch.randn(hidden_size, filter_dimension))
        self.bias = nn.Parameter(torch.empty(hidden_size).uniform_(-0.5, 0.5))
        self.domain_weight = nn.Parameter(torch.randn(hidden_size, domain_dimension)) if domain_dimension else None
        self.hidden_weight = nn.Parameter(torch.randn(hidden_size, hidden_size) * math.sqrt(2 / hidden_size))
        self.hidden_bias = nn.Parameter(torch.empty(hidden_size).uniform_(-math.pi, math.pi))

    def forward(self, filter_coordinates: Tensor, domain_coordinates: Tensor) -> Tensor:
        """Hidden values (J, …)."""
        domain_phase = self._domain_phase(domain_coordinates)
        return self.decode(self.encode_filter(filter_coordinates), domain_phase, self.decoder_parameters)

    def encode_filter(self, filter_coordinates: Tensor) -> Tensor:
        """The filter's part of the phase of the first layer, (J, …)."""
        return _linear(self.filter_weight, filter_coordinates, self.bias)

    def encode_domain(self, domain_coordinates: Tensor) -> Tensor:
        """The domain's part of that phase at each of the L points, (L·J, …), which the second layer mixes."""
        return self._domain_phase(domain_coordinates).movedim(-1, 0).flatten(0, 1)

    @staticmethod
    def decode(
        filter_encoding: Tensor, domain_encoding: Tensor, parameters: Sequence[Tensor], dimension: int = 0
    ) -> Tensor:
        """Both sine layers, (J, …)."""
        weight, bias = parameters
        domain = domain_encoding.movedim(dimension, 0).unflatten(0, (-1, len(bias)))
        first = torch.sin(2 * math.pi * (filter_encoding.movedim(dimension, 0) + domain))
        return torch.sin(_linear(weight, first.movedim(1, -1), bias)).mean(dim=1).movedim(0, dimension)

    def domain_variation(self, differences: Tensor) -> Tensor:
        """|W₂_j| · 2π‖W′ Δ‖: a sine moves at most by its phase."""
        if self.domain_weight is None:
            return differences.new_zeros(self.hidden_size)
        phases = 2 * math.pi * torch.linalg.matrix_norm(self.domain_weight @ differences.mT, ord=2)
        return self.hidden_weight.norm(dim=1) * phases

    @property
    def decoder_parameters(self) -> tuple[Tensor, ...]:
        """Weights and bias of the second layer."""
        return self.hidden_weight, self.hidden_bias

    def _domain_phase(self, coordinates: Tensor) -> Tensor:
        if self.domain_weight is None:
            return coordinates.new_zeros(self.hidden_size, *coordinates.shape[:-1])
        return _linear(self.domain_weight, coordinates)


def _projection(features: int, dimension: int, integer: tuple[int, ...]) -> Tensor:
    projection = torch.randn(features, dimension)
    for column in integer:
        projection[:, column] = projection[:, column].round()
    return projection


def _fourier_features(coordinates: Tensor, projection: Tensor) -> Tensor:
    phase = 2 * math.pi * coordinates @ projection.mT
    return torch.cat([phase.cos(), phase.sin()], dim=-1) / math.sqrt(projection.shape[0])


def _linear(weight: Tensor, values: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear map over the last dimension, with the result's channels first: (J, C), (…, C) → (J, …)."""
    result = weight @ values.reshape(-1, values.shape[-1]).mT
    if bias is not None:
        result = result + bias.unsqueeze(-1)
    return result.reshape(weight.shape[0], *values.shape[:-1])
