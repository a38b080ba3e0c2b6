"""Natural images and few digits: networks of one size, runs that are trained once, tables and a picture of them."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmark_runs import run_here
from torch import Tensor

from benchmarks.natural import cifar, digits, networks, report, runs
from benchmarks.shared.run_log import Log

SMALL_DIGITS = dict.fromkeys(networks.DIGITS, (1, 1, 1, 1))
SMALL_CIFAR = {group: dict.fromkeys(networks.WAYS, (1, 1, 1)) for group in networks.CIFAR}


@pytest.fixture
def small_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "DIGITS", SMALL_DIGITS)
    monkeypatch.setattr(digits, "DIGITS", SMALL_DIGITS)
    monkeypatch.setattr(digits, "EPOCHS", {64: 1, 128: 1})
    monkeypatch.setattr(digits, "CHOOSING", ("within 60°", 64))
    monkeypatch.setattr(digits, "VALIDATION", 16)
    monkeypatch.setattr(digits, "RATES", (1e-2,))
    digits.load.cache_clear()


@pytest.fixture
def small_cifar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise in the place of CIFAR-10, few images, one epoch, networks of one field a stage."""

    def noise(root: Path, name: str, split: str) -> tuple[np.ndarray, np.ndarray]:
        generator = np.random.default_rng(len(split))
        count = 144 if split == "train" else 8
        return generator.integers(0, 256, (count, 3, 32, 32), np.uint8), np.arange(count, dtype=np.uint8) % 10

    monkeypatch.setattr(cifar, "cifar_split", noise)
    monkeypatch.setattr(networks, "CIFAR", SMALL_CIFAR)
    monkeypatch.setattr(cifar, "CIFAR", SMALL_CIFAR)
    monkeypatch.setattr(cifar, "EPOCHS", {64: 2, 128: 2})
    for name, value in {"CHOOSING_IMAGES": 64, "CHOOSING_EPOCHS": 1, "VALIDATION": 16, "RATES": (1e-2,)}.items():
        monkeypatch.setattr(cifar, name, value)
    ways = (*cifar.MAIN, *cifar.REST)
    monkeypatch.setattr(cifar, "ORDER", (("C4", (128,), ways, (0,)), ("D4", (64,), ("R2Conv",), (0, 1))))
    cifar.load.cache_clear()


def lines(folder: Path, name: str) -> list[dict[str, object]]:
    return [json.loads(json.loads(line)["run"]) for line in (folder / name).read_text().splitlines()]


def test_networks_of_digits_have_as_many_parameters() -> None:
    counts = {way: networks.parameters(networks.build_digits(way)) for way in networks.DIGITS}
    assert max(counts.values()) / min(counts.values()) < 1.01, counts


@pytest.mark.slow
@pytest.mark.parametrize("group", networks.CIFAR)
def test_networks_of_cifar_have_as_many_parameters(group: str) -> None:
    counts = {way: networks.parameters(networks.build_cifar(group, way)) for way in networks.WAYS}
    assert all(abs(count / networks.CIFAR_PARAMETERS - 1) < 0.03 for count in counts.values()), counts


def test_search_keeps_the_shape_and_comes_near_the_number_of_parameters() -> None:
    def build(widths: tuple[int, ...]) -> torch.nn.Module:
        return torch.nn.Linear(*widths, bias=False)

    # Of 49 × 102 and 50 × 100, both within 2 % of 5,000, the second one keeps the shape.
    assert networks.search(build, (1, 2), 5000) == (50, 100)


@pytest.mark.parametrize("way", networks.WAYS)
def test_a_residual_network_has_twelve_convolutions_of_its_way_and_two_shortcuts(way: str) -> None:
    network = networks.build_cifar("C4", way, (1, 2, 3))
    layer = networks.WAYS[way].layer
    convolutions = [module for module in network.modules() if isinstance(module, (layer, networks.R2Conv))]
    own = [module for module in convolutions if isinstance(module, layer)]
    assert len(convolutions) == 14
    assert len(own) == (5 if networks.WAYS[way].is_in_last_stage else 14)
    assert network(torch.randn(2, 3, 33, 33)).shape == (2, 10)


@torch.no_grad()
def test_residual_network_of_r2conv_is_invariant_and_a_plain_one_is_not() -> None:
    images = torch.randn(2, 3, 33, 33)

    def change(group: str, way: str) -> float:
        network = networks.build_cifar(group, way, (2, 2, 2)).eval()
        logits = network(images)
        return float((network(images.rot90(1, (2, 3)).flip(3)) - logits).norm() / logits.norm())

    # Strides take every other pixel of an odd side, so that the error is that of rounding.
    assert change("D4", "R2Conv") < 1e-4
    assert change("D4", "Conv2d") > 1e-3


def test_digits_are_trained_once_and_told(tmp_path: Path, small_digits: None) -> None:
    arguments = ["--sizes", "64", "--seeds", "0,1", "--output", str(tmp_path)]
    told = run_here("natural.digits", *arguments)
    found = lines(tmp_path, digits.LOG)
    # Three tasks and two seeds of each way; the run by which the rate is chosen is one of them.
    assert len(found) == len(told.splitlines()) == 3 * 2 * len(networks.DIGITS)
    rest = found[len(networks.DIGITS) :]
    assert [run["seed"] for run in rest] == sorted(run["seed"] for run in rest)
    assert run_here("natural.digits", *arguments) == ""
    picture = tmp_path / "picture.png"
    text = run_here("natural.report", "--results", str(tmp_path), "--picture", str(picture))
    assert (tmp_path / "digits.md").read_text().strip() in text
    assert "| within 60° | 64 |" in text
    assert text.count("| `RelaxedR2Conv` − `R2Conv` |") == 3
    assert "0.01 for `Conv2d`" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_smaller_sets_of_digits_are_parts_of_larger_ones(small_digits: None) -> None:
    (images, _), _, test = digits.load("turned", 0, None)
    assert len(images) == 128
    assert len(test[0])
    assert digits.load("turned", 0, None)[0][0] is images


def test_images_of_cifar_are_trained_once_and_told(tmp_path: Path, small_cifar: None) -> None:
    arguments = ["--data", str(tmp_path), "--output", str(tmp_path)]
    run_here("natural.cifar", *arguments)
    found = lines(tmp_path, cifar.LOG)
    ways = len(cifar.MAIN) + len(cifar.REST)
    # The rate of each way and C4 in both tasks, then D4 of one way in both tasks with two seeds.
    assert [run["group"] for run in found] == ["C4"] * 3 * ways + ["D4"] * 4
    assert run_here("natural.cifar", *arguments) == ""
    picture = tmp_path / "picture.png"
    text = run_here("natural.report", "--results", str(tmp_path), "--picture", str(picture))
    assert (tmp_path / "cifar.md").read_text().strip() in text
    assert "| `PartialR2Conv` | " in text
    assert "| `Conv2d` | " in text
    assert not picture.exists()


def test_parts_of_cifar_are_asked_for(tmp_path: Path, small_cifar: None) -> None:
    chosen = ["--groups", "D4", "--ways", "R2Conv", "--tasks", "turned", "--seeds", "1"]
    run_here("natural.cifar", "--data", str(tmp_path), "--output", str(tmp_path), *chosen)
    runs_found = [(run["group"], run["way"], run["task"], run["seed"]) for run in lines(tmp_path, cifar.LOG)]
    assert runs_found == [("C4", "R2Conv", "upright", 0), ("D4", "R2Conv", "turned", 1)]


def posed(images: Tensor, task: str) -> Tensor:
    return cifar._posed(task, images, torch.Generator().manual_seed(0))


def test_a_turned_image_is_the_image_within_the_disk_at_its_angle() -> None:
    rows, columns = (torch.arange(32) - 15.5).view(-1, 1), (torch.arange(32) - 15.5).view(1, -1)
    slope = (rows + 0 * columns).expand(2, 3, 32, 32)
    turned = posed(slope, "turned")
    angles = (torch.rand(2, generator=torch.Generator().manual_seed(0)) * 2 - 1) * math.pi
    y, x = torch.meshgrid(torch.arange(33) - 16.0, torch.arange(33) - 16.0, indexing="ij")
    inside, outside = y**2 + x**2 < 15**2, y**2 + x**2 > 16**2
    for image, angle in zip(turned, angles, strict=True):
        # Bilinear interpolation has the values of a slope, to the rounding of float32 grids.
        torch.testing.assert_close(image[0][inside], (angle.sin() * x + angle.cos() * y)[inside], atol=1e-4, rtol=0)
        assert not image[:, outside].any()


def test_an_upright_image_is_as_it_is() -> None:
    images = torch.randn(2, 3, 32, 32)
    found = posed(images, "upright")
    assert torch.equal(found[:, :, :32, :32], images)
    assert not found[:, :, 32].any()
    assert not found[..., 32].any()


def test_an_augmented_image_is_one_of_the_shifted_or_flipped() -> None:
    images = torch.randn(1, 3, 33, 33)
    padded = [torch.nn.functional.pad(image, (4,) * 4) for image in (images, images.flip(3))]
    allowed = [one[..., i : i + 33, j : j + 33] for one in padded for i in range(9) for j in range(9)]
    found = [cifar.augmented(images) for _ in range(20)]
    assert all(any(torch.equal(one, other) for other in allowed) for one in found)
    assert len({one.sum().item() for one in found}) > 5


def test_training_waits_while_the_file_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "SECONDS_BETWEEN_LOOKS", 0.01)
    pause = tmp_path / "PAUSE"
    pause.touch()
    log = Log(tmp_path / "log.jsonl")
    trained = {"first": lambda: {"test": 1.0}}
    thread = threading.Thread(target=runs.train_missing, args=(trained, log, pause))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert not log.runs
    pause.unlink()
    thread.join(10)
    assert log.runs == {"first": {"test": 1.0}}


@pytest.mark.parametrize(("epoch", "first"), [(2, 30), (11, 33)])
def test_softness_is_learned_from_the_third_epoch_on(small_digits: None, epoch: int, first: int) -> None:
    steps = []
    network, images = networks.build_digits("RelaxedR2Conv, evidence"), torch.randn(20, 1, 33, 33)
    penalty, after_step = runs.learn_softness(network, images, epoch, lambda: steps.append(0))
    found = []
    for _ in range(first):
        found.append(penalty().item())
        after_step()
    assert len(steps) == first
    assert found == [0.0] * first
    assert penalty().item() > 0


def test_cells_say_how_many_seeds_they_are_of() -> None:
    three = {seed: {"test": 90.0 + seed} for seed in range(3)}
    assert report.cell(three, 3) == "91.00 ± 0.58"
    assert report.cell(three, 5) == "91.00 ± 0.58 (3)"
    assert report.cell({}, 5) == "–"
    assert report.difference(three, 3) == "+91.00 ± 0.58"
    assert report.difference({0: {"test": -2.0}}, 1) == "−2.00"
    assert report.differences(three, {2: {"test": 90.5}, 4: {"test": 0.0}}) == {2: {"test": 1.5}}


@pytest.mark.parametrize("name", report.SECTIONS)
def test_sections_are_those_of_the_lines(name: str) -> None:
    path = Path(__file__).parents[1] / "benchmarks" / "results" / "natural" / name
    assert path.with_suffix(".md").read_text(encoding="utf-8") == report.SECTIONS[name](Log(path))
