"""The built site: it needs no network, and its pages render. That its links lead somewhere Sphinx sees."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
HTML = Path(os.environ.get("ESCNN_RELAXED_HTML", DOCS / "_build" / "html"))


@pytest.mark.skipif(not (HTML / "index.html").exists(), reason="the site is not built: make docs")
def test_built_site_fetches_nothing_from_elsewhere_and_its_pages_render_and_fit_a_phone() -> None:
    """Scripts, styles and pictures are its own: it can be read without a network."""
    for page in HTML.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img)[^>]*src=\"(?:https?:)?//[^\"]*\"", text), page.name
        assert not re.findall(r"<link[^>]*rel=\"stylesheet\"[^>]*href=\"(?:https?:)?//", text), page.name
    pytest.importorskip("playwright.sync_api")
    result = subprocess.run(
        [sys.executable, str(DOCS / "look.py"), str(HTML)], capture_output=True, text=True, check=False
    )
    if result.returncode == 3:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stdout + result.stderr
