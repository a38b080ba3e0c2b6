"""What does not work is refused on import, with what to type; what is required is pinned, as setup.py allows."""

import importlib
import json
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


# Escnn and the package are imported anew in each situation; torch, which takes longest, once.
IN_TURN = """
import contextlib, io, json, sys, traceback
said = {}
for situation, (folder, code) in json.load(sys.stdin).items():
    for name in list(sys.modules):
        if name.partition(".")[0] in ("escnn", "escnn_relaxed", "lie_learn"):
            del sys.modules[name]
    sys.path.insert(0, folder)
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            exec(code, {})
        except ImportError:
            traceback.print_exc()
    sys.path.remove(folder)
    said[situation] = errors.getvalue().strip()
json.dump(said, sys.stdout)
"""
WITHOUT_LIE_LEARN = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "lie_learn":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import escnn_relaxed
escnn_relaxed.RelaxedR2Conv
"""
WITHOUT_PY3NJ = "import sys; sys.modules['py3nj'] = None; import escnn_relaxed; from escnn import gspaces, nn"
# Without its compiled parts, and compiled for another NumPy.
BROKEN = (
    "from lie_learn.representations.SO3.irrep_bases import change_of_basis_matrix",
    "raise ValueError('numpy.dtype size changed, may indicate binary incompatibility')",
)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is said on import in each situation."""
    empty = str(tmp_path_factory.mktemp("empty"))
    situations = {"no py3nj": (empty, WITHOUT_PY3NJ)}
    for number, text in enumerate(BROKEN):
        top = tmp_path_factory.mktemp("broken")
        folder = top / "lie_learn" / "representations" / "SO3"
        folder.mkdir(parents=True)
        for package in (folder, folder.parent, folder.parent.parent):
            (package / "__init__.py").touch()
        (folder / "wigner_d.py").write_text(text)
        situations[f"broken {number}"] = str(top), "import escnn_relaxed"
    situations["no lie_learn"] = empty, WITHOUT_LIE_LEARN
    command = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{IN_TURN}"]
    found = subprocess.run(command, input=json.dumps(situations), capture_output=True, text=True, check=True)
    assert not found.stderr
    return json.loads(found.stdout)


def test_lie_learn_that_does_not_import_or_is_missing_is_named_with_what_helps(said: dict[str, str]) -> None:
    for situation in ("broken 0", "broken 1"):
        last = said[situation].splitlines()[-1]
        assert last.startswith("ImportError: escnn needs lie_learn, which does not import here")
        assert last.endswith("Type there: pip install ./compat")
    last = said["no lie_learn"].splitlines()[-1]
    assert last.startswith("ImportError: RelaxedR2Conv needs escnn and lie_learn")
    assert "README.md says what to type" in last


def test_package_that_is_imported_first_silences_what_escnn_says_of_py3nj(said: dict[str, str]) -> None:
    assert not said["no py3nj"]
