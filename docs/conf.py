"""The site is built from the markdown as it stands in the repository: `make docs`.

The source directory is the root of the repository, so a link from one page to another is the same
here and on a code forge. What a page links to and is no page (a configuration, a directory) is
handled in `_links.py`; the navigation is the lists of links of `index.md`, in `_navigation.py`.
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
    "docker/*.md",
    "collector-config/*.md",
]
exclude_patterns = [".*", "build", "dist", "cirron_otel", "proto", "tests"]

# Anchors are those that a code forge gives to headings.
myst_heading_anchors = 4
# Two hyphens are two hyphens.
smartquotes = False
# Excerpts of JSON with an ellipsis are no JSON.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_show_sphinx = False
html_additional_pages = {"index": "to_index.html"}
templates_path = ["_site"]
