"""The log of all results: runs are made once, kept in a file as they end, and gone on with by a second call."""

from __future__ import annotations

import argparse
import fcntl
import functools
import json
import os
import subprocess
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from escnn_relaxed._version import __version__

VERSIONS = {"escnn_relaxed": __version__, **{name: version(name) for name in ("torch", "escnn", "numpy")}}


class Log:
    """Finished runs by their description, kept in a file of JSON lines.

    Args:
        path: of the file, which need not exist.

    Attributes:
        runs: description → result.

    Raises:
        ValueError: for a file that is no log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.runs: dict[str, dict[str, Any]] = {}
        self.read()

    def __reduce__(self) -> tuple[type[Log], tuple[Path]]:
        """Another process reads the file, with what has been added since."""
        return type(self), (self._path,)

    def read(self) -> None:
        """Read the file again, to which other processes may have added."""
        for number, line in enumerate(self._text().splitlines(), 1):
            try:
                entry = json.loads(line)
            except ValueError:
                warnings.warn(f"{self._path}, line {number} was cut off: that run is done again", stacklevel=3)
                continue
            if not isinstance(entry, dict) or not entry.keys() >= {"run", "result"}:
                raise ValueError(f"{self._path}, line {number} must hold 'run' and 'result', got {line[:80]}")
            self.runs[entry["run"]] = entry["result"]

    def _text(self) -> str:
        if not self._path.exists():
            return ""
        with self._path.open(encoding="utf-8") as file:
            # No process reads half of a line that another one writes.
            fcntl.flock(file, fcntl.LOCK_SH)
            return file.read()

    def once(self, run: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of a run, which is made, kept and told where the log does not hold it."""
        if run not in self.runs:
            result = make()
            self.add(run, {**result, "commit": commit(), "versions": VERSIONS})
            print(run, {name: round(value, 4) for name, value in result.items() if type(value) is float}, flush=True)
        return self.runs[run]

    def add(self, run: str, result: dict[str, Any]) -> None:
        """Keep a result, on disk at once: a line in one write, since other calls may write to the same log."""
        self.runs[run] = result
        line = json.dumps({"run": run, "result": result}) + "\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            content = self._path.read_bytes()
            if content and not content.endswith(b"\n"):  # a call was killed as it wrote
                line = "\n" + line
            file.write(line.encode())
            os.fsync(file.fileno())


@functools.cache
def commit() -> str:
    """Return the commit of this code, marked where files differ from it."""
    try:
        describe = ("describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
        command = ["git", "-C", str(Path(__file__).parent), *describe]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def options(description: str | None) -> argparse.ArgumentParser:
    """Return what reads the options of a command that makes runs from data."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data; without, scikit-learn's digits, for a trial")
    parser.add_argument("--output", type=Path, required=True, help="the log, a file of JSON lines")
    return parser
