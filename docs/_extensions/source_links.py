"""Links from pages of source code back to the reference, which names some objects after a module of their purpose."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

__all__ = ["setup"]

LINK = re.compile(r'(<a class="viewcode-back" href="[^"#]*#)([^"]+)(">)')


def _correct(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Put the name that the reference has in the place of one that leads nowhere."""
    if not page.startswith("_modules/") or "body" not in context:
        return
    known = {name for name, *_ in app.env.get_domain("py").get_objects()}

    def named(link: re.Match[str]) -> str:
        name = link[2]
        if name not in known:
            ending = "." + name.partition(".")[2]
            name = next((other for other in known if other.endswith(ending)), name)
        return link[1] + name + link[3]

    context["body"] = LINK.sub(named, context["body"])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register it."""
    app.connect("html-page-context", _correct)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
