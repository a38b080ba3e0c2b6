"""What does not work is refused on import, with what to type; what is required is pinned, as setup.py allows."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import escnn_relaxed
from escnn_relaxed.on_escnn import versions
from escnn_relaxed.on_escnn.versions import check_torch

ROOT = Path(__file__).parents[1]


def test_torch_that_is_too_old_is_refused_on_import(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match=r'torch 2.6 or newer, .* has 2.2.2\+cu121: pip install "torch>=2.6"'):
        check_torch("2.2.2+cu121")
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    with pytest.raises(ImportError, match=r"has 2\.5\.1"):
        importlib.reload(versions)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("matplotlib", r"^escnn_relaxed.plots needs matplotlib, the extra `plots`, .*: pip install matplotlib$"),
        # Something that matplotlib itself needs.
        ("cycler", "cycler"),
    ],
)
def test_plots_say_what_to_install(missing: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith((missing, "matplotlib", "escnn_relaxed.plots"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("escnn_relaxed.plots", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ModuleNotFoundError, match=said) as found:
        importlib.import_module("escnn_relaxed.plots")
    assert found.value.name == missing


def test_what_users_type_daily_is_listed_at_the_top_and_found_in_its_folder() -> None:
    for folder, names in {
        "learning": ("SoftnessEvidence", "which_softness_helps"),
        "measure": ("pose_test", "relaxation_scalars"),
        "network": ("to_escnn",),
    }.items():
        module = importlib.import_module(f"escnn_relaxed.{folder}")
        for name in names:
            assert name in escnn_relaxed.__all__
            assert name not in module.__all__
            assert getattr(escnn_relaxed, name) is getattr(module, name)


# In one process, since torch takes longest: what is said where escnn and the package are imported anew after some code.
IN_TURN = """
import contextlib, io, json, sys, traceback
said = []
for folder, code in json.load(sys.stdin):
    for name in [name for name in sys.modules if name.startswith(("escnn", "lie_learn"))]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            exec(code + "; import escnn_relaxed; from escnn import gspaces, nn")
        except ImportError:
            traceback.print_exc()
    said.append(errors.getvalue())
print(json.dumps(said))
"""
WITHOUT_LIE_LEARN = """
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "lie_learn":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing()); import escnn_relaxed; escnn_relaxed.RelaxedR2Conv"""
BROKEN = (
    "from lie_learn.representations.SO3.irrep_bases import change_of_basis_matrix",
    "raise ValueError('numpy.dtype size changed, may indicate binary incompatibility')",
)


def test_what_is_said_on_import_where_py3nj_or_lie_learn_is_missing_or_does_not_work(tmp_path: Path) -> None:
    """Nothing of py3nj. Of lie_learn, without its compiled parts or compiled for another NumPy, what helps."""
    situations = [(str(tmp_path), "sys.modules['py3nj'] = None")]
    for number, text in enumerate(BROKEN):
        folder = tmp_path / f"{number}" / "lie_learn" / "representations" / "SO3"
        folder.mkdir(parents=True)
        (tmp_path / f"{number}" / "lie_learn" / "__init__.py").touch()
        (folder / "wigner_d.py").write_text(text)
        situations.append((str(tmp_path / f"{number}"), "pass"))
    command = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{IN_TURN}"]
    given = json.dumps([*situations, (str(tmp_path), WITHOUT_LIE_LEARN)])
    found = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    of_py3nj, *broken, missing = json.loads(found.stdout)
    assert not of_py3nj + found.stderr
    for said in broken:
        assert "ImportError: escnn needs lie_learn, which does not import here" in said
        assert said.strip().endswith("Type there: pip install ./compat")
    said = missing.splitlines()[-1]
    assert said.startswith("ImportError: RelaxedR2Conv needs escnn and lie_learn")
    assert "README.md says what to type" in said
