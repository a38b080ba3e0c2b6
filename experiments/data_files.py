"""Files: read, downloaded where they are missing, checked, written whole; errors name the file."""

from __future__ import annotations

import contextlib
import hashlib
import os
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

__all__ = ["DataError", "checksum", "fetch", "save"]

TIMEOUT_SECONDS = 60


class DataError(Exception):
    """A file is missing or damaged; the message names it and says what to do."""


def checksum(content: bytes) -> str:
    """MD5 in hexadecimal digits, as the publishers of the data sets give it.

    Example:
        >>> checksum(b"")
        'd41d8cd98f00b204e9800998ecf8427e'
    """
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def fetch(address: str) -> bytes:
    """The content at an address.

    Raises:
        DataError: if it cannot be had.
    """
    try:
        with urlopen(address, timeout=TIMEOUT_SECONDS) as answer:
            content: bytes = answer.read()
    except (OSError, HTTPException) as error:
        raise DataError(str(error)) from error
    return content


def save(content: bytes, path: Path, before: Path | None = None) -> Path:
    """Write a file whole or not at all: beside its place under a temporary name first.

    Args:
        content: of the file.
        path: of the file; folders that are missing are made.
        before: where the file that was there is kept; None to replace it.

    Raises:
        OSError: if it cannot be written; what was there is as it was.
    """
    # In the same folder, since a move from another file system is a copy, which can end half-way.
    partial = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            # Otherwise the name may reach the disk before the content does.
            os.fsync(file.fileno())
        if before is not None and path.exists():
            path.replace(before)
        return partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
