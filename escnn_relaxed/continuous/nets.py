"""Kernel nets: coordinates → hidden values φ of the continuous kernel κ. They know no groups.

A kernel net gives J hidden values at each pair of a filter point and a domain point, whose coordinates are scaled by
their frequencies, ω ⊙ α and ω′ ⊙ a. Coordinates have their dimension last, hidden values have J first. Filter and
domain coordinates have the same number of leading dimensions, which broadcast against each other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn


class KernelNet(nn.Module, ABC):
    """Base of the kernel nets; subclass it for a new net.

    A layer builds its net as ``net(filter_dimension, domain_dimension, hidden_size)`` and calls it with coordinates
    that are scaled by their frequencies. The domain dimension is 0 where nothing may be soft.

    Attributes:
        domain_weight: the weights through which the domain coordinates enter. The start scales them until the kernel is
            as soft as wanted. None leaves the net as it is drawn.
        state_name: the name of the net in a state dict; the name of the class where it is empty.
        has_weights_by_coordinate: whether ``domain_weight`` is (J, domain coordinates); with a column of zeros the net
            does not see that coordinate. Other nets see no coordinate where all weights are 0.
        can_be_periodic: whether :meth:`make_periodic` makes the net smooth on the circle.

    Example:
        >>> from escnn import gspaces
        >>> from escnn.nn import FieldType
        >>> from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
        >>> class BilinearKernel(KernelNet):
        ...     def __init__(
        ...         self, filter_dimension: int, domain_dimension: int, hidden_size: int
        ...     ) -> None:
        ...         super().__init__()
        ...         self.filter_weight = nn.Parameter(torch.randn(filter_dimension, hidden_size))
        ...         self.domain_weight = nn.Parameter(torch.randn(domain_dimension, hidden_size))
        ...
        ...     def forward(self, filter_coordinates: Tensor, domain_coordinates: Tensor) -> Tensor:
        ...         of_domain = 1 + domain_coordinates @ self.domain_weight
        ...         hidden = (filter_coordinates @ self.filter_weight) * of_domain
        ...         return hidden.movedim(-1, 0)
        >>> generator = torch.manual_seed(0)
        >>> fields = FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
        >>> layer = RelaxedR2Conv(fields, fields, 3, kernel=ContinuousKernel(net=BilinearKernel))
        >>> 0.001 < layer.softness().item() < 0.1
        True
    """

    domain_weight: nn.Parameter | None
    state_name: ClassVar[str] = ""
    has_weights_by_coordinate: ClassVar[bool] = False
    can_be_periodic: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("domain_weight", None)

    @abstractmethod
    def forward(self, filter_coordinates: Tensor, domain_coordinates: Tensor) -> Tensor:
        """Return hidden values (J, …) at coordinates (…, F) and (…, D)."""

    def make_periodic(self, filter_columns: Sequence[int], domain_columns: Sequence[int]) -> None:
        """Give the newly drawn net period 1 in some coordinates, angles over 2π. A net may leave this out."""

    def domain_mean(self, filter_coordinates: Tensor, domain_coordinates: Tensor) -> Tensor:
        """Return means of the hidden values over L domain points.

        A net overrides this method where it needs less work than a hidden value for every pair of points.

        Args:
            filter_coordinates: N points for each of M elements, (M, N, F).
            domain_coordinates: L points for each element and each of P positions, (M, P, L, D), or (1, P, L, D) where
                they are the same for all elements.

        Returns:
            (J, M, P, N).
        """
        hidden: Tensor = self(filter_coordinates[:, None, :, None], domain_coordinates[:, :, None])
        return hidden.mean(dim=-1)


class FourierKernel(KernelNet):
    r"""Random Fourier features and one hidden layer of cosines (paper, "Weight-space implementation").

    .. math::
        \gamma(\alpha) = D^{-1/2} [\cos 2\pi W\alpha;\ \sin 2\pi W\alpha], \quad
        \varphi = \cos(A\,\gamma(\omega \odot \alpha) + A'\gamma'(\omega' \odot \alpha') + b)

    W is random, fixed and saved with the model; A, A′ and b are trained.

    Args:
        filter_dimension: number F of filter coordinates.
        domain_dimension: number of domain coordinates, 0 for a kernel that is always strict.
        hidden_size: J.
        features: D, the number of random projections of each space.

    Example:
        >>> kernel = FourierKernel(filter_dimension=2, domain_dimension=1)
        >>> kernel(torch.zeros(5, 37, 2), torch.zeros(5, 1, 1)).shape
        torch.Size([32, 5, 37])
    """

    state_name = "fourier"
    can_be_periodic = True
    filter_projection: Tensor
    domain_projection: Tensor

    def __init__(self, filter_dimension: int, domain_dimension: int, hidden_size: int = 32, features: int = 16) -> None:
        super().__init__()
        self.register_buffer("filter_projection", torch.randn(features, filter_dimension))
        self.filter_weight = nn.Parameter(torch.randn(hidden_size, 2 * features))
        # Phases are uniform: the cosine of small arguments alone would be a constant plus a quadratic.
        self.bias = nn.Parameter(torch.empty(hidden_size).uniform_(-math.pi, math.pi))
        if domain_dimension:
            self.register_buffer("domain_projection", torch.randn(features, domain_dimension))
            self.domain_weight = nn.Parameter(torch.randn(hidden_size, 2 * features))

    def make_periodic(self, filter_columns: Sequence[int], domain_columns: Sequence[int]) -> None:
        """Round projections to integers: smooth on the circle at integer frequencies (paper, section 5)."""
        self.filter_projection[:, filter_columns] = self.filter_projection[:, filter_columns].round()
        if domain_columns:
            self.domain_projection[:, domain_columns] = self.domain_projection[:, domain_columns].round()

    def forward(self, filter_coordinates: Tensor, domain_coordinates: Tensor) -> Tensor:
        """Return hidden values (J, …)."""
        phase = self._filter_phase(filter_coordinates)
        if self.domain_weight is not None:
            phase = phase + self._domain_phase(self.domain_weight, domain_coordinates)
        return phase.cos()

    def domain_mean(self, filter_coordinates: Tensor, domain_coordinates: Tensor) -> Tensor:
        """Return means (J, M, P, N) by cos(p + q) = cos p cos q − sin p sin q and the means of cos q and sin q."""
        phase = self._filter_phase(filter_coordinates)
        if self.domain_weight is None:
            return phase.cos().unsqueeze(2)
        of_domain = self._domain_phase(self.domain_weight, domain_coordinates)
        if domain_coordinates.shape[1:3] == (1, 1):
            return (phase.unsqueeze(2) + of_domain).cos()
        waves = torch.stack([of_domain.cos(), -of_domain.sin()], dim=-1).mean(dim=3)
        # A product of (P, 2) and (2, N) for each hidden value and element.
        return waves @ torch.stack([phase.cos(), phase.sin()], dim=2)

    def _filter_phase(self, coordinates: Tensor) -> Tensor:
        """Return A γ(α) + b, (J, …)."""
        return _linear(self.filter_weight, _fourier_features(coordinates, self.filter_projection), self.bias)

    def _domain_phase(self, weight: Tensor, coordinates: Tensor) -> Tensor:
        """Return A′ γ′(α′), (J, …)."""
        return _linear(weight, _fourier_features(coordinates, self.domain_projection))


class SirenKernel(KernelNet):
    """Sine layers on the concatenated coordinates, d → J → J, all trained: the paper's 3-layer SIREN.

    In log coordinates of rotations it jumps at half a turn, since its weights are no whole numbers. The parameter
    counts of the paper come from this net.

    Args:
        filter_dimension: number of filter coordinates.
        domain_dimension: number of domain coordinates.
        hidden_size: J, the width of both hidden layers.

    Example:
        >>> sum(p.numel() for p in SirenKernel(2, 0).parameters())  # 2·32 + 32 + 32·32 + 32
        1152
    """

    state_name = "siren"
    has_weights_by_coordinate = True

    def __init__(self, filter_dimension: int, domain_dimension: int, hidden_size: int = 32) -> None:
        super().__init__()
        # Phases 2πW(ω ⊙ α) of unit weights, as in the Fourier features, so that ω means the same in both nets.
        self.filter_weight = nn.Parameter(torch.randn(hidden_size, filter_dimension))
        self.bias = nn.Parameter(torch.empty(hidden_size).uniform_(-0.5, 0.5))
        if domain_dimension:
            self.domain_weight = nn.Parameter(torch.randn(hidden_size, domain_dimension))
        self.hidden_weight = nn.Parameter(torch.randn(hidden_size, hidden_size) * math.sqrt(2 / hidden_size))
        self.hidden_bias = nn.Parameter(torch.empty(hidden_size).uniform_(-math.pi, math.pi))

    def forward(self, filter_coordinates: Tensor, domain_coordinates: Tensor) -> Tensor:
        """Return hidden values (J, …)."""
        first = self._filter_phase(filter_coordinates)
        if self.domain_weight is not None:
            first = first + _linear(self.domain_weight, domain_coordinates)
        return torch.sin(_linear(self.hidden_weight, torch.sin(2 * math.pi * first).movedim(0, -1), self.hidden_bias))

    def _filter_phase(self, coordinates: Tensor) -> Tensor:
        """Return the filter's part of the phase of the first layer, (J, …)."""
        return _linear(self.filter_weight, coordinates, self.bias)


def _fourier_features(coordinates: Tensor, projection: Tensor) -> Tensor:
    """Return γ of coordinates (…, C) by a projection (D, C), (…, 2D)."""
    phase = coordinates @ (2 * math.pi * projection.mT)
    return torch.cat([phase.cos(), phase.sin()], dim=-1) / math.sqrt(len(projection))


def _linear(weight: Tensor, values: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a linear map over the last dimension, with the channels first: (J, C), (…, C) → (J, …)."""
    columns = values.reshape(-1, values.shape[-1]).mT
    result = weight @ columns if bias is None else torch.addmm(bias.unsqueeze(-1), weight, columns)
    return result.reshape(weight.shape[0], *values.shape[:-1])
