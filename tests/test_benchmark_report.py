"""The report of the symmetry benchmark: gains seed by seed, a small file of results, and the blocks of the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.shared.run_log import Log
from benchmarks.symmetry import report
from benchmarks.symmetry.results import grouped, read, rows_of

ACCURACIES = {"R2Conv": (90, 92, 91), "R2Conv, free head": (94, 95, 94), "RelaxedR2Conv": (95, 97, 95), "Conv2d": (60,)}
HISTORY = [[1, 0.5, 80], [3, 0.4, 99]]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log of digits and of smoke, with a trial."""
    log = Log(tmp_path / "log.jsonl")
    run = {"group": "C8", "images": 1000, "pose": "upright", "task": "digits"}
    costs = {"parameters": 1, "seconds": 2.0, "epochs": 3, "all epochs": 4, "rate": 0.01, "trials": 3}
    for way, accuracies in ACCURACIES.items():
        for seed, accuracy in enumerate(accuracies):
            line = {
                "accuracy": accuracy,
                "turned": accuracy - 10 * (way == "R2Conv, free head"),
                "history": HISTORY,
                **costs,
            }
            log.add(json.dumps({**run, "way": way, "seed": seed}), line)
    smoke = {**run, "group": "C4", "images": 5, "pose": "level 9", "task": "smoke"}
    for way, error in (("R2Conv", 7.0), ("R2Conv, free head", 6.0), ("RelaxedR2Conv", 5.0)):
        line = {"error": error, "rollout": 50.0, "turned": 2 * error, "change": 1.0, "history": HISTORY, **costs}
        log.add(json.dumps({**smoke, "way": way, "seed": 0}), line)
    log.add(json.dumps({**run, "way": "R2Conv", "rate": 0.01, "seed": 100}), {"validation": 0.1})
    return log


def test_a_log_that_was_cut_off_keeps_its_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    log = Log(path)
    for name in ("first", "second"):
        log.add(name, {"accuracy": 1.0})
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.warns(UserWarning, match=r"runs\.jsonl, line 2 was cut off"):
        log = Log(path)
    assert list(log.runs) == ["first"]
    log.add("second", {"accuracy": 2.0})
    with pytest.warns(UserWarning, match="line 2 was cut off"):
        assert Log(path).runs == {"first": {"accuracy": 1.0}, "second": {"accuracy": 2.0}}


def test_the_command_writes_the_results_the_page_and_the_figure(log: Log, tmp_path: Path) -> None:
    page, table, figure = (tmp_path / name for name in ("page.md", "runs.csv", "figure.png"))
    names = report.blocks_of({})
    page.write_text("".join(f"<!-- symmetry: {name} -->\nold\n<!-- end -->\n" for name in names), encoding="utf-8")
    report.update([log._path], table, page, figure)
    text = page.read_text(encoding="utf-8")
    # At the time at which R2Conv has ended the second round has not.
    assert grouped(rows_of([log]))["digits", "C8", 1000, "upright"].ways["Conv2d"][0]["at equal time"] == 80
    head = "beside `R2Conv, free head`"
    # Student's t of three seeds asks for 4.3 standard errors.
    upright = f"91.0 | 94.3 | 95.7 | +1.33 ± 0.33, 3 seeds, level, {head}"
    assert f"| digits with C8, 1,000 images, upright | {upright} |" in text
    # On turned copies the pooled head is the better one.
    turned = "91.0 | 84.3 | 95.7 | +4.67 ± 0.33, 3 seeds, ahead, beside `R2Conv`"
    assert f"| digits with C8, 1,000 images, upright | {turned} |" in text
    smoke = "7.00 | 6.00 | 5.00 | +1.00, 1 seed, not settled", "14.00 | 12.00 | 10.00 | +2.00, 1 seed, not settled"
    assert all(f"| smoke with C4, level 9 | {row}, {head} |" in text for row in smoke)
    assert "| `Conv2d` | 1 | 60.00 (1) | −34.00 (1) |" in text
    assert "| digits with C8, 1,000 images | 10 of " in text
    assert figure.stat().st_size > 10_000
    # The file alone gives the same page, and the trial is no run.
    assert len(table.read_text(encoding="utf-8").splitlines()) == 1 + 13
    report.update([], table, page, figure)
    assert page.read_text(encoding="utf-8") == text


def test_a_page_without_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="no block '<!-- symmetry: fields -->'"):
        report.with_blocks("", {"fields": ""})


@pytest.mark.skipif(not report.PAGE.exists(), reason="no docs beside the tests")
def test_the_page_has_what_the_results_say() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    found = report.blocks_of(grouped(read(report.RESULTS)))
    assert report.with_blocks(page, found) == page, "python -m benchmarks.symmetry.report"
    assert len(re.findall("<!-- symmetry: ", page)) == len(found)
