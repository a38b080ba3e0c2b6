"""The sweep over ω′ goes on after a kill and ends in the curve; no accuracy is asserted."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

pytest.importorskip("optuna")

from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

SCRIPT = Path(__file__).parent.parent / "examples" / "sweep.py"
SMALL = ("--images", "40", "--epochs", "1", "--workers", "1", "--frequencies", "0", "0.25")
TRAINED = re.compile(r"^ω′ = (\S+), seed (\d)", re.MULTILINE)

pytestmark = pytest.mark.slow


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    paths = {"PYTHONPATH": str(SCRIPT.parent.parent)}
    environment = {**os.environ, **paths, "MPLBACKEND": "Agg", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), *SMALL, *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def run_here(folder: Path, *arguments: str) -> str:
    """The same command in this process, which has imported everything already."""
    output = io.StringIO()
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.syspath_prepend(SCRIPT.parent)
        patch.chdir(folder)
        sweep = importlib.import_module("sweep")
        patch.setattr(sweep, "ProcessPoolExecutor", lambda workers, **_: ThreadPoolExecutor(workers))
        # The process that was killed may have held the lock, which is waited for 30 seconds otherwise.
        patch.setattr(
            sweep, "JournalFileBackend", lambda path: JournalFileBackend(path, JournalFileSymlinkLock(path, 1))
        )
        sweep.main([*SMALL, *arguments])
    torch.set_num_threads(threads)
    return output.getvalue()


def test_sweep_goes_on_after_a_kill(tmp_path: Path) -> None:
    with start(tmp_path, "--seeds", "2") as process:
        assert process.stdout is not None
        before = TRAINED.findall(process.stdout.readline())
        process.kill()
        # Workers have the other end too: it ends when they do.
        process.stdout.read()
    assert len(before) == 1
    after = run_here(tmp_path, "--seeds", "2")
    everything = {("0", "0"), ("0", "1"), ("0.25", "0"), ("0.25", "1")}
    assert set(TRAINED.findall(after)) == everything - set(before)
    assert len(re.findall(r"± ", after[after.index("validation, %") :])) == 5  # two curves of two points, the choice
    assert (tmp_path / "runs" / "sweep.png").stat().st_size > 1000
    again = run_here(tmp_path, "--seeds", "2")
    assert not TRAINED.findall(again)
    assert again[again.index("ω′      validation") :] == after[after.index("ω′      validation") :]
