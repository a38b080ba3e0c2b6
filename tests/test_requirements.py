"""What does not work is refused on import, with what to type; what is required is pinned, as setup.py allows."""

import importlib
import subprocess
import sys
from pathlib import Path

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
