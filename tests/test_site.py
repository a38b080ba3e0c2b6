"""The built site: its links lead somewhere, it needs no network, it renders, numbers in its tables stay whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

DOCS = Path(__file__).parents[1] / "docs"
HTML = Path(os.environ.get("ESCNN_RELAXED_HTML", DOCS / "_build" / "html"))

pytestmark = pytest.mark.skipif(not (HTML / "index.html").exists(), reason="the site is not built: make docs")


class Links(HTMLParser):
    """Targets and identifiers of a page of the built site."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.identifiers: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if value and key == "id":
                self.identifiers.add(value)
            elif value and (key == "src" or (key == "href" and tag in ("a", "link"))):
                self.targets.append(value)


def test_links_of_the_built_site_lead_to_pages_and_places_in_them_and_nothing_is_fetched_from_elsewhere() -> None:
    """Scripts, styles and pictures are its own: it can be read without a network."""
    pages = {page.resolve(): Links(page) for page in sorted(HTML.rglob("*.html")) if "_static" not in page.parts}
    assert pages
    for page, links in pages.items():
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img)[^>]*src=\"(?:https?:)?//[^\"]*\"", text), page.name
        assert not re.findall(r"<link[^>]*rel=\"stylesheet\"[^>]*href=\"(?:https?:)?//", text), page.name
        for link in links.targets:
            target = urlsplit(link)
            if target.scheme or target.netloc:
                continue
            file = (page.parent / unquote(target.path)).resolve() if target.path else page
            assert file.exists(), f"{page.name} links to {link}"
            # A page of source code names a function after its module, the reference after the front door.
            if target.fragment and file in pages and "_modules" not in page.parts:
                assert unquote(target.fragment) in pages[file].identifiers | {""}, f"{page.name} links to {link}"


@pytest.mark.slow
def test_pages_render_without_errors_and_fit_a_phone() -> None:
    pytest.importorskip("playwright.sync_api")
    command = [sys.executable, str(DOCS / "look.py"), str(HTML)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 3:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stdout + result.stderr
