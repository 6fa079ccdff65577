"""Build the site's navigation from the lists of links in `docs/index.md`, one part per heading.

So the index remains plain Markdown, which a code forge can show. Sphinx reports a page that is in
none of the lists ("isn't included in any toctree").
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)#:]+)\.md\)", re.MULTILINE)


def toctrees(index: str) -> str:
    """Return a hidden `toctree` for each list of the index, captioned with its heading."""
    parts = _HEADING.split(index)[1:]
    trees = []
    for caption, text in zip(parts[::2], parts[1::2], strict=True):
        entries = "\n".join(f"{title} <{page}>" for title, page in _ENTRY.findall(text))
        if entries:
            trees.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n")
    return "\n".join(trees)


def _append(app: Sphinx, page: str, source: list[str]) -> None:
    if page == app.config.root_doc:
        source[0] += "\n\n" + toctrees(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("source-read", _append)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
