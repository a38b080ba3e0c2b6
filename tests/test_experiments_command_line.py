"""The command line: what it lists, what it passes on, and errors in a line."""

from __future__ import annotations

import builtins
import errno
import importlib
from pathlib import Path
from typing import Any

import pytest

from experiments.command_line import main
from experiments.configuration import Configuration, read_row, row_names
from experiments.requirements import require


def test_rows_are_listed_with_their_titles(capsys: pytest.CaptureFixture[str]) -> None:
    main(["rows"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == row_names()
    assert lines[0].endswith("T(2), strict")


def test_settings_reach_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    training = pytest.importorskip("experiments.training")
    seen: list[Any] = []
    result = {"validation_accuracy": 1.0, "test_accuracy": 2.0}
    monkeypatch.setattr(training, "run", lambda *arguments: seen.extend(arguments) or result)
    options = "--task cifar100 --augment --precision bf16-mixed --seed 3 --devices 2 --num-nodes 4 --accelerator cpu"
    settings = ["--set", "relax.rotation=0.5", "epochs=7", "--output", str(tmp_path)]
    main(["train", "se2-8-soft", *options.split(), *settings])
    expected = Configuration(
        rotations=8, relax={"rotation": 0.5}, task="cifar100", augment=True, precision="bf16-mixed", epochs=7
    )
    machine = training.Machine("cpu", 2, 4)
    assert seen == ["se2-8-soft", expected, 3, None, tmp_path, machine]


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that it ends in."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    text = capsys.readouterr().err
    assert "Traceback" not in text
    assert text.endswith("\n")
    line = text.splitlines()[-1]
    assert line.startswith("python -m experiments")
    return line


SETTINGS = {
    "fields=3": "fields must be two integers, for the two blocks, as [8, 16]; got 3",
    "fields=[3]": "fields must be two integers",
    'fields="ab"': "fields must be two integers",
    "fields=[1.5, 2]": "fields must be an integer, got 1.5",
    "fields=[0, 1]": "fields must be >= 1, got 0",
    "rotations=0": "rotations must be >= 1, got 0",
    "epochs=1e3": "epochs must be an integer, got 1000.0",
    "epochs=2": "warmup_epochs must be below epochs=2, got 2",
    "epochs.x=3": "epochs must be an integer, got {'x': 3}",
    "epoch=3": "a setting must be one of rotations, layer,",
    "epochs": "a setting must be key=value, the value as in TOML; got 'epochs'",
    "epochs=[": "a setting must be key=value",
    "images=2000": "images must be at most 1078 with digits, got 2000",
    "batch_size=513": "batch_size must be at most 512 images, got 513",
    "learning_rate=1e300": "learning_rate must be finite and >= 0, and fit into float32; got 1e+300",
    f"learning_rate=1{400 * '0'}": "learning_rate must be finite",
    "relax.rotation=nan": "relax.rotation must be finite",
    "relax.scale=1.0": "unknown subgroup 'scale'",
    "relax=3": "relax must have a number for each subgroup, or be 'default'; got 3",
    'layer="loose"': "layer must be one of",
    'precision="8-bit"': "precision must be one of",
}


@pytest.mark.parametrize("setting", list(SETTINGS), ids=lambda setting: setting[:20])
def test_a_wrong_setting_is_named(setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightning")
    arguments = ["train", "digits-soft", "--output", str(tmp_path), "--set", "warmup_epochs=2", setting]
    assert SETTINGS[setting] in error_of(arguments, capsys)


OPTIONS = {
    "--seed -1": "seed must be >= 0, got -1",
    f"--seed {2**64}": f"seed must be <= {2**64 - 1}, got {2**64}",
    "--seed 1.5": "argument --seed: invalid int value: '1.5'",
    "--devices 0": "devices must be >= 1, got 0",
    "--devices 5": "batch_size must be divisible by 5 devices, got 64",
    "--num-nodes 0": "num_nodes must be >= 1, got 0",
    "--accelerator quantum": "`accelerator='quantum'`. Available names are: auto",
    "--task svhn": "argument --task: invalid choice: 'svhn'",
    "--task cifar10": "the task 'cifar10' needs --data",
    "--output /dev/null": "the folder /dev/null/digits-soft/",
    "--unknown": "unrecognized arguments: --unknown",
}


@pytest.mark.parametrize("option", list(OPTIONS))
def test_a_wrong_option_is_named(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightning")
    assert OPTIONS[option] in error_of(["train", "digits-soft", "--output", str(tmp_path), *option.split()], capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "so3"], "row must be one of"),
        (["train"], "the following arguments are required: row"),
        (["report", "/nowhere"], "/nowhere holds no result.json: train rows with --output /nowhere first"),
        (["report", "benchmarks/results", "--output", "docs"], "docs cannot be written: it is a folder or a device"),
        (["report", "benchmarks/results", "--output", "setup.py/x"], "the folder setup.py cannot be made: File exists"),
    ],
)
def test_other_errors_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning")
    monkeypatch.chdir(Path(__file__).parent.parent)
    assert message in error_of(arguments, capsys)


RESULT = Path(__file__).parent.parent / "benchmarks" / "results"
CONTENTS = {
    "empty": "",
    "truncated": '{"rows": {"t2-str',
    "a list": "[]",
    "of nothing": "{}",
    "without numbers": '{"row": "digits-soft", "settings": "", "rows": {"t2-strict": {"parameters": "x"}}}',
    "without rows": '{"settings": "", "rows": {}}',
}


@pytest.mark.parametrize("content", list(CONTENTS))
@pytest.mark.parametrize("name", ["result.json", "runtimes.json"])
def test_a_damaged_file_is_named_by_the_report(
    name: str, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = next(RESULT.rglob("result.json")).read_text()
    (tmp_path / "result.json").write_text(sound)
    (tmp_path / name).write_text(CONTENTS[content])
    line = error_of(["report", str(tmp_path), "--output", str(tmp_path / "tables.md")], capsys)
    assert f"error: {tmp_path / name} is " in line
    assert not (tmp_path / "tables.md").exists()


@pytest.mark.parametrize("content", ["empty", "truncated", "a list", "of nothing"])
def test_a_damaged_result_is_named_by_the_training(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = pytest.importorskip("experiments.training")
    folder = training.run_folder(tmp_path, "digits-soft", read_row("digits-soft").configuration, 0)
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(CONTENTS[content])
    line = error_of(["train", "digits-soft", "--output", str(tmp_path)], capsys)
    assert f"error: {folder / 'result.json'} is " in line
    assert "delete it" in line


def test_a_full_disk_and_too_little_memory_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = pytest.importorskip("experiments.training")
    for error in (OSError(errno.ENOSPC, "No space left on device", "events.out"), MemoryError("Unable to allocate")):

        def fail(*arguments: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(training, "run", fail)
        assert str(error) in error_of(["train", "digits-soft"], capsys)


def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.import_module

    def without_lightning(name: str, *arguments: Any) -> Any:
        if name.startswith("lightning"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return find(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", without_lightning)
    error = error_of(["train", "t2-soft"], capsys)
    assert "'lightning', which is not installed" in error
    assert "pip install -c constraints.txt -r experiments/requirements.txt" in error
    with pytest.raises(ModuleNotFoundError, match="'lightning'"):
        require("lightning.pytorch")


def test_nothing_heavy_is_imported_to_list_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def guarded(name: str, *arguments: Any, **options: Any) -> Any:
        assert name.partition(".")[0] not in ("lightning", "kornia"), name
        return plain(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", guarded)
    main(["rows"])
