"""Training that waits while a file exists, so that something else can have the machine."""

from __future__ import annotations

import time
from pathlib import Path

POLL_SECONDS = 1.0


def wait_while(path: Path | None) -> None:
    """Return when the file is gone; at once for None."""
    while path is not None and path.exists():
        time.sleep(POLL_SECONDS)
