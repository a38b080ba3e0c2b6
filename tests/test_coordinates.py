"""The points at which κ is evaluated, against escnn's elements: steered taps, elements and positions of the domain."""

import numpy as np
import pytest
import small
import torch
from errors import BROKEN, FEW_TERMS, ROUNDING, relative_error
from escnn import gspaces

from escnn_relaxed import ContinuousKernel, RelaxedR3Conv
from escnn_relaxed.continuous.coordinates import DomainPoints, FilterPoints
from escnn_relaxed.continuous.domain import ContinuousDomain
from escnn_relaxed.group.domain import Domain
from escnn_relaxed.group.kept import kept_group
from escnn_relaxed.kernel.config import KernelConfig

SAMPLES = 4


def domain_of(space: str, keep: str | None = None, form: str = "circle") -> ContinuousDomain:
    gspace = small.gspace(space)
    return ContinuousDomain(Domain(gspace, SAMPLES, kept_group(keep, gspace, SAMPLES)), form)


@torch.no_grad()
def test_positions_of_volumes_have_three_coordinates() -> None:
    """Half turns map the voxels of the reference volume to each other, so the mean is that over its voxels."""
    gspace = gspaces.rot2dOnR3(2)
    types = gspace.type(gspace.trivial_repr), gspace.type(gspace.regular_repr)
    relax = {"translation": (0.2, 0.3, 0.4), "rotation": 0.1}
    layer = RelaxedR3Conv(*types, 3, relax=relax, initial_softness=0.3, kernel=ContinuousKernel(hidden_size=3)).double()
    assert layer.kernel.domain_points.columns == ["translation"] * 3 + ["rotation"] * 9
    banks = layer.filter_banks((8, 8, 8))
    mean = layer.kernel(layer.weights, ("translation",))
    assert relative_error(banks.flatten(0, 2).flatten(3).mean(0), mean) <= ROUNDING
    assert all((banks - banks.flip(axis)).abs().max() > BROKEN * banks.abs().max() for axis in range(3))


@pytest.mark.parametrize(("space", "count"), [("trivial", 1), ("C4", 1), ("D4", 1), ("C3", 3), ("C8", 2), ("D8", 2)])
def test_positions_of_the_mean_are_the_pixels_once_for_each_set(space: str, count: int) -> None:
    """Quarter turns map the pixels to themselves, eighths of a turn to others."""
    found = DomainPoints(domain_of(space), ("translation",)).double().exact.everywhere.squeeze((0, 1))
    steps, gspace = (np.arange(8) - 3.5) / 4, small.gspace(space)
    pixels = np.array([(x, y) for y in steps for x in steps])  # of the reference image
    actions = [np.array(gspace.basespace_action(element)) for element in gspace.fibergroup.elements]
    assert found.shape == (64 * count, 2)
    seen = np.concatenate([pixels @ action for action in actions])
    assert np.abs(found.numpy()[:, None] - seen).max(-1).min(1).max() <= FEW_TERMS


def filter_points(space: str, sees_relative: bool, kernel_size: int = 3, support: str = "smooth") -> FilterPoints:
    fields = small.field_type(space, "trivial")
    domain = domain_of(space)
    config = KernelConfig(fields, fields, kernel_size, 2, domain)
    frequency = {"position": 0.5, "rotation": 0.3, "reflection": 0.7}
    return FilterPoints(config, domain, frequency, sees_relative, support).double()


def taps_of(kernel_size: int) -> np.ndarray:
    line = np.arange(kernel_size) - (kernel_size - 1) / 2
    return np.array([(x, -y) for y in line for x in line])


@pytest.mark.parametrize("kernel_size", [1, 2, 3, 4, 7])
def test_window_is_a_disk(kernel_size: int) -> None:
    distance = np.linalg.norm(taps_of(kernel_size), axis=-1)
    smooth, disk = (filter_points("C4", False, kernel_size, of).window.numpy() for of in ("smooth", "disk"))
    fall = np.clip(distance - (kernel_size / 2 - 1), 0, 1)
    assert smooth == pytest.approx(np.cos(np.pi / 2 * fall) ** 2, abs=FEW_TERMS)
    reach = (kernel_size - 1) / 2 if kernel_size % 2 else kernel_size / 2
    assert disk.tolist() == (distance <= reach + FEW_TERMS).tolist()
