"""What does not work is refused on import, with what to type; compat/ stands in for lie_learn."""

import importlib
import importlib.metadata
import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from escnn_relaxed.on_escnn import versions
from escnn_relaxed.on_escnn.versions import check_torch

ROOT = Path(__file__).parents[1]


def test_torch_that_is_too_old_is_refused_on_import(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match=r'torch 2.6 or newer, .* has 2.2.2\+cu121: pip install "torch>=2.6"'):
        check_torch("2.2.2+cu121")
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    with pytest.raises(ImportError, match=r"has 2\.5\.1"):
        importlib.reload(versions)


def said_on_import(code: str, first_on_the_path: Path) -> str:
    path = [str(first_on_the_path), str(ROOT)]
    command = [sys.executable, "-c", f"import sys\nsys.path[:0] = {path}\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip()


WITHOUT_LIE_LEARN = """
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "lie_learn":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import escnn_relaxed
escnn_relaxed.RelaxedR2Conv
"""


def test_lie_learn_that_does_not_import_or_is_missing_is_named_with_what_helps(tmp_path: Path) -> None:
    """Without its compiled parts, compiled for another NumPy; or not there at all."""
    folder = tmp_path / "lie_learn" / "representations" / "SO3"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    for text in (
        "from lie_learn.representations.SO3.irrep_bases import change_of_basis_matrix",
        "raise ValueError('numpy.dtype size changed, may indicate binary incompatibility')",
    ):
        (folder / "wigner_d.py").write_text(text)
        said = said_on_import("import escnn_relaxed", tmp_path).splitlines()[-1]
        assert said.startswith("ImportError: escnn needs lie_learn, which does not import here")
        assert said.endswith("Type there: pip install ./compat")
    said = said_on_import(WITHOUT_LIE_LEARN, tmp_path / "lie_learn").splitlines()[-1]
    assert said.startswith("ImportError: RelaxedR2Conv needs escnn and lie_learn")
    assert "README.md says what to type" in said


def test_package_that_is_imported_first_silences_what_escnn_says_of_py3nj(tmp_path: Path) -> None:
    code = "sys.modules['py3nj'] = None; import escnn_relaxed; from escnn import gspaces, nn"
    assert not said_on_import(code, tmp_path)


FILE = ROOT / "compat" / "lie_learn" / "representations" / "SO3" / "wigner_d.py"
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
