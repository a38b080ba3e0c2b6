"""Runs that are made once: kept in a file as they end, and gone on with by a second call."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any


class Log:
    """Finished runs by their description, kept in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.runs: dict[str, dict[str, Any]] = {}
        if path.exists():
            for number, line in enumerate(path.read_text().splitlines(), 1):
                try:
                    entry = json.loads(line)
                except ValueError:
                    warnings.warn(f"{path}, line {number} was cut off: that run is done again", stacklevel=2)
                    continue
                self.runs[entry["run"]] = entry["result"]

    def add(self, run: str, result: dict[str, Any]) -> None:
        """Keep a result, on disk at once: a line in one write, since other calls may write to the same log."""
        self.runs[run] = result
        line = json.dumps({"run": run, "result": result}) + "\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab", buffering=0) as file:
            if self._ends_within_a_line():
                line = "\n" + line
            file.write(line.encode())
            os.fsync(file.fileno())

    def _ends_within_a_line(self) -> bool:
        """Return whether the file ends within a line, as where a call was killed as it wrote."""
        content = self._path.read_bytes()
        return bool(content) and not content.endswith(b"\n")
