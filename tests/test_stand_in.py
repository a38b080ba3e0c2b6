"""compat/ stands in for lie_learn: the same matrices."""

import importlib.metadata
import importlib.util
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FILE = Path(__file__).parents[1] / "compat" / "lie_learn" / "representations" / "SO3" / "wigner_d.py"
# Entries are at most 1, sums of products that are at most 1 together, of constants rounded once on either side.
ROUNDING = 2 * np.finfo(np.float64).eps
# Products of five matrices, each of whose rows adds up some dozen rounded terms.
ROUNDING_OF_PRODUCTS = 16 * np.finfo(np.float64).eps


@pytest.fixture(scope="module")
def stand_in() -> ModuleType:
    """The file itself, whichever lie_learn is installed."""
    spec = importlib.util.spec_from_file_location("stand_in", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def angles(count: int) -> np.ndarray:
    """Drawn ones, and the quarter turns, at which cosines and sines vanish."""
    drawn = np.random.default_rng(0).uniform(-math.pi, math.pi, (count, 3))
    quarters = [(0, 0, 0), (0, 1, 0), (1, 1, 1), (0, 2, 0), (2, 1, -1), (-1, 2, 1)]
    return np.concatenate([drawn, np.array(quarters) * math.pi / 2])


@pytest.mark.skipif(
    "standin" in importlib.metadata.version("lie_learn"), reason="lie_learn itself has no build for this environment"
)
@pytest.mark.parametrize("degree", [0, 1, 2, 3, 5, 10, 20, 40])
def test_matrices_are_those_of_lie_learn(degree: int, stand_in: ModuleType) -> None:
    from lie_learn.representations.SO3.wigner_d import wigner_D_matrix

    for turns in angles(8):
        expected = wigner_D_matrix(degree, *turns, field="real")
        assert np.abs(stand_in.wigner_D_matrix(degree, *turns) - expected).max() <= ROUNDING


@pytest.mark.parametrize("degree", [0, 1, 5, 20])
def test_matrices_are_orthogonal_and_multiply_as_rotations_do(degree: int, stand_in: ModuleType) -> None:
    matrix = stand_in.wigner_D_matrix
    identity = np.eye(2 * degree + 1)
    for alpha, beta, gamma in angles(4):
        found = matrix(degree, alpha, beta, gamma)
        assert np.abs(found @ found.T - identity).max() <= ROUNDING_OF_PRODUCTS
        # Rz(α) Ry(β) Rz(γ) · Rz(−γ) Ry(β) Rz(γ) = Rz(α) Ry(2β) Rz(γ)
        product = found @ matrix(degree, -gamma, beta, gamma)
        assert np.abs(product - matrix(degree, alpha, 2 * beta, gamma)).max() <= ROUNDING_OF_PRODUCTS
