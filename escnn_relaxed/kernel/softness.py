"""How soft any kernel is, by its values: energies, their ratio, and the scale of the soft weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import torch
from escnn.group import GroupElement
from torch import Tensor

from ..checks import SUBGROUPS
from ..group.elements import grid_symmetries
from ..group.linear_maps import GroupAverage
from ..group.points import tap_grid
from .config import Names

if TYPE_CHECKING:
    from .kernel import Kernel

# Steps in which a softness is met, and the change of the soft weights that ends them.
_MOST_STEPS, _CLOSE = 20, 1e-7
# A softness that is met to this part of itself is met.
_FAR = 1e-2
_HALF = frozenset({torch.float16, torch.bfloat16})
# Values of filter banks, and of what they are made of, that are made at a time.
_MOST_VALUES = 2**23
# Below this many units in the last place √s is rounding. In bfloat16 that alone would be a percent of the energy.
_ROUNDING = 16
_MOST_ROUNDING = 5e-3


def energies_at_pixels(
    kernel: Kernel, weights: Tensor | None, hardened: Names, averaged: Names, size: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Return ‖K − PK‖² and ‖PK‖² of a kernel that depends on the position, in chunks of pixels."""
    count, energy = math.prod(size), kernel.orthogonal_basis.energy
    chunk = max(1, _MOST_VALUES // kernel.values_at_a_pixel())
    soft = strict = kernel.orthogonal_basis.like.new_zeros(())
    mean = None if kernel.varies(averaged) else kernel(weights, averaged).unsqueeze(0)
    for start in range(0, count, chunk):
        end = min(start + chunk, count)
        bank = kernel.at_pixels(weights, size, hardened, start, end)
        projected = kernel.at_pixels(weights, size, averaged, start, end) if mean is None else mean
        # The position last, as another axis of the taps.
        soft = soft + energy((bank - projected).movedim(0, -1))
        strict = strict + energy(projected.movedim(0, -1)) * (len(bank) if len(projected) == 1 else 1)
    return soft / count, strict / count


def energies_of_moves(
    kernel: Kernel, weights: Tensor | None, hardened: Names, elements: Sequence[GroupElement]
) -> tuple[Tensor, Tensor]:
    """Return ‖hK − K‖² for each element h, and ‖K‖², of any kernel: by its taps as h moves them."""
    config, space = kernel.config, kernel.config.in_type.gspace
    size, is_stationary = config.domain.reference_size, not kernel.varies(hardened)
    if is_stationary:
        banks = kernel(weights, hardened).unsqueeze(0)
    else:
        banks = kernel.at_pixels(weights, size, hardened, 0, math.prod(size))
    peak = banks.detach().abs().amax()
    banks = banks / torch.where(peak > 0, peak, 1)
    taps = tap_grid(config.kernel_size, config.dilation, space.dimensionality)
    pixels = tap_grid(1 if is_stationary else size[0], dimension=space.dimensionality)

    def energy(kernels: Tensor) -> Tensor:
        # The position last, as another axis of the taps.
        return kernel.orthogonal_basis.energy(kernels.movedim(0, -1)) / len(kernels)

    found = []
    for element in elements:
        symmetry, places = (grid_symmetries(space, points, [element]) for points in (taps, pixels))
        if symmetry:
            fields = config.in_type.representations, config.out_type.representations
            moved = GroupAverage(*fields, symmetry).to(banks)(banks[places[0][1]])
            found.append(energy(moved - banks))
        else:
            found.append(banks.new_full((), math.nan))
    return torch.stack(found), energy(banks)


def soft_share(soft: Tensor, strict: Tensor) -> Tensor:
    """Return ‖K − PK‖² / (‖PK‖² + ‖K − PK‖²) from both energies; 0 where the first is rounding, NaN of NaN."""
    # ‖K‖² where the group maps the pixel grid to itself. Elsewhere K − PK and PK are only nearly orthogonal, and this
    # form keeps the result in [0, 1].
    total = soft + strict
    # Equal kernels differ by rounding alone. There the gradient of √s would point in a random direction.
    rounding = min(_ROUNDING * torch.finfo(total.dtype).eps, _MOST_ROUNDING)
    is_rounding = soft <= rounding**2 * total
    return torch.where(is_rounding, 0, soft / torch.where(is_rounding, 1, total))


def at_least_single(kernel: Kernel, weights: Tensor | None) -> tuple[Kernel, Tensor | None]:
    """Return a kernel and its weights, or of half precision, where K and PK would be equal, a float32 copy of both."""
    tensors = [] if weights is None else [weights]
    for part in kernel.modules():
        for value in (*part._parameters.values(), *part._buffers.values(), *vars(part).values()):
            if isinstance(value, Tensor):
                tensors.append(value)
    if _HALF.isdisjoint(map(attrgetter("dtype"), tensors)):
        return kernel, weights
    # The copy holds tensors that gradients flow through.
    singles = {id(value): value.float() if value.is_floating_point() else value for value in tensors}
    return copy.deepcopy(kernel, dict(singles)), None if weights is None else singles[id(weights)]


@torch.no_grad()
def scale_to(kernel: Kernel, weights: Tensor | None, softness: float, hardened: Names = ()) -> None:
    """Scale the soft weights of a kernel until the softness is s; nothing where it has no soft part."""
    # Where K has factors of group elements and of positions, s is no quadratic function of the weights.
    for _ in range(_MOST_STEPS):
        soft, strict = (float(energy) for energy in kernel.energies(weights, hardened, SUBGROUPS))
        if soft <= 0:
            return
        factor = math.sqrt(softness / (1 - softness) * strict / soft)
        kernel.scale_soft_part(factor)
        if abs(factor - 1) < _CLOSE:
            return
    reached = soft / (soft + strict)
    if abs(reached - softness) > _FAR * softness:
        raise ValueError(f"softness {softness:.3g} cannot be reached by these weights, which come to {reached:.3g}")
