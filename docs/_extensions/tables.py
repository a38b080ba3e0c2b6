"""Numbers in tables stay whole: cells of a number and little else get the class ``number``, in which no line breaks.

In other cells the spaces around ± do not break.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

__all__ = ["setup"]

# "95.77 ± 0.13", "≤ 1e-12", "1.73 (1.59–1.83)", "5e-7, 4e-7", "1.7 to 2.6"; no longer than a cell may be.
NUMBER = re.compile(r"(?=.*\d)[\d\s.,:;±≤≥<>=~×^%°()/+−–e-]*(to[\d\s.]+)?", re.DOTALL)
LONGEST = 24


class Numbers(SphinxPostTransform):
    """Marks the cells."""

    default_priority = 500

    def run(self, **kwargs: Any) -> None:
        """Of every table of a page."""
        for cell in self.document.findall(nodes.entry):
            text = cell.astext().strip()
            if len(text) <= LONGEST and NUMBER.fullmatch(text):
                cell["classes"].append("number")
                continue
            for words in list(cell.findall(nodes.Text)):
                if " ± " in words:
                    whole = nodes.Text(words.replace(" ± ", "\u00a0±\u00a0"))
                    words.parent.replace(words, whole)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transform."""
    app.add_post_transform(Numbers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
