"""The command line: what it lists, what it passes on, and errors in a line."""

from __future__ import annotations

import builtins
import importlib
from pathlib import Path
from typing import Any

import pytest

from escnn_relaxed.experiments.command_line import main
from escnn_relaxed.experiments.configuration import Configuration, row_names
from escnn_relaxed.experiments.requirements import require


def test_rows_are_listed_with_their_titles(capsys: pytest.CaptureFixture[str]) -> None:
    main(["rows"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == row_names()
    assert lines[0].endswith("T(2), strict")


def test_settings_reach_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    training = pytest.importorskip("escnn_relaxed.experiments.training")
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "so3"], "error: row must be one of"),
        (["train", "t2-soft", "--set", "epoch=3"], "error: a setting must be one of"),
        (["train", "t2-soft", "--output", "/nowhere"], "error: the task 'cifar10' needs --data"),
        (["report", "/nowhere"], "error: /nowhere holds no result.json"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str) -> None:
    pytest.importorskip("lightning")
    with pytest.raises(SystemExit, match=message):
        main(arguments)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.import_module

    def without_lightning(name: str, *arguments: Any) -> Any:
        if name.startswith("lightning"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return find(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", without_lightning)
    with pytest.raises(SystemExit, match=r"'lightning', which is not installed: pip install 'escnn_relaxed\[exper"):
        main(["train", "t2-soft"])
    with pytest.raises(ModuleNotFoundError, match="'lightning'"):
        require("lightning.pytorch")


def test_nothing_heavy_is_imported_to_list_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def guarded(name: str, *arguments: Any, **options: Any) -> Any:
        assert name.partition(".")[0] not in ("lightning", "kornia"), name
        return plain(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", guarded)
    main(["rows"])
