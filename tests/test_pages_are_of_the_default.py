"""Pages and pictures of the default kernel were made with the default of today.

``docs/made_with.json`` has a row for each of them: the command that makes it, and the fingerprint of the default with
which it was made, or null where the default takes no part. What is of an earlier default has the words ``says`` on its
page. After a change of the default, run the commands, look at what they make, and put the new fingerprint, which the
failing test prints, into the rows.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
from escnn import gspaces, nn

from benchmarks import softness
from escnn_relaxed import RelaxedR2Conv, RelaxedR3Conv

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE = json.loads((DOCS / "made_with.json").read_text("utf-8")) if DOCS.exists() else {}
CASES = [
    (RelaxedR2Conv, gspaces.rot2dOnR2(8), None),
    (RelaxedR2Conv, gspaces.flipRot2dOnR2(4), None),
    (RelaxedR2Conv, gspaces.rot2dOnR2(4), ("rotation", "translation")),
    (RelaxedR3Conv, gspaces.rot2dOnR3(4), None),
]

pytestmark = pytest.mark.skipif(not MADE, reason="no docs beside the tests")


def fingerprint() -> str:
    """Return a hash of the default: its frequencies, its weights, its softness at the start and at equal weights."""
    facts = []
    for kind, gspace, relax in CASES:
        in_type, out_type = (nn.FieldType(gspace, [of] * 2) for of in (gspace.trivial_repr, gspace.regular_repr))
        torch.manual_seed(0)
        layer = kind(in_type, out_type, 3, **({} if relax is None else {"relax": relax})).double()
        frequencies = {name: value.tolist() for name, value in layer.domain_frequency.items()}
        facts += [f"{in_type} {out_type} {frequencies}", type(layer.kernel).__name__]
        facts += [f"{name} {tuple(of.shape)}" for name, of in layer.named_parameters()]
        facts.append(f"{layer.softness().item():.2g}")
        for weights in (layer.weights, *layer.soft_parameters()):
            torch.nn.init.ones_(weights)
        facts.append(f"{layer.softness().item():.5f}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]


def test_what_was_made_was_made_with_the_default_of_today_or_says_so() -> None:
    now = fingerprint()
    old = [what for what, row in MADE.items() if row["default"] not in (None, now) and "says" not in row]
    assert not old, f"make these again and write {now}: {old}"
    for what, row in MADE.items():
        page = DOCS / row.get("page", what.partition("#")[0])
        assert page.exists(), what
        if "says" in row:
            assert row["default"] != now, f"{what} is of today's default: leave out 'says', here and on the page"
            assert row["says"] in " ".join(page.read_text("utf-8").split()), what


def test_commands_are_there() -> None:
    for what, row in MADE.items():
        module = re.match(r"python -m ([\w.]+)|python ([\w/.]+\.py)|make (\w+)", row["command"])
        assert module, what
        file = module[2] or (module[1] or "Makefile").replace(".", "/") + ".py" * bool(module[1])
        assert (ROOT / file).exists() or (ROOT / file.removesuffix(".py")).is_dir(), what


def test_every_picture_and_every_page_of_results_has_a_row() -> None:
    needed = {f"images/{path.name}" for path in DOCS.glob("images/*.*")}
    needed |= {f"results/{page.name}" for page in DOCS.glob("results/*.md")} - {"results/index.md"}
    assert not needed - {what.partition("#")[0] for what in MADE}


def test_softness_on_the_page_of_the_mathematics_is_that_of_the_layers() -> None:
    page = " ".join((DOCS / "concepts" / "mathematics.md").read_text("utf-8").split())
    assert "{:.2f}, {:.2f}, {:.2f} and {:.2f} at 0.1, 0.25, 0.5 and 1".format(*softness.by_frequency()) in page
    values = dict(zip(softness.SIZES, (f"{s:.2f}" for s in softness.by_size()), strict=True))
    assert len({values[size] for size in (8, 16, 33)}) == 1
    assert f"has {values[8]} on 8 pixels and on more, {values[4]} on 4 and {values[2]} on 2" in page
    ratios = [s / of for s, of in zip(softness.by_samples(16, False), softness.by_samples(128, False), strict=True)]
    row = " | ".join(["| SO(2), 16", *(f"{ratio:.3f}" for ratio in ratios)])
    assert row in (DOCS / "results" / "soft-part.md").read_text("utf-8")
