"""Links from pages of source code back to the reference, which names some objects after a module of their purpose."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

__all__ = ["setup"]

LINK = re.compile(r'(?<=<a class="viewcode-back" href=")[^"#]*#([^"]+)(?=")')


def _correct(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Let each link lead to the page and the name that the reference has."""
    if not page.startswith("_modules/") or "body" not in context:
        return
    described = {
        name: (document, anchor)
        for name, _, _, document, anchor, _ in app.env.get_domain("py").get_objects()
    }

    def to_reference(link: re.Match[str]) -> str:
        # A module stands between the package and a name, or none.
        ending = "." + link[1].partition(".")[2]
        for name, (document, anchor) in described.items():
            if name == link[1] or name.endswith(ending):
                return f"{app.builder.get_relative_uri(page, document)}#{anchor}"
        return link[0]

    context["body"] = LINK.sub(to_reference, context["body"])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register it."""
    # First, because the event ends at the first handler that names a template.
    app.connect("html-page-context", _correct, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
