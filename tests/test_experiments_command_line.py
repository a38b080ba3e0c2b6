"""The command line and the rows: what they hold and pass on, and errors in a line."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from experiments.command_line import main
from experiments.configuration import Configuration, changes, override, read_row, row_names
from experiments.plans import PlannedRun, RunsFailedError, read_plan, run_all

ROOT = Path(__file__).parents[1]
ROWS = row_names()


def test_rows_are_listed_with_their_titles(capsys: pytest.CaptureFixture[str]) -> None:
    main(["rows"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ROWS
    assert lines[0].endswith("T(2), strict")


def test_there_is_a_row_for_each_of_the_papers_tables() -> None:
    rows = [read_row(name) for name in ROWS]
    learned = [row for row in rows if "learned" in row.name]
    # 11 of the first table, the toy problem's 3, and 6 values of λ for T(2) and three numbers of rotations.
    assert len([row for row in rows if row.published]) == 11 + 3 + 6 * 4
    assert len([row for row in rows if "seconds" in row.published]) == 11
    assert len(learned) == 6 * 4
    assert all(row.configuration.learn_relaxation for row in learned)
    assert all(row.configuration.penalty_weight == float(row.name.rpartition("-")[2]) for row in learned)
    assert len({row.configuration.digest() for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("name", "task", "published"),
    [
        ("t2-strict", "cifar10", [81.80, 0.48]),
        ("se2-4-partial", "cifar100", [46.69, 1.02]),
        ("se2-16-strict", "cifar10-augmented", [87.15, 0.02]),
        ("se2-4-learned-0.1", "cifar10", [83.70, 0.16]),
    ],
)
def test_published_accuracies_and_settings_are_those_of_the_paper(name: str, task: str, published: list[float]) -> None:
    row = read_row(name)
    assert row.published[task] == published
    same = {"epochs": 300, "warmup_epochs": 5, "batch_size": 64, "learning_rate": 1e-3, "fields": (32, 64)}
    assert {key: getattr(row.configuration, key) for key in same} == same


@pytest.mark.parametrize("rotations", [4, 8, 16])
def test_the_corrected_strict_row_differs_from_the_soft_one_in_its_frequency_alone(rotations: int) -> None:
    soft, strict = (read_row(f"se2-{rotations}-{word}").configuration for word in ("soft", "strict-corrected"))
    assert strict.relax == {"rotation": 0.0}
    assert dataclasses.replace(strict, relax=soft.relax) == soft


def test_an_override_replaces_one_value() -> None:
    before = dataclasses.replace(read_row("se2-4-soft").configuration, relax={"rotation": 1.0, "reflection": 2.0})
    after = override(before, ["relax.rotation=0.5", "epochs=7", "fields=[8, 16]"])
    relax = {"rotation": 0.5, "reflection": 2.0}
    assert after == dataclasses.replace(before, relax=relax, epochs=7, fields=(8, 16))


def test_an_entry_is_merged_and_a_whole_dict_replaces() -> None:
    before = Configuration(rotations=4, relax={"rotation": 1.0}, kernel={"filter_frequency": {"rotation": 1.0}})
    assert override(before, ["relax.translation=0.5"]).relax == {"rotation": 1.0, "translation": 0.5}
    assert override(before, ["relax={translation=0.5}"]).relax == {"translation": 0.5}
    assert override(Configuration(rotations=1), ["relax.translation=1"]).relax == {"translation": 1.0}
    merged = override(before, ["kernel.filter_frequency.position=0.5", 'kernel.net="fourier"']).kernel
    assert merged == {"filter_frequency": {"rotation": 1.0, "position": 0.5}, "net": "fourier"}
    assert override(before, ["kernel={}"]).kernel == {}
    assert override(before, ["relax.rotation=1"]).digest() == before.digest()
    assert changes(before, override(before, ["relax.rotation=2", "epochs=7"])) == [
        "relax: {'rotation': 1.0} → {'rotation': 2.0}",
        "epochs: 300 → 7",
    ]


def test_a_plan_holds_each_run_once_in_order() -> None:
    runs = read_plan("small")
    assert [str(run) for run in runs[:4]] == [
        *("se2-4-strict-corrected, seed 0", "se2-4-soft, seed 0", "se2-4-partial-corrected, seed 0"),
        "se2-4-strict-corrected, seed 1",
    ]
    assert len({(run.row, run.configuration.digest(), run.seed) for run in runs}) == len(runs)
    assert {run.seed for run in runs} == {0, 1, 2}
    scales = {(run.configuration.images, run.configuration.fields, run.configuration.epochs) for run in runs}
    assert scales == {(5000, (8, 16), 12)}
    with pytest.raises(ValueError, match="plan must be one of small, smoke; got 'large'"):
        read_plan("large")


def test_a_run_of_a_plan_that_fails_is_named_and_the_rest_goes_on() -> None:
    said: list[str] = []

    def train(run: PlannedRun) -> None:
        if run.seed == 0:
            raise FloatingPointError("nan")

    with pytest.raises(RunsFailedError, match="1 of 2 runs failed: smoke, seed 0"):
        run_all(read_plan("smoke"), train, said.append)
    assert said == ["1 of 2: smoke, seed 0", "smoke, seed 0 failed: FloatingPointError: nan", "2 of 2: smoke, seed 1"]


def test_a_sweep_chooses_on_validation_and_reports_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = pytest.importorskip("experiments.training")
    seen: list[tuple[float, int]] = []

    def run(name: str, configuration: Configuration, seed: int, *_: Any) -> dict[str, float]:
        assert configuration.task == "digits"
        frequency = configuration.relax["rotation"]  # type: ignore[index]
        seen.append((frequency, seed))
        # The best on validation is the worst on test.
        return {
            "validation_accuracy": {0: 30.0, 0.25: 50.0, 1: 40.0}[frequency] + seed,
            "test_accuracy": 90 - seen[-1][0],
        }

    monkeypatch.setattr(training, "run", run)
    main(["sweep", "smoke", "relax.rotation=0,0.25,1", "--seeds", "2", "--output", str(tmp_path)])
    assert seen == [(0, 0), (0, 1), (0.25, 0), (0.25, 1), (1, 0), (1, 1)]
    *_, third, chosen = capsys.readouterr().out.splitlines()
    assert third == "relax.rotation=1: validation 40.50 ± 0.50 %"
    assert chosen == "chosen on validation images: relax.rotation=0.25, test 89.75 ± 0.00 %"


def test_settings_reach_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    training = pytest.importorskip("experiments.training")
    seen: list[Any] = []
    result = {"validation_accuracy": 1.0, "test_accuracy": 2.0}
    monkeypatch.setattr(training, "run", lambda *arguments: seen.extend(arguments) or result)
    options = "--task cifar100 --augment --precision bf16-mixed --seed 3 --devices 2 --num-nodes 4 --accelerator cpu"
    main(["train", "se2-8-soft", *options.split(), "--set", "relax.rotation=0.5", "--output", str(tmp_path)])
    expected = Configuration(
        rotations=8, relax={"rotation": 0.5}, task="cifar100", augment=True, precision="bf16-mixed"
    )
    assert seen == ["se2-8-soft", expected, 3, None, tmp_path, training.Machine("cpu", 2, 4), None]


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that it ends in."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    text = capsys.readouterr().err
    assert "Traceback" not in text
    assert text.endswith("\n")
    line = text.splitlines()[-1]
    assert line.startswith("python -m experiments")
    return line


WRONG = {
    "--set fields=3": "fields must be two integers, for the two blocks, as [8, 16]; got 3",
    "--set fields=[1.5,2]": "fields must be an integer, got 1.5",
    "--set rotations=0": "rotations must be >= 1, got 0",
    "--set augment=1": "augment must be True or False, got 1",
    "--set epochs=1": "warmup_epochs must be below epochs=1, got 1",
    "--set epoch=3": "a setting must be one of rotations, layer,",
    "--set epochs": "a setting must be key=value, the value as in TOML; got 'epochs'",
    "--set images=2000": "images must be at most 1078 with digits, got 2000",
    "--set batch_size=513": "batch_size must be at most 512 images, got 513",
    "--set learning_rate=inf": "learning_rate must be finite and >= 0, got inf",
    "--set weight_decay='x'": "weight_decay must be a number, got 'x'",
    "--set relax.rotation=nan": "rotation",
    "--set relax.scale=1.0": "unknown subgroup 'scale'",
    '--set kernel.net="mlp"': "kernel.net must be one of ['siren', 'fourier'], got 'mlp'",
    "--set kernel.regions=4": "an option of the kernel must be one of features, net, hidden_size,",
    "--set kernel.features=8": "kernel.features is the number of random projections, which kernel.net='fourier' has",
    "--set kernel=1": "kernel must be options, as kernel.net='fourier', or 'default'; got 1",
    '--set share_relaxation="all"': "share_relaxation must be one of",
    '--set layer="loose"': "layer must be one of",
    '--set layer="partial" penalty_weight=1.0': "layer='partial' does not have: it must be 0",
    "--devices 0": "devices must be >= 1, got 0",
    "--devices 5": "batch_size must be divisible by 5 devices, got 64",
    "--num-nodes 0": "num_nodes must be >= 1, got 0",
    "--task svhn": "argument --task: invalid choice: 'svhn'",
    "--task mnist6-180": "the task 'mnist6-180' needs --data",
    "--output /dev/null": "Not a directory: '/dev/null/digits-soft",
}


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_option_is_named(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightning")
    assert WRONG[option] in error_of(["train", "digits-soft", "--output", str(tmp_path), *option.split()], capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "so3"], "row must be one of digits-soft,"),
        (["sweep", "smoke", "relax.rotation"], "a sweep must be key=value,value,… as relax.rotation=0,0.25,0.5; got"),
        (["sweep", "smoke", "relax.rotation=0,0"], "a sweep must have each value once; got 'relax.rotation=0,0'"),
        (["sweep", "smoke", "relax.rotation=0", "--seeds", "0"], "seeds must be >= 1, got 0"),
        (["report", "/nowhere"], "/nowhere holds no result.json: train rows with --output /nowhere first"),
        (["report", str(ROOT / "benchmarks/results"), "--output", str(ROOT / "docs")], "Is a directory"),
    ],
)
def test_other_errors_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning")
    assert message in error_of(arguments, capsys)
    training = pytest.importorskip("experiments.training")

    def fail(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "events.out")

    monkeypatch.setattr(training, "run", fail)
    assert "No space left on device: 'events.out'" in error_of(["train", "digits-soft"], capsys)


@pytest.mark.parametrize("content", ["", "[]", '{"row": "t2-strict"}', json.dumps({"row": "so3"})])
def test_a_damaged_file_is_named_by_the_report(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "result.json").write_text(content)
    line = error_of(["report", str(tmp_path), "--output", str(tmp_path / "tables.md")], capsys)
    assert f"error: {tmp_path / 'result.json'} is " in line
    assert not (tmp_path / "tables.md").exists()


def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.import_module

    def without_lightning(name: str, *arguments: Any) -> Any:
        if name.startswith("lightning"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return find(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", without_lightning)
    error = error_of(["train", "t2-soft"], capsys)
    assert "'lightning', which is not installed" in error
    assert "pip install -c constraints.txt -r experiments/requirements.txt" in error
