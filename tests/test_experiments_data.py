"""Data files read alike, damaged and missing ones named; splits that share no image; batches and augmentation."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments import cifar_files, mnist_files
from experiments.augmentation import Augmentation
from experiments.batches import Batches, Examples
from experiments.configuration import Configuration
from experiments.data_files import DataError
from experiments.tasks import load_task

IMAGES = 20


def _refuse(address: str, timeout: float) -> None:
    raise OSError("no network")


@pytest.fixture(autouse=True)
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets of a few images, and no network."""
    monkeypatch.setattr(cifar_files, "IMAGES", {"train": IMAGES, "test": IMAGES})
    monkeypatch.setattr("experiments.data_files.urlopen", _refuse)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def draw(name: str) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (IMAGES, 3, 32, 32), dtype=np.uint8)
    return pixels, generator.integers(0, cifar_files.DATA_SETS[name].classes, IMAGES, dtype=np.uint8)


def write_binaries(root: Path, name: str) -> Path:
    """As the data sets' own page describes the format: label bytes, then the pixels plane by plane."""
    pixels, labels = draw(name)
    coarse = [np.full((IMAGES, 1), 77, np.uint8)] if name == "cifar100" else []
    records = np.concatenate([*coarse, labels[:, None], pixels.reshape(IMAGES, -1)], axis=1)
    folder = root / cifar_files.DATA_SETS[name].binary_folder
    folder.mkdir(parents=True)
    for files in cifar_files.DATA_SETS[name].binary_files.values():
        for file, part in zip(files, np.split(records, len(files)), strict=True):
            (folder / file).write_bytes(part.tobytes())
    return folder


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_binaries_hold_what_their_page_says(tmp_path: Path, name: str) -> None:
    write_binaries(tmp_path, name)
    for split in ("train", "test"):
        for found, drawn in zip(cifar_files.cifar_split(tmp_path, name, split), draw(name), strict=True):
            np.testing.assert_array_equal(found, drawn)


def write_mnist(root: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Twenty images as LeCun's page describes the format, half of them sixes; returns these."""
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, 28, 28), dtype=np.uint8)
    labels = np.where(np.arange(IMAGES) % 2, 6, 3).astype(np.uint8)
    checksums = {}
    for split in ("train", "t10k"):
        for name, array in ((f"{split}-images-idx3-ubyte", pixels), (f"{split}-labels-idx1-ubyte", labels)):
            content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
            (root / f"{name}.gz").write_bytes(gzip.compress(content))
            checksums[name] = md5(content)
    monkeypatch.setattr(mnist_files, "CHECKSUMS", checksums)
    return pixels[1::2]


def turned(images: Tensor) -> Tensor:
    return images.rot90(2, (2, 3))


def test_sixes_are_half_turned_and_tested_both_ways_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sixes = torch.from_numpy(write_mnist(tmp_path, monkeypatch)).unsqueeze(1)
    task = load_task(Configuration(rotations=8, task="mnist6-180"), tmp_path)
    assert (len(task.train), len(task.validation), len(task.test)) == (9, 2, 20)
    for part in (task.train, task.validation, task.test):
        upright = torch.where(part.labels.bool().view(-1, 1, 1, 1), turned(part.images), part.images)
        assert all(any(torch.equal(image, six) for six in sixes) for image in upright)
    assert task.train.labels.sum() in (4, 5)
    assert torch.equal(turned(task.test.images[:10]), task.test.images[10:])
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz: damaged .*; delete it"):
        mnist_files.mnist_split(tmp_path, "train")
    path.unlink()
    with pytest.raises(DataError, match=r"is in none of .*s3\.amazonaws\.com/mnist/\S+: no network.*; put MNIST"):
        mnist_files.mnist_split(tmp_path, "train")


def keys(examples: Examples) -> set[bytes]:
    return {image.numpy().tobytes() for image in examples.images}


def test_no_image_is_in_two_splits_and_a_smaller_run_takes_part_of_each() -> None:
    whole = load_task(Configuration(rotations=4, task="digits"), None)
    parts = [keys(part) for part in (whole.train, whole.validation, whole.test)]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 1797
    assert len(parts[1]) == round(0.1 * (len(parts[0]) + len(parts[1])))
    small = load_task(Configuration(rotations=4, task="digits", images=50, evaluation_images=30), None)
    for part, count, all_keys in zip((small.train, small.validation, small.test), (50, 30, 30), parts, strict=True):
        assert len(part) == count
        assert keys(part) <= all_keys


COUNT = 22
EXAMPLES = Examples(torch.arange(COUNT).to(torch.uint8).view(-1, 1, 1, 1), torch.arange(COUNT))


def test_processes_train_on_different_images_in_as_many_whole_batches_and_evaluate_all() -> None:
    for seed, size, steps, images in ((0, 2, 3, 18), (None, 5, 2, COUNT)):
        parts = [Batches(EXAMPLES, size, seed=seed, rank=rank, world_size=3) for rank in range(3)]
        drawn = [label for part in parts for _, labels in part for label in labels.tolist()]
        assert all(torch.equal(images.flatten().long(), labels) for part in parts for images, labels in part)
        assert len(set(drawn)) == len(drawn) == images
        assert {len(list(part)) for part in parts} == {len(part) for part in parts} == {steps}


def test_augmentation_is_drawn_by_its_seed_mirrors_where_it_may_and_leaves_other_draws_alone() -> None:
    pytest.importorskip("kornia")
    images, augmentation, before = torch.rand(40, 3, 8, 8), Augmentation(8, False), torch.get_rng_state()
    results = augmentation(images, 1, 2)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(augmentation(images, 1, 2), results)
    assert not torch.equal(augmentation(images, 2, 1), results)
    for flips in (True, False):
        columns = Augmentation(8, flips)(torch.arange(1.0, 9).expand(40, 3, 8, 8), 1, 2).amax((1, 2))
        is_mirrored = ((columns.diff() < 0) & (columns[:, 1:] > 0)).any(1)  # falls to the right, where it was to rise
        assert is_mirrored.any() == flips
