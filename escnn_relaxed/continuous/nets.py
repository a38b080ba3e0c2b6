"""Kernel nets: coordinates → hidden values φ of the continuous kernel κ. They know no groups.

κ is linear in φ, and the output weights belong to the pair of field types that they serve
(:mod:`escnn_relaxed.kernel.filter_bank`). A kernel net gives J hidden values at each pair of a filter point and a
domain point. Coordinates are already scaled by their frequencies, ω ⊙ α and ω′ ⊙ α.

Shapes: coordinates have their dimension last; hidden values have J first. Filter and domain coordinates have
the same number of leading dimensions, which broadcast against each other.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..group.exact_constants import ExactConstants
from .domain_means import DomainMeans

__all__ = ["FourierKernel", "KernelNet", "SirenKernel"]


class KernelNet(ExactConstants, ABC):
    """The base of the kernel nets. A new net is a subclass and nothing else.

    A layer builds its net as ``net(filter_dimension, domain_dimension, hidden_size)`` and calls it with coordinates
    that are scaled by their frequencies.

    Attributes:
        domain_weight: the weights through which the domain coordinates enter. With ``strict_kernel="continuous"`` the
            start scales them until the kernel is as soft as wanted. None leaves the net as it is drawn.
        state_name: the name of the net in a state dict; the name of the class where it is empty.

    Example:
        >>> from escnn import gspaces
        >>> from escnn.nn import FieldType
        >>> from escnn_relaxed import ContinuousKernel, RelaxedR2Conv
        >>> class LinearKernel(KernelNet):
        ...     def __init__(
        ...         self, filter_dimension: int, domain_dimension: int, hidden_size: int
        ...     ) -> None:
        ...         super().__init__()
        ...         self.filter_layer = nn.Linear(filter_dimension, hidden_size)
        ...         self.domain_layer = nn.Linear(domain_dimension, hidden_size)
        ...
        ...     def forward(self, filter_coordinates: Tensor, domain_coordinates: Tensor) -> Tensor:
        ...         hidden = self.filter_layer(filter_coordinates) * self.domain_layer(
        ...             domain_coordinates
        ...         )
        ...         return hidden.movedim(-1, 0)
        >>> fields = FieldType(gspaces.rot2dOnR2(4), [gspaces.rot2dOnR2(4).regular_repr])
        >>> layer = RelaxedR2Conv(fields, fields, 3, kernel=ContinuousKernel(net=LinearKernel))
        >>> round(layer.softness().item(), 4)
        0.001
    """

    domain_weight: nn.Parameter | None
    state_name: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("domain_weight", None)

    @abstractmethod
    def forward(self, filter_coordinates: Tensor, domain_coordinates: Tensor) -> Tensor:
        """Return hidden values (J, …) at coordinates (…, F) and (…, D)."""

    def make_periodic(self, filter_columns: Sequence[int], domain_columns: Sequence[int]) -> None:
        """Give the newly drawn net period 1 in some coordinates, angles over 2π. A net may leave this out."""

    def filter_features(self, coordinates: Tensor) -> Tensor:
        """Return features of filter coordinates that need no parameters and are kept; by default the coordinates."""
        return coordinates

    def domain_features(self, coordinates: Tensor) -> Tensor:
        """Return features of domain coordinates that need no parameters and are kept where ω′ is not learned."""
        return coordinates

    def domain_mean(self, filter_features: Tensor, domain_features: Tensor, means: DomainMeans) -> Tensor:
        """Return means of the hidden values over domain points.

        A net overrides this method where it needs less work than a hidden value for every pair of points.

        Args:
            filter_features: the features of N filter points for each of M elements, (M, N, F).
            domain_features: the features of all domain points, one set after the other, (points, D).
            means: the means to take.

        Returns:
            (J, M, P, N).
        """
        parts = []
        for points in means.split(domain_features, 0):
            hidden: Tensor = self(filter_features[:, None, :, None], points[:, :, None])
            parts.append(hidden.mean(dim=-1))
        return functools.reduce(torch.sub, parts)


class FourierKernel(KernelNet):
    r"""Random Fourier features and one hidden layer of cosines (paper, "Weight-space implementation").

    .. math::
        \gamma(\alpha) = D^{-1/2} [\cos 2\pi W\alpha;\ \sin 2\pi W\alpha], \qquad
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
    filter_projection: Tensor
    domain_projection: Tensor
    filter_shift: Tensor
    domain_shift: Tensor

    def __init__(
        self,
        filter_dimension: int,
        domain_dimension: int,
        hidden_size: int = 32,
        features: int = 16,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        # cos p cos q − sin p sin q as a sum of products of sines.
        self.set_constant("filter_shift", np.array([[math.pi / 2], [0]]))
        self.set_constant("domain_shift", np.array([math.pi / 2, math.pi]))
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
        """Hidden values (J, …)."""
        phase = _linear(self.filter_weight, self.filter_features(filter_coordinates), self.bias)
        if self.domain_weight is not None:
            phase = phase + _linear(self.domain_weight, self.domain_features(domain_coordinates))
        return torch.cos(phase)

    def filter_features(self, coordinates: Tensor) -> Tensor:
        """γ(α), (…, 2D)."""
        return self._fourier_features(coordinates, self.filter_projection)

    def domain_features(self, coordinates: Tensor) -> Tensor:
        """γ′(α′), (…, 2D)."""
        if self.domain_weight is None:
            return coordinates
        return self._fourier_features(coordinates, self.domain_projection)

    def _fourier_features(self, coordinates: Tensor, projection: Tensor) -> Tensor:
        phase = coordinates @ (2 * math.pi * projection.mT)
        # (…, 2, D): cos and sin.
        return (phase.unsqueeze(-2) + self.filter_shift).sin().flatten(-2) / math.sqrt(len(projection))

    def domain_mean(self, filter_features: Tensor, domain_features: Tensor, means: DomainMeans) -> Tensor:
        """Return means (J, M, P, N) by cos(p + q) = cos p cos q − sin p sin q and the means of cos q and sin q."""
        elements, count = filter_features.shape[:2]
        phase = _linear(self.filter_weight, filter_features, self.bias)
        if self.domain_weight is None:
            return phase.cos().unsqueeze(2)
        if means.is_of_single_points:
            # p + q, with cosines as sines.
            of_domain = _linear(self.domain_weight, domain_features, self.domain_shift[:1])
            return (phase + of_domain.unsqueeze(-1)).sin().unsqueeze(2)
        of_filter = (phase.view(-1, elements, 1, count) + self.filter_shift).sin()
        waves = (_linear(self.domain_weight, domain_features).unsqueeze(-1) + self.domain_shift).sin()
        # A product of (P, 2) and (2, N) for each hidden value and element.
        return means(waves).expand(-1, elements, -1, -1) @ of_filter


class SirenKernel(KernelNet):
    """Sine layers on the concatenated coordinates, d → J → J, all trained: the paper's 3-layer SIREN.

    The parameter counts of the paper come from this net (docs/concepts/ways-to-relax.md).

    Args:
        filter_dimension: number of filter coordinates.
        domain_dimension: number of domain coordinates.
        hidden_size: J, the width of both hidden layers.

    Example:
        >>> sum(p.numel() for p in SirenKernel(2, 0).parameters())  # 2·32 + 32 + 32·32 + 32
        1152
    """

    state_name = "siren"

    def __init__(self, filter_dimension: int, domain_dimension: int, hidden_size: int = 32) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        # Phases 2πW(ω ⊙ α) of unit weights, as in the Fourier features, so that ω means the same in both nets.
        self.filter_weight = nn.Parameter(torch.randn(hidden_size, filter_dimension))
        self.bias = nn.Parameter(torch.empty(hidden_size).uniform_(-0.5, 0.5))
        if domain_dimension:
            self.domain_weight = nn.Parameter(torch.randn(hidden_size, domain_dimension))
        self.hidden_weight = nn.Parameter(torch.randn(hidden_size, hidden_size) * math.sqrt(2 / hidden_size))
        self.hidden_bias = nn.Parameter(torch.empty(hidden_size).uniform_(-math.pi, math.pi))

    def forward(self, filter_coordinates: Tensor, domain_coordinates: Tensor) -> Tensor:
        """Hidden values (J, …)."""
        first = self._filter_phase(filter_coordinates) + self._domain_phase(domain_coordinates)
        return torch.sin(_linear(self.hidden_weight, torch.sin(2 * math.pi * first).movedim(0, -1), self.hidden_bias))

    def _filter_phase(self, coordinates: Tensor) -> Tensor:
        """The filter's part of the phase of the first layer, (J, …)."""
        return _linear(self.filter_weight, coordinates, self.bias)

    def _domain_phase(self, coordinates: Tensor) -> Tensor:
        if self.domain_weight is None:
            return coordinates.new_zeros(self.hidden_size, *coordinates.shape[:-1])
        return _linear(self.domain_weight, coordinates)


def _linear(weight: Tensor, values: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a linear map over the last dimension, with the channels first: (J, C), (…, C) → (J, …)."""
    columns = values.reshape(-1, values.shape[-1]).mT
    result = weight @ columns if bias is None else torch.addmm(bias.unsqueeze(-1), weight, columns)
    return result.reshape(weight.shape[0], *values.shape[:-1])
