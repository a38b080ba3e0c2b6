"""Scripts and networks to copy, and the sweep over ω′."""

import importlib
import re
import runpy
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from errors import SINGLE_REORDERED

from escnn_relaxed import harden_network
from escnn_relaxed.measure import poses

pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPT = EXAMPLES / "does_softness_help.py"


def test_script_of_softness_compares_networks_on_the_same_splits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an empty folder and without the folder of the examples, as a copy of it."""
    copy = tmp_path / "copy.py"
    copy.write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    script = runpy.run_path(str(copy))

    def load_few(seed: int, turned: float) -> object:
        training, (images, labels) = script["load"](seed, turned)
        return training, (images[:60], labels[:60])

    monkeypatch.setattr(poses, "_STEPS", 40)  # for ``test_poses`` to see
    for name, value in {"load": load_few, "SEEDS": 2}.items():
        monkeypatch.setitem(script["main"].__globals__, name, value)
    script["main"](["--smoke", "--turned", "180"])
    printed = capsys.readouterr().out
    mean, gain = r" +\d+\.\d ± \d+\.\d", r" +[+-]\d+\.\d ± \d+\.\d"
    row = rf"^(strict|strict, free head|strict, free biases|soft|soft, with evidence){mean}((?:{gain})*){mean}$"
    found = {kind: gains.count("±") for kind, gains in re.findall(row, printed, re.MULTILINE)}
    assert found == {"strict": 0, "strict, free head": 1, "strict, free biases": 2, "soft": 2, "soft, with evidence": 2}
    assert len(re.findall(r"^rotation: (?:strict|soft)", printed, re.MULTILINE)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["copy.py"]


def test_letters_break_reflection_and_keep_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poses, "_STEPS", 40)
    trials, found = runpy.run_path(str(EXAMPLES / "which_symmetry.py"))["ask"](seed=0, epochs=12)
    assert trials.helps == {"rotation": False, "reflection": True}
    assert found.equal == {"rotation": True, "reflection": True}


# Sides that halve symmetrically: multiples of 4 where a pooling takes blocks of 2 × 2, 8n + 1 where a stride does.
SHAPES = {"UNet": (3, 16, 16), "ResNet": (3, 17, 17), "Regression": (1, 17, 17)}


@pytest.mark.parametrize("name", SHAPES)
def test_network_to_copy_learns_with_every_parameter_and_hardened_turns_with_its_image(name: str) -> None:
    """By 90°: pixels turn, classes and numbers stay, vectors turn."""
    torch.manual_seed(0)
    network: torch.nn.Module = getattr(pytest.importorskip("networks_to_copy"), name)(fields=2)
    images = torch.randn(4, *SHAPES[name])
    output = network(images)
    parts = output if isinstance(output, tuple) else (output,)
    torch.stack([(part - torch.randn(part.shape)).square().mean() for part in parts]).sum().backward()
    assert not [key for key, value in network.named_parameters() if value.grad is None or not value.grad.any()]
    with torch.no_grad():
        hardened = harden_network(network).eval()
        before, after = hardened(images), hardened(images.rot90(1, (2, 3)))
    if name == "UNet":
        pairs = [(before.rot90(1, (2, 3)), after)]
    elif name == "ResNet":
        pairs = [(before, after)]
    else:
        # A quarter turn takes (x, y) to (−y, x).
        vectors = torch.stack([-before[1][:, 1], before[1][:, 0]], 1)
        pairs = [(before[0], after[0]), (vectors, after[1])]
    for expected, found in pairs:
        assert float((found - expected).norm() / expected.norm()) < SINGLE_REORDERED


SWEEP = ("--images", "40", "--epochs", "1", "--workers", "1", "--frequencies", "0", "0.25")
TRAINED = re.compile(r"^ω′ = (\S+), seed (\d)", re.MULTILINE)


@pytest.mark.slow
def test_sweep_trains_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has imported everything already."""
    pytest.importorskip("optuna")
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    sweep = importlib.import_module("sweep")
    monkeypatch.setattr(sweep, "ProcessPoolExecutor", lambda workers, **_: ThreadPoolExecutor(workers))
    printed = []
    for seeds in ("1", "2", "2"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sweep.main([*SWEEP, "--seeds", seeds])
        printed.append(capsys.readouterr().out)
    torch.set_num_threads(1)
    trained = [set(TRAINED.findall(text)) for text in printed]
    assert trained == [{("0", "0"), ("0.25", "0")}, {("0", "1"), ("0.25", "1")}, set()]
    assert (tmp_path / "runs" / "sweep.png").stat().st_size > 1000
