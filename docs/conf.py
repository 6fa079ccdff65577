"""Sphinx configuration: `make docs` builds the site from the unchanged Markdown of the repository.

The source directory is the root of the repository, so that links between pages are the same on the
site and on a code forge. `_site/links.py` handles links to files and directories that are not
pages; `_site/navigation.py` builds the navigation from the lists of links in `index.md`.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_site"))

_PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = _PROJECT["name"]
release = version = _PROJECT["version"]
copyright = "the authors of cirron-otel, Apache-2.0"
language = "en_GB"
extensions = ["myst_parser", "navigation", "links"]

source_suffix = {".md": "markdown"}
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**.md",
    "deploy/*.md",
    "docker/*.md",
    "collector-config/*.md",
]
exclude_patterns = [".*", "build", "dist", "cirron_otel", "proto", "tests"]

# Headings get the same anchors as on a code forge.
myst_heading_anchors = 4
# Do not turn two hyphens into a dash.
smartquotes = False
# JSON excerpts with an ellipsis cannot be parsed for highlighting.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_show_sphinx = False
html_additional_pages = {"index": "to_index.html"}
templates_path = ["_site"]
