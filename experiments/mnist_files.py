"""MNIST's original idx files: found under a path, downloaded where they are missing, checked, decoded."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .data_files import DataError, checksum, fetch, save

__all__ = ["mnist_split"]

# File name → MD5 of the uncompressed file: one check for files with .gz and without.
CHECKSUMS = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
FOLDERS = (".", "MNIST/raw", "raw")
DOWNLOAD_FOLDER = "MNIST/raw"


def mnist_split(root: Path, split: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 28, 28) and labels (n,) of ``"train"`` or ``"t10k"``.

    The files are looked for in ``root``, and downloaded into it where they are missing.

    Raises:
        DataError: if a file is damaged, or missing and not to be had.
    """
    images = parse_idx(_read(root, f"{split}-images-idx3-ubyte"))
    labels = parse_idx(_read(root, f"{split}-labels-idx1-ubyte"))
    return images, labels


def parse_idx(content: bytes) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes → its array.

    Example:
        >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
        array([7, 8, 9], dtype=uint8)
    """
    dimensions = content[3]
    start = 4 + 4 * dimensions
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read(root: Path, name: str) -> bytes:
    """The checked content of one file, from ``root`` or from a mirror."""
    path = _find(root, name) or _download(root, name)
    try:
        return _checked(path.read_bytes(), name, compressed=path.suffix == ".gz")
    except DataError as error:
        raise DataError(f"{path}: {error}; delete it to have it downloaded again") from error


def _find(root: Path, name: str) -> Path | None:
    candidates = [root / folder / (name + suffix) for folder in FOLDERS for suffix in ("", ".gz")]
    return next((path for path in candidates if path.is_file()), None)


def _checked(data: bytes, name: str, compressed: bool) -> bytes:
    """The uncompressed content of ``data``, whose checksum must be the published one."""
    if compressed:
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"damaged ({error})") from error
    if checksum(data) != CHECKSUMS[name]:
        raise DataError(f"damaged, or another file (MD5 {checksum(data)} instead of {CHECKSUMS[name]})")
    return data


def _download(root: Path, name: str) -> Path:
    """Fetch a file from the first mirror that has it whole; a file that fails its check is never kept."""
    failures = []
    for mirror in MIRRORS:
        try:
            content = fetch(f"{mirror}{name}.gz")
            _checked(content, name, compressed=True)
        except DataError as error:
            failures.append(f"{mirror}{name}.gz: {error}")
        else:
            return save(content, root / DOWNLOAD_FOLDER / f"{name}.gz")
    looked_in = ", ".join(str(root / folder) for folder in FOLDERS)
    raise DataError(
        f"{name}.gz is in none of {looked_in}, and could not be downloaded: {'; '.join(failures)}; "
        "put MNIST's four idx files into one of these folders"
    )
