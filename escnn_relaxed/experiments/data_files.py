"""Files of data sets: found under a folder, downloaded where they are missing, checked, written whole."""

from __future__ import annotations

import hashlib
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

__all__ = ["DataError", "checksum", "fetch", "read_bytes", "save"]

TIMEOUT_SECONDS = 60


class DataError(Exception):
    """The data set is missing or damaged; the message says what to do."""


def checksum(content: bytes) -> str:
    """MD5 in hexadecimal digits, as the publishers of the data sets give it.

    Example:
        >>> checksum(b"")
        'd41d8cd98f00b204e9800998ecf8427e'
    """
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def read_bytes(path: Path) -> bytes:
    """The content of a file.

    Raises:
        DataError: if it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


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


def save(content: bytes, path: Path) -> Path:
    """Write a file under a temporary name first, so that an interrupted write leaves no damaged file.

    Raises:
        DataError: if it cannot be written.
    """
    partial = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        return partial.replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error}") from error
