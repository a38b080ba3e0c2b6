"""CIFAR-10's binary files: found under a path, downloaded where they are missing, checked, decoded."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

__all__ = ["cifar10_split"]

FOLDER = "cifar-10-batches-bin"
ARCHIVE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
FILES = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
RECORD = 1 + 3 * 32 * 32
TIMEOUT_SECONDS = 60


def cifar10_split(root: Path, split: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 3, 32, 32) and labels (n,) of ``"train"`` or ``"test"``.

    The files are looked for in ``root/cifar-10-batches-bin``, and downloaded (170 MB) where they are missing.

    Raises:
        ValueError: if a file, or the download, is damaged.
    """
    folder = root / FOLDER
    if not all((folder / name).exists() for name in FILES[split]):
        _download(root)
    content = b"".join((folder / name).read_bytes() for name in FILES[split])
    if len(content) != 10_000 * RECORD * len(FILES[split]):
        raise ValueError(f"{folder}: the files of the {split} split have {len(content)} bytes; remove them")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].copy()


def _download(root: Path) -> None:
    print(f"downloading {ARCHIVE} into {root}", flush=True)
    with urlopen(ARCHIVE, timeout=TIMEOUT_SECONDS) as answer:
        content = answer.read()
    if hashlib.md5(content).hexdigest() != ARCHIVE_MD5:
        raise ValueError(f"{ARCHIVE}: the download is damaged, try again")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(root, filter="data")
