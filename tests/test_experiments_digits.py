"""Digits and MNIST6-180: what the images are, which of them count as which class, and what demos need for them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from experiments.digits import SIX_CLASSES, both_ways_up, bundled_digits, half_turned, only_sixes


def test_bundled_digits_have_values_from_0_to_1() -> None:
    images, labels = bundled_digits()
    assert images.shape == (1797, 1, 8, 8)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert (float(images.min()), float(images.max())) == (0, 1)
    assert len(only_sixes((images, labels))) == int((labels == 6).sum()) == 181


def test_a_turned_six_is_of_class_1() -> None:
    assert SIX_CLASSES == ("upright", "turned")
    sixes = torch.rand(11, 1, 5, 5)
    images, labels = half_turned(sixes, torch.Generator().manual_seed(0))
    assert int(labels.sum()) == 5
    for six, image, label in zip(sixes, images, labels, strict=True):
        assert torch.equal(image, six.rot90(2, (1, 2)) if label else six)


def test_both_ways_up_is_upright_then_turned() -> None:
    sixes = torch.rand(3, 1, 5, 5)
    images, labels = both_ways_up(sixes)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.equal(images, torch.cat([sixes, sixes.rot90(2, (2, 3))]))


@pytest.mark.slow
def test_what_demos_take_needs_no_package_of_the_experiments() -> None:
    """The packages are those that only the extra has. tomli is one: Python 3.10 needs it to read rows."""
    blocked = "for name in ('lightning', 'kornia', 'sklearn', 'tomli', 'tomllib'): sys.modules[name] = None"
    imports = "import experiments.digits, experiments.mean_and_error"
    code = f"import sys\n{blocked}\n{imports}"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
