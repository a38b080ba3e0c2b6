"""Scripts to copy: whether softness helps, and which symmetry is broken."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch
from escnn import nn

from escnn_relaxed import RelaxedR2Conv

pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPT = EXAMPLES / "does_softness_help.py"


def test_script_of_softness_compares_networks_of_a_size_on_three_splits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an empty folder and without the folder of the examples, as a copy of it."""
    copy = tmp_path / "copy.py"
    copy.write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    script = runpy.run_path(str(copy))
    script["main"](["--smoke", "--turned", "180"])
    printed = capsys.readouterr().out
    row = r"^(strict|soft|soft, with evidence) +\d+\.\d ± \d+\.\d( +[+-]\d+\.\d ± \d+\.\d)? +\d+$"
    found = [(kind, bool(difference)) for kind, difference in re.findall(row, printed, re.MULTILINE)]
    assert found == [("strict", False), ("soft", True), ("soft, with evidence", True)]
    assert len(re.findall(r"^features\.\d +rotation ", printed, re.MULTILINE)) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["copy.py"]
    # Else the larger network might be better for its size alone.
    strict, soft = (
        sum(parameter.numel() for parameter in script["Network"](layer).parameters())
        for layer in (nn.R2Conv, RelaxedR2Conv)
    )
    assert strict < soft < 1.02 * strict
    (upright, labels), (tests, _) = script["load"](0, 0.0)
    (turned, same), _ = script["load"](0, 180.0)
    (_, others), _ = script["load"](1, 0.0)
    assert upright.shape[1:] == tests.shape[1:] == (1, 17, 17)
    assert torch.equal(labels, same)
    assert not torch.equal(labels, others)
    assert not torch.allclose(upright, turned, atol=0.1)


def test_letters_break_reflection_and_keep_rotation() -> None:
    trials, poses = runpy.run_path(str(EXAMPLES / "which_symmetry.py"))["ask"](seed=0, epochs=12)
    assert trials.helps == {"rotation": False, "reflection": True}
    assert poses.equal == {"rotation": True, "reflection": True}
