"""Tables from results: means and errors by hand, published numbers beside ours."""

import dataclasses
import re
from pathlib import Path

import pytest

from benchmarks.shared.run_log import Log
from experiments.configuration import override
from experiments.report import report
from experiments.rows import find_row

SCALE = ["epochs=6", "images=1500", "evaluation_images=2000"]


def write(folder: Path, name: str, seed: int, test: float, *overrides: str, validation: float | None = None) -> None:
    configuration = override(find_row(name).configuration, [*SCALE, *overrides])
    content = {
        "row": name,
        "seed": seed,
        "configuration": dataclasses.asdict(configuration),
        "parameters": 12345,
        "images": {"train": 1500, "validation": 2000, "test": 2000},
        "validation_accuracy": test - 1 if validation is None else validation,
        "test_accuracy": test,
        "epochs": [{"epoch": 1}, {"epoch": 2, "domain_frequency/network.features.0/rotation": 0.5}],
    }
    Log(folder / "paper.jsonl").add(f"{name}/{configuration.digest()}/seed-{seed}", content)


def cells(text: str, title: str) -> list[list[str]]:
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [line for line in lines if line[0] == title]


def test_the_curve_goes_from_strict_over_the_row_to_its_overrides(tmp_path: Path) -> None:
    """The frequency is chosen by validation and reported by test."""
    write(tmp_path, "se2-4-strict-corrected", 0, 30.0)
    write(tmp_path, "se2-4-soft", 0, 40.0)
    write(tmp_path, "se2-4-soft", 0, 50.0, "relax.rotation=0.5", validation=90.0)
    write(tmp_path, "se2-4-soft", 0, 95.0, "relax.rotation=2.0", validation=1.0)
    write(tmp_path, "se2-8-soft", 0, 60.0)
    before, _, after = report(tmp_path).partition("Accuracy against")
    *curve, chosen, _ = cells(after, "SE(2), 4 rotations, soft in SO(2)")
    assert [line[1:4] for line in curve] == [
        ["0", "30.00", "29.00"],
        ["0.5", "50.00", "90.00"],
        ["1", "40.00", "39.00"],
        ["2", "95.00", "1.00"],
    ]
    assert [line[1] for line in cells(before, "SE(2), 4 rotations, soft in SO(2)")] == ["40.00"]
    assert chosen[1:] == ["0.5", "50.00"]


def test_runtimes_are_ratios_beside_the_papers_with_text_before_and_after(tmp_path: Path) -> None:
    write(tmp_path, "t2-strict", 0, 30.0)
    ratio = {"median": 12.34, "low": 10.0, "high": 15.0, "seconds": 0.1}
    row = {"train": ratio, "inference": ratio, "parameters": 451_898, "settings": "On one thread."}
    for name in ("t2-strict", "se2-4-soft"):
        Log(tmp_path / "runtimes.jsonl").add(name, row)
    (tmp_path / "introduction.md").write_text("Before.\n")
    (tmp_path / "meaning.md").write_text("After.\n")
    text = report(tmp_path)
    *_, parameters, runtimes = cells(text, "SE(2), 4 rotations, soft in SO(2)")
    assert parameters[1:] == ["451,898", "469,802", "457,748", "475,652"]
    # The paper: 12.2 s against 3.5 s to train, 0.6 s against 0.2 s for inference.
    assert runtimes[1:] == ["12.3 (10.0 to 15.0)", "3.5", "12.3 (10.0 to 15.0)", "3.0"]
    assert text.index("Before.") < text.index("30.00") < text.index("After.") < text.index("On one thread.")


def test_the_committed_report_is_that_of_the_committed_results() -> None:
    root = Path(__file__).parents[1]
    page = root / "benchmarks" / "results" / "paper.md"
    assert report(root / "benchmarks" / "results") == page.read_text(encoding="utf-8")


def test_numbers_on_the_page_of_the_paper_are_those_of_the_report() -> None:
    root = Path(__file__).parents[1]
    page, tables = root / "docs" / "results" / "paper.md", root / "benchmarks" / "results" / "paper.md"
    if not page.exists():
        pytest.skip("no docs beside the tests")
    numbers = set(re.findall(r"\d[\d.]* ± [\d.]*\d", page.read_text(encoding="utf-8")))
    assert len(numbers) > 15
    assert not [number for number in numbers if number not in tables.read_text(encoding="utf-8")]
