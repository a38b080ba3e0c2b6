"""Equations as MathML, which browsers set by themselves: no script, nothing fetched from elsewhere."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

__all__ = ["setup"]


def _inline(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(
        writer.starttag(node, "div", CLASS="math notranslate nohighlight")
    )
    if node["number"]:
        writer.body.append(
            f'<span class="eqno">({get_node_equation_number(writer, node)})'
        )
        writer.add_permalink_ref(node, "Link to this equation")
        writer.body.append("</span>")
    writer.body.append(
        f'<div class="equation">{tex2mathml(node.astext(), as_block=True)}</div></div>\n'
    )
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer under the name ``mathml``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
