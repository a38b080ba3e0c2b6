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
    mean, gain = r" +\d+\.\d ± \d+\.\d", r" +[+-]\d+\.\d ± \d+\.\d"
    row = rf"^(strict|strict, free head|soft|soft, with evidence){mean}((?:{gain})*){mean}$"
    found = {kind: gains.count("±") for kind, gains in re.findall(row, printed, re.MULTILINE)}
    assert found == {"strict": 0, "strict, free head": 1, "soft": 2, "soft, with evidence": 2}
    assert len(re.findall(r"^rotation: (?:strict|soft)", printed, re.MULTILINE)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["copy.py"]
    # Else the larger network might be better for its size alone.
    strict, soft, free = (
        sum(parameter.numel() for parameter in script["Network"](*kind).parameters())
        for kind in ((nn.R2Conv,), (RelaxedR2Conv,), (nn.R2Conv, True))
    )
    assert strict < soft < 1.02 * strict
    assert soft < free < 1.07 * strict
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
