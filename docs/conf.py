"""Sphinx: `make docs` builds the site into docs/_build/html, tutorials executed, warnings as errors."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

# escnn says on import that py3nj is missing, which only its 3D groups use: here, and in the tutorials' processes.
warnings.filterwarnings("ignore", "`py3nj` package not found", UserWarning)
os.environ["PYTHONWARNINGS"] = "ignore:`py3nj` package not found:UserWarning"
# Figures in the page, and sharp.
os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
os.environ["MATPLOTLIBRC"] = str(HERE / "matplotlibrc")

from escnn_relaxed import __version__  # noqa: E402  (after the filter)

project = "escnn_relaxed"
author = "The escnn_relaxed authors"
project_copyright = author
version = release = __version__

extensions = [
    "mathml",
    "source_links",
    "tables",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
source_suffix = {".md": "myst-nb"}
exclude_patterns = ["_build", "**.ipynb_checkpoints"]

# No inventory of torch or escnn can be had without a network, so there is no intersphinx: names of others are text.
# Ours must resolve.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!escnn_relaxed\.).*"),
    ("py:class", r"escnn_relaxed\.group\.domain\..*"),
    ("py:class", r"escnn_relaxed\.layer\.(softness_options|relaxed_point_conv)\..*"),
    ("py:class", r"escnn_relaxed\.network\.reference\..*"),
    (
        "py:class",
        r"escnn_relaxed\.kernel\.(modulation|position_modulation|steerable_basis)\..*",
    ),
]
suppress_warnings = ["mystnb.unknown_mime_type"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3
myst_links_external_new_tab = True
html_math_renderer = "mathml"

nb_execution_mode = "auto"
nb_execution_timeout = (
    3600  # for a cell; on an idle machine the longest takes a minute or two
)
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # nothing is fetched from elsewhere

autodoc_member_order = "bysource"
autosummary_generate = False  # lines of an index; the pages are written by hand
# Of layers the signature names options that the source has as one mapping, so defaults are not read from the source.
autodoc_preserve_defaults = False
toc_object_entries_show_parents = "hide"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Shape"]
python_use_unqualified_type_names = True

html_theme = "pydata_sphinx_theme"
html_title = f"escnn_relaxed {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "escnn_relaxed"},
    "navbar_align": "left",
    "navbar_center": ["sections.html"],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
if os.environ.get("ESCNN_RELAXED_SMOKE", "") not in ("", "0"):
    html_theme_options["announcement"] = (
        "A trial build: tutorials ran a few steps only, and their numbers mean nothing."
    )
# There are no pages that only list others: the sidebar has all, the header the first page of each section.
templates_path = ["_templates"]
html_sidebars = {"index": [], "**": ["pages.html"]}
html_context = {"default_mode": "auto"}
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
