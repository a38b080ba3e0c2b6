"""The address of the repository, in one place: README.md, the install page and the notebooks follow it.

    python scripts/repository.py    # after a change of ADDRESS; then: make notebooks

There is no address yet, so the pages speak of the folder that the reader has.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["ADDRESS", "FOR_PIP", "PAGES", "sentence", "with_address"]

ADDRESS: str | None = None  # as "https://…/escnn_relaxed.git"
# What a notebook gives to pip: the folder two above it, or the address.
FOR_PIP = f"git+{ADDRESS}" if ADDRESS else "../.."

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/install.md")
MARKED = re.compile(r"(?<=<!-- repository -->\n).*?(?=\n<!-- end -->)", re.DOTALL)


def sentence() -> str:
    """Return how a reader gets the package."""
    if ADDRESS is None:
        return "No registry has the package yet. Open a terminal in the folder that you have, the one with `setup.py`."
    return f"No registry has the package yet. Type `git clone {ADDRESS}` and go into the new folder."


def with_address(page: str) -> str:
    """Return the text of a page with the sentence at its place."""
    return MARKED.sub(lambda _: sentence(), page)


def main() -> None:
    """Bring the pages up to date."""
    for name in PAGES:
        page = ROOT / name
        page.write_text(with_address(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
