"""The sdist takes every file that is tracked; `make package` builds it and looks into it."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "archives.py"


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="git says what is tracked")
def test_rules_of_the_sdist_take_every_tracked_file(tmp_path: Path) -> None:
    """The list of what an sdist would hold is made without building it."""
    pytest.importorskip("setuptools")
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    taken = (tmp_path / "escnn_relaxed.egg-info" / "SOURCES.txt").read_text(encoding="utf-8").splitlines()
    archives = runpy.run_path(str(SCRIPT))
    lacking = {name for name in archives["tracked"]() if not name.startswith(archives["LEFT_OUT"])} - set(taken)
    assert not lacking
