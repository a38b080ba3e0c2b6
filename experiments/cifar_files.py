"""CIFAR-10 and CIFAR-100: binary files or pickles, found under a path, downloaded where missing, checked, decoded."""

from __future__ import annotations

import io
import pickle
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .data_files import DataError, checksum, fetch

__all__ = ["DATA_SETS", "cifar_split"]

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class DataSet:
    """The files of a data set: their addresses and their content.

    Attributes:
        classes: number of classes.
        binary_folder: of the binary version.
        binary_files: split → its files.
        label_bytes: before the pixels of each image in these; the last one is the class.
        archive: address of the binary version.
        archive_checksum: its MD5.
        pickle_folder: of the Python version.
        pickle_files: split → its files, each with its MD5.
        pickle_labels: key of the classes in these.
    """

    classes: int
    binary_folder: str
    binary_files: dict[str, tuple[str, ...]]
    label_bytes: int
    archive: str
    archive_checksum: str
    pickle_folder: str
    pickle_files: dict[str, dict[str, str]]
    pickle_labels: str


ADDRESS = "https://www.cs.toronto.edu/~kriz/"
IMAGES = {"train": 50_000, "test": 10_000}
DATA_SETS = {
    "cifar10": DataSet(
        classes=10,
        binary_folder="cifar-10-batches-bin",
        binary_files={
            "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
            "test": ("test_batch.bin",),
        },
        label_bytes=1,
        archive=f"{ADDRESS}cifar-10-binary.tar.gz",
        archive_checksum="c32a1d4ab5d03f1284b67883e8d87530",
        pickle_folder="cifar-10-batches-py",
        pickle_files={
            "train": {
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            },
            "test": {"test_batch": "40351d587109b95175f43aff81a1287e"},
        },
        pickle_labels="labels",
    ),
    "cifar100": DataSet(
        classes=100,
        binary_folder="cifar-100-binary",
        binary_files={"train": ("train.bin",), "test": ("test.bin",)},
        label_bytes=2,
        archive=f"{ADDRESS}cifar-100-binary.tar.gz",
        archive_checksum="03b5dce01913d631647c71ecec9e9cb8",
        pickle_folder="cifar-100-python",
        pickle_files={
            "train": {"train": "16019d7e3df5f24257cddd939b257f8d"},
            "test": {"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        },
        pickle_labels="fine_labels",
    ),
}


def cifar_split(root: Path, name: str, split: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 3, 32, 32) and classes (n,) of the ``"train"`` or ``"test"`` split.

    The folder of the binary version is looked for in ``root``, then that of the Python version, of which files with
    the published checksum alone are unpickled. Where both are missing the binary version is downloaded (170 MB).

    Args:
        root: folder that holds the folders.
        name: ``"cifar10"`` or ``"cifar100"``, whose classes are the fine ones.
        split: ``"train"`` or ``"test"``.

    Raises:
        DataError: if a file is damaged, or missing and not to be had.
    """
    data_set = DATA_SETS[name]
    pickles = [root / data_set.pickle_folder / file for file in data_set.pickle_files[split]]
    binaries = [root / data_set.binary_folder / file for file in data_set.binary_files[split]]
    if not all(path.is_file() for path in binaries):
        if all(path.is_file() for path in pickles):
            return _read_pickles(pickles, data_set, split)
        _download(root, data_set)
    return _read_binaries(binaries, data_set, split)


def _read_binaries(paths: list[Path], data_set: DataSet, split: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    record = data_set.label_bytes + PIXELS
    expected = IMAGES[split] // len(paths) * record
    parts = []
    for path in paths:
        content = path.read_bytes()
        if len(content) != expected:
            raise DataError(f"{path} is damaged: {len(content)} bytes instead of {expected}; {_remedy(path)}")
        parts.append(np.frombuffer(content, np.uint8).reshape(-1, record))
    records = np.concatenate(parts)
    labels = records[:, data_set.label_bytes - 1].copy()
    if labels.max() >= data_set.classes:
        raise DataError(
            f"{paths[0].parent} is damaged: class {labels.max()} of {data_set.classes}; {_remedy(paths[0])}"
        )
    return records[:, data_set.label_bytes :].reshape(-1, 3, 32, 32).copy(), labels


def _read_pickles(paths: list[Path], data_set: DataSet, split: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images, labels = [], []
    for path in paths:
        content = path.read_bytes()
        expected = data_set.pickle_files[split][path.name]
        # Unpickling runs what the file says: only the published files are trusted.
        if checksum(content) != expected:
            raise DataError(f"{path} is damaged: MD5 {checksum(content)} instead of {expected}; {_remedy(path)}")
        batch = pickle.loads(content, encoding="latin1")
        images.append(np.asarray(batch["data"], np.uint8).reshape(-1, 3, 32, 32))
        labels.append(np.asarray(batch[data_set.pickle_labels], np.uint8))
    return np.concatenate(images), np.concatenate(labels)


def _remedy(path: Path) -> str:
    return f"delete the folder {path.parent} to have it downloaded again"


def _download(root: Path, data_set: DataSet) -> None:
    wanted = f"{data_set.binary_folder} nor {data_set.pickle_folder}"
    print(f"downloading {data_set.archive} into {root}", flush=True)
    try:
        content = fetch(data_set.archive)
    except DataError as error:
        raise DataError(
            f"{root} has neither {wanted} complete, and the data set could not be downloaded: "
            f"{data_set.archive}: {error}; unpack the archive into {root} yourself"
        ) from error
    if checksum(content) != data_set.archive_checksum:
        raise DataError(f"{data_set.archive}: the download is damaged (MD5 {checksum(content)}), try again")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(root, filter="data")
