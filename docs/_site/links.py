"""Links that a code forge resolves by itself, put so that Sphinx does, too.

A link to a directory shows its README there; the site has no page for a directory, and where there
is no README either, nothing to link to. A link to an anchor that is written in HTML
(`<details id="…">`) works there; Sphinx knows headings alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_LINK = re.compile(r"\[([^\[\]]+)\]\(([^)\s]+)\)")
_ANCHOR = re.compile(r"<\w+ id=\"([^\"]+)\"")


def resolvable(text: str, folder: Path) -> str:
    """The text of a page in `folder`, its links to directories and to HTML's anchors replaced."""
    anchors = set(_ANCHOR.findall(text))

    def replaced(link: re.Match[str]) -> str:
        words, target = link.groups()
        if target[:1] == "#" and target[1:] in anchors:
            return f'<a href="{target}">{words}</a>'
        if "#" in target or not (folder / target).is_dir():
            return link[0]
        if (folder / target / "README.md").is_file():
            return f"[{words}]({target.rstrip('/')}/README.md)"
        return words

    return _LINK.sub(replaced, text)


def _replace(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = resolvable(source[0], Path(app.srcdir, page).parent)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _replace)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
