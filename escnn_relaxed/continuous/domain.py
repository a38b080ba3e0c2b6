"""The sampled group as κ sees it: circle or log coordinates of rotations, and samples that are turned by an angle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..group.domain import Domain
from ..group.elements import moved_elements, principal_angle, principal_value
from ..group.points import Array


class ContinuousDomain(Domain):
    """A domain whose rotations have circle coordinates, (cos θ, sin θ), or log coordinates, the paper's angle over 2π.

    In log coordinates a wave turns ω′ times in a turn, so ω′ up to N/2 is resolved by N samples. In circle coordinates
    exp(2πi ω′ w·(cos θ, sin θ)) has harmonics up to about 2π ω′ |w| (Jacobi–Anger), |w| of order one: up to N/4π.
    """

    def __init__(self, domain: Domain, rotation_coordinates: str) -> None:
        super().__init__(domain.gspace, domain.samples, domain.kept)
        self.is_log = rotation_coordinates == "log"
        if self.is_log and self.dimension > 2:
            raise ValueError(
                f"kernel: a rotation of space has no angle that a kernel could see as a coordinate: "
                f"rotation_coordinates must be 'circle', got {rotation_coordinates!r}"
            )

    @property
    def resolved_frequency(self) -> float:
        """The largest ω′ of rotation that the samples resolve."""
        return self.rotations_in_a_turn / (2 if self.is_log else 4 * np.pi)

    def turned_coordinates(self, coordinates: Array, reflected: NDArray[np.int64], angle: float) -> Array:
        """Return the coordinates of the rotations of g r of the plane, given those of g (…, D), whether g reflects."""
        # r f r_θ = r r_(−θ) f.
        angles = self.fold * angle * np.where(reflected == 1, -1.0, 1.0)
        if self.is_log:
            return principal_value(2 * np.pi * coordinates + angles[..., None]) / (2 * np.pi)
        cosine, sine = np.cos(angles), np.sin(angles)
        x, y = coordinates[..., 0], coordinates[..., 1]
        return np.stack([cosine * x - sine * y, sine * x + cosine * y], axis=-1)

    def relative_coordinates(self, subgroups: Sequence[str]) -> list[Array]:
        """Return the coordinates of g′⁻¹g of a finite group by subgroup, entry [g′, g], each (M, M, …)."""
        coordinates = self.coordinates(self.sample.rotation, self.sample.reflected)
        numbers = [moved_elements(self.sample, action) for action in self.sample.action] if subgroups else []
        return [coordinates[name][np.array(numbers)] for name in subgroups]

    def _of_rotation(self, rotation: Array) -> Array:
        """Return the coordinates of rotations, principal angles over 2π where they are logarithms."""
        if self.is_log:
            return principal_angle(rotation)[..., None] / (2 * np.pi)
        return super()._of_rotation(rotation)
