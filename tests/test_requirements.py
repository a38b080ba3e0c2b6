"""What does not work is refused on import, with what to type."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from escnn_relaxed.on_escnn import versions
from escnn_relaxed.on_escnn.versions import check_torch

ROOT = Path(__file__).parents[1]
# The errors that importing lie_learn was seen to end in, as the text of its module.
BROKEN = {
    "without its compiled parts": "from lie_learn.representations.SO3.irrep_bases import change_of_basis_matrix",
    "compiled for another NumPy": "raise ImportError('numpy.core.multiarray failed to import')",
    "of another size in memory": "raise ValueError('numpy.dtype size changed, may indicate binary incompatibility')",
}


def test_torch_that_is_too_old_is_refused() -> None:
    with pytest.raises(ImportError, match=r'torch 2.6 or newer, .* has 2.2.2\+cu121: pip install "torch>=2.6"'):
        check_torch("2.2.2+cu121")


def test_import_checks_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    with pytest.raises(ImportError, match=r"has 2\.5\.1"):
        importlib.reload(versions)


WITHOUT_LIE_LEARN = """
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "lie_learn":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import escnn_relaxed
escnn_relaxed.RelaxedR2Conv
"""


def said_on_import(code: str, first_on_the_path: Path) -> str:
    path = [str(first_on_the_path), str(ROOT)]
    command = [sys.executable, "-c", f"import sys\nsys.path[:0] = {path}\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_lie_learn_that_does_not_import_is_named_with_what_helps(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "lie_learn" / "representations" / "SO3"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "wigner_d.py").write_text(text)
    said = said_on_import("import escnn_relaxed", tmp_path)
    assert said.startswith("ImportError: escnn needs lie_learn, which does not import here")
    assert said.endswith("Type there: pip install ./compat")


def test_lie_learn_that_is_missing_is_named_where_it_is_needed(tmp_path: Path) -> None:
    said = said_on_import(WITHOUT_LIE_LEARN, tmp_path)
    assert said.startswith("ImportError: RelaxedR2Conv needs escnn and lie_learn")
    assert "README.md says what to type" in said


def test_package_that_is_imported_first_silences_what_escnn_says_of_py3nj() -> None:
    code = "import sys; sys.modules['py3nj'] = None; import escnn_relaxed; from escnn import gspaces, nn"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "py3nj" not in found.stderr


def test_package_names_its_authors_and_a_home_page() -> None:
    command = [sys.executable, "setup.py", "-q", "--author", "--url"]
    pytest.importorskip("setuptools")
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert found.split("\n")[:2] == ["The escnn_relaxed authors", "https://arxiv.org/abs/2204.07178"]
