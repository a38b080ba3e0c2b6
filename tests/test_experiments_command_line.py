"""The command line and the rows: what they hold and pass on, and errors in a line."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from experiments.command_line import main
from experiments.configuration import Configuration, changes, override
from experiments.rows import ROWS, find_row


def test_there_is_a_row_for_each_of_the_papers_tables(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(ROWS.values())
    learned = [row for row in rows if "learned" in row.name]
    # 11 of the first table, the toy problem's 3, and 6 values of λ for T(2) and three numbers of rotations.
    assert len([row for row in rows if row.published]) == 11 + 3 + 6 * 4
    assert len([row for row in rows if "seconds" in row.published]) == 11
    assert len(learned) == 6 * 4
    assert all(row.configuration.learn_relaxation for row in learned)
    assert all(row.configuration.penalty_weight == float(row.name.rpartition("-")[2]) for row in learned)
    assert len({row.configuration.digest() for row in rows}) == len(rows)
    main(["rows"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(ROWS)
    assert lines[0].endswith("T(2), strict")


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
    row = find_row(name)
    assert row.published[task] == published
    same = {"epochs": 300, "warmup_epochs": 5, "batch_size": 64, "learning_rate": 1e-3, "fields": (32, 64)}
    assert {key: getattr(row.configuration, key) for key in same} == same


@pytest.mark.parametrize("rotations", [4, 8, 16])
def test_the_corrected_strict_row_differs_from_the_soft_one_in_its_frequency_alone(rotations: int) -> None:
    soft, strict = (find_row(f"se2-{rotations}-{word}").configuration for word in ("soft", "strict-corrected"))
    assert strict.relax == {"rotation": 0.0}
    assert dataclasses.replace(strict, relax=soft.relax) == soft


def test_an_override_replaces_one_value_and_an_entry_is_merged() -> None:
    before = Configuration(rotations=4, relax={"rotation": 1.0}, kernel={"filter_frequency": {"rotation": 1.0}})
    after = override(before, ["relax.rotation=0.5", "epochs=7", "fields=[8, 16]"])
    assert after == dataclasses.replace(before, relax={"rotation": 0.5}, epochs=7, fields=(8, 16))
    assert override(before, ["relax.translation=0.5"]).relax == {"rotation": 1.0, "translation": 0.5}
    assert override(before, ["relax={translation=0.5}"]).relax == {"translation": 0.5}
    merged = override(before, ["kernel.filter_frequency.position=0.5", 'kernel.net="fourier"']).kernel
    assert merged == {"filter_frequency": {"rotation": 1.0, "position": 0.5}, "net": "fourier"}
    assert override(before, ["relax.rotation=1"]).digest() == before.digest()
    assert changes(before, override(before, ["relax.rotation=2", "epochs=7"])) == [
        "relax: {'rotation': 1.0} → {'rotation': 2.0}",
        "epochs: 300 → 7",
    ]


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


WRONG = {
    "train digits-soft --set epochs=1": "warmup_epochs must be below epochs=1, got 1",
    'train digits-soft --set kernel.net="mlp"': "kernel.net must be one of ['siren', 'fourier'], got 'mlp'",
    "train digits-soft --output /dev/null": "Not a directory: '/dev/null/digits-soft",
    "report /nowhere": "/nowhere holds no results in paper.jsonl: train rows with --output /nowhere first",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_a_wrong_argument_is_named_in_one_line(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightning")
    with pytest.raises(SystemExit) as stop:
        main(arguments.split())
    assert stop.value.code == 2
    text = capsys.readouterr().err
    assert "Traceback" not in text
    line = text.splitlines()[-1]
    assert line.startswith("python -m experiments")
    assert WRONG[arguments] in line
