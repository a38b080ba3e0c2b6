"""The sweep over ω′ goes on from its journal and ends in the curve; no accuracy is asserted."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

pytest.importorskip("optuna")

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = ("--images", "40", "--epochs", "1", "--workers", "1", "--frequencies", "0", "0.25")
TRAINED = re.compile(r"^ω′ = (\S+), seed (\d)", re.MULTILINE)


def run_here(folder: Path, *arguments: str) -> str:
    """The command in this process, which has imported everything already."""
    output = io.StringIO()
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.syspath_prepend(EXAMPLES)
        patch.chdir(folder)
        sweep = importlib.import_module("sweep")
        patch.setattr(sweep, "ProcessPoolExecutor", lambda workers, **_: ThreadPoolExecutor(workers))
        sweep.main([*SMALL, *arguments])
    torch.set_num_threads(threads)
    return output.getvalue()


@pytest.mark.slow
def test_sweep_trains_what_is_missing(tmp_path: Path) -> None:
    assert set(TRAINED.findall(run_here(tmp_path, "--seeds", "1"))) == {("0", "0"), ("0.25", "0")}
    after = run_here(tmp_path, "--seeds", "2")
    assert set(TRAINED.findall(after)) == {("0", "1"), ("0.25", "1")}
    assert len(re.findall(r"± ", after[after.index("validation, %") :])) == 5  # two curves of two points, the choice
    assert (tmp_path / "runs" / "sweep.png").stat().st_size > 1000
    again = run_here(tmp_path, "--seeds", "2")
    assert not TRAINED.findall(again)
    assert again[again.index("ω′      validation") :] == after[after.index("ω′      validation") :]
