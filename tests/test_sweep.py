"""The sweep over ω′ goes on from its journal and ends in the curve; no accuracy is asserted."""

from __future__ import annotations

import importlib
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


@pytest.mark.slow
def test_sweep_trains_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has imported everything already."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    sweep = importlib.import_module("sweep")
    monkeypatch.setattr(sweep, "ProcessPoolExecutor", lambda workers, **_: ThreadPoolExecutor(workers))
    printed = []
    for seeds in ("1", "2", "2"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sweep.main([*SMALL, "--seeds", seeds])
        printed.append(capsys.readouterr().out)
    torch.set_num_threads(1)
    trained = [set(TRAINED.findall(text)) for text in printed]
    assert trained == [{("0", "0"), ("0.25", "0")}, {("0", "1"), ("0.25", "1")}, set()]
    curves = [text[text.index("ω′      validation") :] for text in printed[1:]]
    assert curves[0] == curves[1]
    assert len(re.findall(r"± ", printed[1][printed[1].index("validation, %") :])) == 5  # two curves, the choice
    assert (tmp_path / "runs" / "sweep.png").stat().st_size > 1000
