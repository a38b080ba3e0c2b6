"""What decides about softness: in process groups, from DataLoaders, with its progress, and in bounded memory."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from errors import ROUNDING
from escnn import gspaces
from evidence_networks import Classifier, images
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from two_processes import in_two_processes

from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence, robustness_report
from escnn_relaxed.learning import TrainingTrials, which_softness_helps
from escnn_relaxed.learning.likelihoods import Likelihood
from escnn_relaxed.measure import pose_test, poses
from escnn_relaxed.measure.poses import _small
from escnn_relaxed.network.relaxed_layers import relaxed_layers

D4 = gspaces.flipRot2dOnR2(4)


def helps(network: nn.Module, given: Tensor, labels: Tensor) -> TrainingTrials:
    """Copies that take one step alike, and are compared by a function."""

    def losses(copy: nn.Module) -> Tensor:
        return binary_cross_entropy_with_logits(copy(given), labels, reduction="none").flatten()

    def train(copy: nn.Module) -> None:
        losses(copy).mean().backward()
        with torch.no_grad():
            for parameter in copy.parameters():
                parameter -= 0.1 * parameter.grad

    return which_softness_helps(network, train, losses)


def decided(network: nn.Module, evidence: SoftnessEvidence, given: Tensor, labels: Tensor) -> list[list[Any]]:
    """The trials of both deciders; the network is soft again after them."""
    found = [[row.subgroup, row.rise, row.error, row.is_hardened] for row in evidence.harden(given, labels)]
    for layer in relaxed_layers(network).values():
        layer.hardened = ()
    return found + [[row.subgroup, row.rise, row.error, row.helps] for row in helps(network, given, labels).rows]


def _decide(rank: int, network: nn.Module, given: Tensor, labels: Tensor) -> dict[str, Any]:
    evidence, wrapped = SoftnessEvidence(network, 1000, "binary"), DistributedDataParallel(network)
    evidence.update(given)
    found = {}
    if rank == 0:
        # The other process calls neither.
        found["alone"] = decided(network, evidence, given, labels)
        helps(wrapped, given, labels)
    found["together"] = decided(network, evidence, given, labels)
    return found


@pytest.mark.slow
def test_deciders_wait_for_no_process_and_count_each_image_once(tmp_path: Path) -> None:
    """Called by one process alone, and then by both with the same images."""
    torch.manual_seed(1)
    # Of one logit: the curvature does not depend on what is drawn.
    network, given = Classifier(classes=1), images(40)
    labels = (given.mean((1, 2, 3)) > 0).double()[:, None]
    first, second = in_two_processes(_decide, tmp_path, network, given, labels)
    evidence = SoftnessEvidence(network, 1000, "binary")
    evidence.update(given)
    expected = decided(network, evidence, given, labels)
    for found in (first["alone"], first["together"], second["together"]):
        assert [row[0] for row in found] == [row[0] for row in expected]
        assert [row[1:] for row in found] == [pytest.approx(row[1:], rel=1e-6) for row in expected]


def loader_of(*tensors: Tensor, **arguments: Any) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), **{"batch_size": 7, **arguments})


@pytest.mark.parametrize("shuffle", [False, True])
def test_loaders_decide_as_their_tensors_do(shuffle: bool) -> None:
    torch.manual_seed(1)
    network, given = Classifier(classes=3), images(40)
    labels = torch.randint(0, 3, (40,))
    loader = loader_of(given, labels, shuffle=shuffle)
    evidence = SoftnessEvidence(network, 100)
    evidence.update(given)
    found = []
    for arguments in ((given, labels), (loader,)):
        for layer in relaxed_layers(network).values():
            layer.hardened = ()
        found.append([(row.rise, row.error, row.is_hardened) for row in evidence.harden(*arguments)])
    assert [row[:2] for row in found[1]] == [pytest.approx(row[:2], rel=1e-6) for row in found[0]]

    for layer in relaxed_layers(network).values():
        layer.hardened = ()

    def losses(copy: nn.Module) -> Tensor:
        return nn.functional.cross_entropy(copy(given), labels, reduction="none")

    state = torch.get_rng_state()
    trials = [which_softness_helps(network, lambda copy: None, each) for each in (losses, (given, labels), loader)]
    assert torch.equal(torch.get_rng_state(), state)
    for other in trials[1:]:
        pairs = zip(other.rows, trials[0].rows, strict=True)
        assert all(row.rise == pytest.approx(known.rise, abs=ROUNDING) for row, known in pairs)
        # The images of two copies are compared one by one, in whatever order.
        pairs = zip(other.rows, trials[0].rows, strict=True)
        assert all(row.error == pytest.approx(known.error, abs=ROUNDING) for row, known in pairs)


class Returning(nn.Module):
    """A classifier that returns its logits within something."""

    def __init__(self, inner: nn.Module, within: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.within = inner, within

    def forward(self, given: Tensor) -> Any:
        return self.within(self.inner(given))


def test_logits_are_picked_by_output_where_a_network_returns_more() -> None:
    torch.manual_seed(1)
    network, given = Classifier(classes=3), images(40)
    held_out = given, torch.randint(0, 3, (40,))
    known = which_softness_helps(network, lambda copy: None, held_out).rows
    in_dict, in_tuple = (
        Returning(network, lambda found: {"logits": found}),
        Returning(network, lambda found: (0, found)),
    )
    for other, output in ((in_dict, lambda returned: returned["logits"]), (in_tuple, lambda returned: returned[1])):
        assert which_softness_helps(other, lambda copy: None, held_out, output=output).rows == known
        with pytest.raises(TypeError, match=r"network: its output must be a tensor .* by output="):
            which_softness_helps(other, lambda copy: None, held_out)
    for output, losses, error, text in (
        ("logits", held_out, TypeError, "output must be"),
        (len, lambda copy: torch.ones(4), ValueError, "output: losses is a function here"),
    ):
        with pytest.raises(error, match=text):
            which_softness_helps(network, lambda copy: None, losses, output=output)


def test_robustness_of_a_loader_is_that_of_its_images() -> None:
    class Brightest(nn.Module):
        def forward(self, given: Tensor) -> Tensor:
            return given.sum((1, 2))

    given, labels = torch.rand(30, 1, 5, 5), torch.randint(0, 5, (30,))
    expected = robustness_report(Brightest(), given, labels, in_type=small.field_type("C4", "trivial"), batch_size=4)
    found = robustness_report(
        Brightest(), loader_of(given, labels), in_type=small.field_type("C4", "trivial"), batch_size=4
    )
    assert (found.accuracy, found.images) == (expected.accuracy, 30)
    assert [(row.accuracy, row.agreement) for row in found.rows] == [
        (row.accuracy, row.agreement) for row in expected.rows
    ]
    assert [row.error for row in found.rows] == pytest.approx([row.error for row in expected.rows], rel=1e-6)


def test_poses_of_a_loader_are_those_of_its_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poses, "_STEPS", 5)
    given, sources = torch.randn(60, 1, 8, 8), torch.arange(60)
    expected = pose_test(given, D4)
    state = torch.get_rng_state()
    for loader in (DataLoader(given, batch_size=7), loader_of(given), loader_of(given, sources)):
        assert pose_test(loader, D4, sources=sources) == expected
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match="sources must be in the order of the images"):
        pose_test(loader_of(given, shuffle=True), D4, sources=sources)


@pytest.mark.parametrize("kind", ["subset", "weighted", "batches", "distributed"])
def test_sources_beside_a_loader_that_draws_its_images_are_refused(kind: str) -> None:
    given, sources = TensorDataset(torch.randn(60, 1, 8, 8)), torch.arange(60)
    arguments: dict[str, Any] = {
        "subset": {"sampler": SubsetRandomSampler(range(60))},
        "weighted": {"sampler": WeightedRandomSampler([1.0] * 60, 60)},
        "batches": {"batch_sampler": BatchSampler(RandomSampler(given), 10, drop_last=False)},
        "distributed": {"sampler": DistributedSampler(given, num_replicas=1, rank=0)},
    }
    with pytest.raises(ValueError, match="sources must be in the order of the images"):
        pose_test(DataLoader(given, **arguments[kind]), D4, sources=sources)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32])
def test_classes_of_other_integers_are_those_classes(kind: torch.dtype) -> None:
    likelihood, output = Likelihood("categorical", 255), torch.randn(4, 3, 2, 2, dtype=torch.float64)
    targets = torch.tensor([0, 1, 2, 255]).view(4, 1, 1).expand(4, 2, 2)
    assert torch.equal(likelihood.losses(output, targets.to(kind)), likelihood.losses(output, targets))


class Named(Dataset):
    """Images and labels by name."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return {"image": torch.zeros(1, 8, 8), "label": torch.tensor(0)}


LABELS = torch.zeros(60, dtype=torch.long)
LAYER = RelaxedR2Conv(*[small.field_type("D4", "trivial")] * 2, 3)
TAKERS: dict[str, tuple[str, Callable[[DataLoader], object]]] = {
    "harden": ("inputs", lambda loader: updated().harden(loader)),
    "trials": ("losses", lambda loader: which_softness_helps(LAYER, lambda copy: None, loader)),
    "robustness": ("data", lambda loader: robustness_report(LAYER, loader)),
    "poses": ("images", lambda loader: pose_test(loader, D4)),
}


def updated() -> SoftnessEvidence:
    evidence = SoftnessEvidence(LAYER, 100, "gaussian")
    evidence.update(torch.randn(12, 1, 8, 8), torch.randn(12, 1, 6, 6))
    return evidence


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(
    ("loader", "error", "text"),
    [
        (DataLoader(Named(), 7), TypeError, r"batches of the DataLoader must be \(images, labels\), got a dict of"),
        (loader_of(torch.zeros(60, 1, 8, 8), LABELS, LABELS), TypeError, "got a list of 3"),
        (loader_of(torch.zeros(0, 1, 8, 8), LABELS[:0]), ValueError, "got an empty DataLoader|must be 40 or more"),
        (
            DataLoader(TensorDataset(LABELS, LABELS), 7, collate_fn=lambda pairs: (torch.zeros(3, 1, 8, 8), LABELS)),
            ValueError,
            "a batch must have a label for each of 3 images",
        ),
    ],
    ids=("dict", "three", "empty", "unequal"),
)
def test_batches_that_cannot_be_meant_are_refused(
    taker: str, loader: DataLoader, error: type[Exception], text: str
) -> None:
    name, take = TAKERS[taker]
    with pytest.raises(error, match=text) as caught:
        take(loader)
    assert str(caught.value).startswith(name)


def test_labels_beside_a_loader_are_refused() -> None:
    loader = loader_of(torch.zeros(60, 1, 8, 8), LABELS)
    with pytest.raises(ValueError, match="labels must be left out where data is a DataLoader"):
        robustness_report(LAYER, loader, LABELS)
    with pytest.raises(ValueError, match="targets must be left out where inputs is a DataLoader"):
        updated().harden(loader, LABELS)


@pytest.mark.parametrize("side", [65, 100, 224])
def test_large_images_are_made_smaller_alike_in_all_poses(side: int) -> None:
    given = torch.rand(40, 2, side, side, dtype=torch.float64)
    found = _small(given, D4)
    assert (found.shape, found.dtype) == ((40, 2, 64, 64), torch.float32)
    # A few roundings of single precision, of values of size 1.
    assert _small(given.rot90(1, (2, 3)), D4).sub(found.rot90(1, (2, 3))).abs().max() < 1e-5
    assert _small(given.flip(3), D4).sub(found.flip(3)).abs().max() < 1e-5


@pytest.mark.parametrize(("shape", "gspace"), [((8, 8), D4), ((64, 64), D4), ((16,) * 3, gspaces.octaOnR3())])
def test_small_images_stay_as_they_are(shape: tuple[int, ...], gspace: Any) -> None:
    given = torch.rand(40, 1, *shape)
    before = given.clone()
    found = _small(given, gspace)
    assert torch.equal(given, before)
    torch.testing.assert_close(found, (given - given.mean()) / given.std())
    assert _small(torch.rand(40, 1, *(2 * n for n in shape)), D4 if len(shape) == 2 else gspace).shape[2:] == (
        (16,) * 3 if len(shape) == 3 else (min(64, 2 * shape[0]),) * 2
    )


def test_poses_of_large_images_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poses, "_STEPS", 20)
    given = torch.randn(60, 1, 96, 96)
    given[:, :, :20] += 2
    assert pose_test(given, gspaces.rot2dOnR2(4)).equal == {"rotation": False}


class Terminal:
    """A standard error that is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


@pytest.mark.parametrize("has_rich", [True, False])
@pytest.mark.parametrize("verbose", [True, False])
def test_a_terminal_shows_progress_unless_it_is_not_wanted(
    has_rich: bool, verbose: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if has_rich:
        pytest.importorskip("rich")
    else:
        for name in ("rich", "rich.console", "rich.errors", "rich.progress"):
            monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    monkeypatch.setattr(poses, "_STEPS", 2)
    terminal = on_terminal(monkeypatch)
    pose_test(torch.randn(60, 1, 8, 8), D4, verbose=verbose)
    assert ("pose_test" in terminal.text) == verbose
    terminal.text = ""
    layer = RelaxedR2Conv(*[small.field_type("D4", "trivial")] * 2, 3, relax=("rotation", "reflection"))
    which_softness_helps(layer, lambda copy: None, lambda copy: torch.ones(4), verbose=verbose)
    lines = [
        "which_softness_helps: training 1 of at most 6",
        "which_softness_helps: training 2 of at most 6, strict in rotation",
        "which_softness_helps: training 3 of at most 6, strict in reflection",
        "which_softness_helps: training 4 of at most 6, strict in rotation, reflection",
    ]
    assert terminal.text.splitlines() == (lines if verbose else [])
    assert capsys.readouterr().out == ""


def test_files_and_pipes_show_no_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poses, "_STEPS", 2)
    pose_test(torch.randn(60, 1, 8, 8), D4)
    which_softness_helps(LAYER, lambda copy: None, lambda copy: torch.ones(4))
    assert capsys.readouterr() == ("", "")


def test_progress_stands_beside_a_bar_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    console, rich_progress = (pytest.importorskip(f"rich.{name}") for name in ("console", "progress"))
    monkeypatch.setattr(poses, "_STEPS", 2)
    terminal = on_terminal(monkeypatch)
    with rich_progress.Progress(console=console.Console(stderr=True)):
        pose_test(torch.randn(60, 1, 8, 8), D4)
    assert terminal.text


def test_the_bar_counts_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it ends when the work does."""
    rich_progress = pytest.importorskip("rich.progress")
    monkeypatch.setattr(poses, "_STEPS", 2)
    on_terminal(monkeypatch)
    tasks: list[Any] = []
    stop = rich_progress.Progress.stop
    monkeypatch.setattr(rich_progress.Progress, "stop", lambda bar: (tasks.extend(bar.tasks), stop(bar)))
    pose_test(torch.randn(60, 1, 8, 8), D4)
    (task,) = tasks
    assert task.completed == task.total == 8
