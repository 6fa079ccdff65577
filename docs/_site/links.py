"""Rewrite links that a code forge resolves but Sphinx does not.

On a code forge, a link to a directory shows its README. The site has no page for a directory, so
the link is replaced by one to the README, or by its text if there is no README. A code forge also
resolves links to HTML anchors (`<details id="…">`); Sphinx resolves only those to headings.
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
    """Return a page in `folder` with its links to directories and HTML anchors replaced."""
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
    """Register the extension with Sphinx."""
    app.connect("source-read", _replace)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
