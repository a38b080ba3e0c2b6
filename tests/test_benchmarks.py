"""The accuracy benchmark runs, goes on from its log, and says what it found; no accuracy is asserted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "accuracy.py"


def run(log: Path) -> str:
    command = [sys.executable, str(BENCHMARK), "--smoke", "--rows", "digits upright", "--log", str(log)]
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARK.parent.parent), "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_a_second_run_takes_every_network_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    first, second = run(log), run(log)
    assert first.count("soft, digits upright; ") == len(log.read_text().splitlines()) == 3
    assert "soft, digits upright; " not in second
    table = first[first.index("| row |") :]
    assert table == second[second.index("| row |") :]
    assert table.count("| soft, digits upright |") == 3
