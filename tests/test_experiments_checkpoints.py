"""Checkpoints of runs: what is damaged, half-written or another run's costs an epoch at most, and is named."""

from __future__ import annotations

import errno
import os
import struct
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning")

from lightning.pytorch import LightningModule

from experiments.checkpoints import RunCheckpoints
from experiments.data_files import DataError, save

RUN = "some row with seed 0"
WEIGHT = struct.pack("<f", 1.7)


class Module(LightningModule):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, width)
        torch.nn.init.constant_(self.layer.weight, 1.7)


def write(path: Path, epoch: int, run: str = RUN) -> None:
    RunCheckpoints(run).save_checkpoint({"epoch": epoch, "state_dict": Module().state_dict()}, path)


def newest_epoch(path: Path) -> int | None:
    found = RunCheckpoints(RUN).newest(path, Module())
    return None if found is None else torch.load(found, weights_only=True)["epoch"]


def with_another_weight(content: bytes) -> bytes:
    place = content.index(2 * WEIGHT)
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


DAMAGES = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "of zeros": lambda content: bytes(len(content)),
    "garbage": lambda content: os.urandom(len(content)),
    "one bit flipped": with_another_weight,
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "last.ckpt"
    for epoch in range(3):
        write(path, epoch)
    assert newest_epoch(path) == 2
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.warns(UserWarning, match=r"last\.ckpt is damaged .* now called last\.ckpt\.damaged: .* the one before"):
        assert newest_epoch(path) == 1
    # The damaged one never takes the place of a sound one.
    write(path, 2)
    assert {file.name for file in tmp_path.iterdir()} == {"last.ckpt", "last.before.ckpt", "last.ckpt.damaged"}
    path.unlink()
    assert newest_epoch(path) == 1


def test_where_both_are_damaged_the_run_begins_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    assert newest_epoch(path) is None
    write(path, 0)
    write(path, 1)
    for file in tmp_path.iterdir():
        file.write_bytes(b"no checkpoint")
    with pytest.warns(UserWarning, match=r"is damaged") as warned:
        assert newest_epoch(path) is None
    first, second = (str(warning.message) for warning in warned)
    assert "last.ckpt is damaged" in first
    assert "last.before.ckpt is damaged" in second
    assert second.endswith("goes on from the start")


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "last.ckpt"
    write(path, 0)

    def fail(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*{"fsync": (os, "fsync", fail), "replace": (Path, "replace", fail)}[failing])
    with pytest.raises(DataError, match=r"last\.ckpt cannot be written: No space left on device"):
        write(path, 1)
    monkeypatch.undo()
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]
    assert newest_epoch(path) == 0


def test_a_kill_during_a_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    write(path, 0)
    partial = tmp_path / "last.ckpt.part"
    partial.write_bytes(b"half of")
    assert newest_epoch(path) == 0
    write(path, 1)
    assert not partial.exists()
    # Between the two renamings there is the one before alone.
    path.unlink()
    assert newest_epoch(path) == 0


def test_nothing_is_written_outside_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    opened: list[str] = []
    plain = Path.open
    monkeypatch.setattr(
        Path, "open", lambda self, *rest, **named: opened.append(self.name) or plain(self, *rest, **named)
    )
    write(tmp_path / "run" / "last.ckpt", 0)
    assert opened == ["last.ckpt.part"]
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"epoch": 3, "state_dict": Module().state_dict(), "run": "other"},
            "is a checkpoint of another run, other, not of some row",
        ),
        ({"epoch": 3, "state_dict": Module(4).state_dict(), "run": RUN}, "is not a checkpoint of this run, some row"),
        (Module().state_dict(), "is not a checkpoint of this run"),
        (Module(), "is not a checkpoint of this run"),
    ],
)
def test_what_is_another_runs_is_named_and_left_alone(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "last.ckpt"
    torch.save(content, path)
    with pytest.raises(DataError, match=rf"last\.ckpt {message}.*: move it out of {tmp_path}"):
        newest_epoch(path)
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_no_cut_and_no_wrong_byte_is_taken_for_sound(tmp_path: Path) -> None:
    """Whatever is wrong, the answer is a sound checkpoint."""
    path = tmp_path / "last.ckpt"
    write(path, 0)
    write(path, 1)
    content = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    for cut in torch.randint(len(content), (40,), generator=generator).tolist():
        for wrong in (content[:cut], content[:cut] + b"\xa5" * 8 + content[cut + 8 :]):
            path.write_bytes(wrong)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert newest_epoch(path) in (0, 1)


def test_any_file_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(b"first", tmp_path / "result.json")
    monkeypatch.setattr(os, "fsync", lambda number: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(DataError, match=r"result\.json cannot be written: full"):
        save(b"second", tmp_path / "result.json")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("result.json", b"first")]
