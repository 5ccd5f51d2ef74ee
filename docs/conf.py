"""Sphinx configuration of the documentation site: `make docs` builds it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "scripts"), str(Path(__file__).parents[1] / "src")]

import docs_llms  # noqa: E402
import docs_reference  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

from proctor.version import __version__  # noqa: E402

project = "Proctor"
author = "The Proctor developers"
copyright = "the Proctor developers, Apache-2.0"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = False
smartquotes = False  # it would turn the dashes of --flags in texts into one
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
autodoc_mock_imports = ["torch", "gymnasium", "pyarrow", "av", "safetensors", "huggingface_hub"]

html_theme = "furo"
html_title = "Proctor"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["accessible.js"]
html_favicon = "images/logo.svg"
copybutton_prompt_text = "$ "


def setup(app: Sphinx) -> None:
    """Write the pages that are generated from code first, and llms.txt last."""
    app.connect("builder-inited", lambda _: docs_reference.write(Path(__file__).parent))
    app.connect("build-finished", _write_llms)
    app.connect("autodoc-process-docstring", _keep_colons, priority=400)


def _write_llms(app: Sphinx, failure: Exception | None) -> None:
    if failure is None:
        docs_llms.write(Path(app.srcdir), Path(app.outdir))


def _keep_colons(_app: Sphinx, what: str, *arguments: Any) -> None:
    """Begin an attribute's text with an empty comment: napoleon reads ``a: b`` there as a type."""
    if what in ("attribute", "property", "data"):
        arguments[-1][:0] = ["..", ""]
