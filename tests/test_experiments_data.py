"""Data files: formats read alike, damaged and missing ones named; splits that share no image."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import cifar_files, data_files, mnist_files
from experiments.batches import Examples
from experiments.configuration import Configuration
from experiments.data_files import DataError
from experiments.tasks import load_task

IMAGES = 20


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets of a few images, and no network."""
    monkeypatch.setattr(cifar_files, "IMAGES", {"train": IMAGES, "test": IMAGES})
    monkeypatch.setattr("experiments.data_files.urlopen", _refuse)


def _refuse(address: str, timeout: float) -> None:
    raise OSError("no network")


def draw(name: str) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (IMAGES, 3, 32, 32), dtype=np.uint8)
    return pixels, generator.integers(0, cifar_files.DATA_SETS[name].classes, IMAGES, dtype=np.uint8)


def write_binaries(root: Path, name: str) -> None:
    """As the data sets' own page describes the format: label bytes, then the pixels plane by plane."""
    pixels, labels = draw(name)
    coarse = [np.full((IMAGES, 1), 77, np.uint8)] if name == "cifar100" else []
    records = np.concatenate([*coarse, labels[:, None], pixels.reshape(IMAGES, -1)], axis=1)
    folder = root / cifar_files.DATA_SETS[name].binary_folder
    folder.mkdir(parents=True)
    for files in cifar_files.DATA_SETS[name].binary_files.values():
        for file, part in zip(files, np.split(records, len(files)), strict=True):
            (folder / file).write_bytes(part.tobytes())


def write_pickles(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data_set = cifar_files.DATA_SETS[name]
    pixels, labels = draw(name)
    folder = root / data_set.pickle_folder
    folder.mkdir(parents=True)
    checksums = {}
    for split, files in data_set.pickle_files.items():
        checksums[split] = {}
        for number, file in enumerate(files):
            part = slice(number * IMAGES // len(files), (number + 1) * IMAGES // len(files))
            content = {"data": pixels[part].reshape(-1, 3072), data_set.pickle_labels: labels[part].tolist()}
            (folder / file).write_bytes(pickle.dumps(content))
            checksums[split][file] = hashlib.md5((folder / file).read_bytes()).hexdigest()
    monkeypatch.setitem(cifar_files.DATA_SETS, name, replace(data_set, pickle_files=checksums))


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_binaries_and_pickles_hold_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, split: str
) -> None:
    write_binaries(tmp_path / "binary", name)
    write_pickles(tmp_path / "pickle", name, monkeypatch)
    for folder in ("binary", "pickle"):
        for found, drawn in zip(cifar_files.cifar_split(tmp_path / folder, name, split), draw(name), strict=True):
            np.testing.assert_array_equal(found, drawn)


@pytest.mark.usefixtures("few_images")
def test_a_cut_binary_is_named_with_its_size(tmp_path: Path) -> None:
    write_binaries(tmp_path, "cifar10")
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        DataError, match=r"data_batch_3.bin is damaged: 12291 bytes instead of 12292; delete the folder"
    ):
        cifar_files.cifar_split(tmp_path, "cifar10", "train")


@pytest.mark.usefixtures("few_images")
def test_a_class_that_does_not_exist_is_damage(tmp_path: Path) -> None:
    write_binaries(tmp_path, "cifar10")
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(bytes([10]) + path.read_bytes()[1:])
    with pytest.raises(DataError, match="class 10 of 10"):
        cifar_files.cifar_split(tmp_path, "cifar10", "test")


@pytest.mark.usefixtures("few_images")
def test_a_pickle_that_is_not_the_published_one_is_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pickles(tmp_path, "cifar10", monkeypatch)

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "sprung",))

    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match=r"test_batch is damaged: MD5"):
        cifar_files.cifar_split(tmp_path, "cifar10", "test")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.usefixtures("few_images")
def test_missing_files_are_named_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"has neither cifar-100-binary nor cifar-100-python.*no network; unpack"):
        cifar_files.cifar_split(tmp_path, "cifar100", "train")
    assert "downloading" in capsys.readouterr().out


@pytest.mark.usefixtures("few_images")
def test_a_missing_data_set_is_downloaded_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_binaries(tmp_path / "source", "cifar10")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(tmp_path / "source" / "cifar-10-batches-bin", "cifar-10-batches-bin")
    monkeypatch.setattr(cifar_files, "fetch", lambda address: buffer.getvalue())
    with pytest.raises(DataError, match="the download is damaged"):
        cifar_files.cifar_split(tmp_path / "new", "cifar10", "train")
    data_set = replace(cifar_files.DATA_SETS["cifar10"], archive_checksum=data_files.checksum(buffer.getvalue()))
    monkeypatch.setitem(cifar_files.DATA_SETS, "cifar10", data_set)
    images, _ = cifar_files.cifar_split(tmp_path / "new", "cifar10", "train")
    np.testing.assert_array_equal(images, draw("cifar10")[0])


def idx(array: np.ndarray) -> bytes:
    """As LeCun's page describes the format."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(root: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Twenty images, half of them sixes; returns these."""
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, 28, 28), dtype=np.uint8)
    labels = np.where(np.arange(IMAGES) % 2, 6, 3)
    checksums = {}
    for split in ("train", "t10k"):
        for name, array in ((f"{split}-images-idx3-ubyte", pixels), (f"{split}-labels-idx1-ubyte", labels)):
            (root / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            checksums[name] = hashlib.md5(idx(array)).hexdigest()
    monkeypatch.setattr(mnist_files, "CHECKSUMS", checksums)
    return pixels[1::2]


def test_a_damaged_idx_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path, monkeypatch)
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz: damaged .*; delete it"):
        mnist_files.mnist_split(tmp_path, "train")


@pytest.mark.usefixtures("few_images")
def test_missing_idx_files_are_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is in none of .*s3\.amazonaws\.com/mnist/\S+: no network.*; put MNIST"):
        mnist_files.mnist_split(tmp_path, "train")


def test_sixes_are_half_turned_and_tested_both_ways_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sixes = torch.from_numpy(write_mnist(tmp_path, monkeypatch)).unsqueeze(1)
    task = load_task(Configuration(rotations=8, task="mnist6-180"), tmp_path)
    assert (len(task.train), len(task.validation), len(task.test)) == (9, 2, 20)
    for part in (task.train, task.validation, task.test):
        upright = torch.where(part.labels.bool().view(-1, 1, 1, 1), part.images.rot90(2, (2, 3)), part.images)
        assert all(any(torch.equal(image, six) for six in sixes) for image in upright)
    assert task.train.labels.sum() in (4, 5)
    assert torch.equal(task.test.images[:10].rot90(2, (2, 3)), task.test.images[10:])


def keys(examples: Examples) -> set[bytes]:
    return {image.numpy().tobytes() for image in examples.images}


def test_no_image_is_in_two_splits_and_all_are_in_one() -> None:
    task = load_task(Configuration(rotations=4, task="digits"), None)
    parts = [keys(part) for part in (task.train, task.validation, task.test)]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 1797
    assert len(parts[1]) == round(0.1 * (len(parts[0]) + len(parts[1])))


def test_a_smaller_run_takes_part_of_each_split() -> None:
    whole = load_task(Configuration(rotations=4, task="digits"), None)
    small = load_task(Configuration(rotations=4, task="digits", images=50, evaluation_images=30), None)
    for split, count in (("train", 50), ("validation", 30), ("test", 30)):
        part = getattr(small, split)
        assert len(part) == count
        assert keys(part) <= keys(getattr(whole, split))


def test_more_images_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="images must be at most 1078 with digits, got 2000"):
        load_task(Configuration(rotations=4, task="digits", images=2000), None)


@pytest.mark.parametrize("task", ["cifar10", "cifar100", "mnist6-180"])
def test_data_that_must_be_given_are_asked_for(task: str) -> None:
    with pytest.raises(DataError, match=f"'{task}' needs --data"):
        load_task(Configuration(rotations=4, task=task), None)
