"""Elements of HTML and SVG that are valid and safe by construction.

All text is escaped here and nowhere else. Tags and attributes come from a short list, which
contains nothing that runs scripts, loads resources or submits forms. Any other tag or attribute
raises ValueError.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from html import escape
from typing import TypeAlias

from ...present.formatting import printable

Content: TypeAlias = "str | int | Element | Iterable[Content] | None"
"""The content of an element; numbers are written with their digits grouped."""

_TAGS = frozenset({
    "a", "body", "caption", "code", "data", "dd", "details", "div", "dl", "dt", "figcaption",
    "figure", "footer", "g", "h1", "h2", "head", "header", "html", "li", "main", "nav", "p",
    "section", "span", "strong", "summary", "svg", "table", "tbody", "td", "th", "thead", "title",
    "tr", "ul",
})  # fmt: skip
_EMPTY = frozenset({"meta"})
_DRAWN = frozenset({"rect", "path", "line"})
"""Elements of SVG that have no content except an optional title."""
_ATTRIBUTES = frozenset({
    "aria-hidden", "aria-label", "aria-labelledby", "charset", "class", "content", "d", "height",
    "href", "http-equiv", "id", "lang", "name", "open", "preserveAspectRatio", "role", "scope",
    "tabindex", "value", "viewBox", "width", "x", "x1", "x2", "y", "y1", "y2",
})  # fmt: skip


class Element:
    """An element of a page."""

    __slots__ = ("attributes", "children", "tag")

    def __init__(self, tag: str, *children: Content, **attributes: str | int | None) -> None:
        """Create a `tag` with `children`; `aria_label` sets the attribute `aria-label`, and so on.

        An attribute that is None is omitted. Raises ValueError for tags and attributes that are not
        allowed.
        """
        if tag not in _TAGS and tag not in _EMPTY and tag not in _DRAWN:
            raise ValueError(f"no element {tag!r} on these pages")
        self.tag = tag
        self.children = children
        self.attributes: dict[str, str] = {}
        for key, value in attributes.items():
            name = key.rstrip("_").replace("_", "-")
            if name not in _ATTRIBUTES:
                raise ValueError(f"no attribute {name!r} on these pages")
            if name == "href" and not str(value).startswith("#"):
                raise ValueError("a page leads nowhere but to itself: expected #…")
            if value is not None:
                self.attributes[name] = str(value)

    def pieces(self) -> Iterator[str]:
        """Yield the text of the element."""
        named = "".join(f' {name}="{text_of(value)}"' for name, value in self.attributes.items())
        if self.tag in _EMPTY or (self.tag in _DRAWN and not self.children):
            yield f"<{self.tag}{named}{'/' if self.tag in _DRAWN else ''}>"
            return
        yield f"<{self.tag}{named}>"
        for child in self.children:
            yield from _pieces(child)
        yield f"</{self.tag}>"

    def __str__(self) -> str:
        return "".join(self.pieces())


class Stylesheet(Element):
    """The page's own style sheet, a constant of this package."""

    def __init__(self, css: str) -> None:
        """Store `css`. Raises ValueError if it could end the style element or load a resource."""
        super().__init__("head")
        if "<" in css or "url(" in css or "@import" in css:
            raise ValueError("a style that ends its element, or loads something")
        self.css = css

    @property
    def policy(self) -> str:
        """The content security policy that allows this style sheet and nothing else."""
        digest = base64.b64encode(hashlib.sha256(self.css.encode()).digest()).decode("ascii")
        return (
            f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        )

    def pieces(self) -> Iterator[str]:
        """Yield the style element."""
        yield f"<style>{self.css}</style>"


def text_of(text: str) -> str:
    """Return `text` escaped for HTML, with unprintable characters as readable escapes."""
    return escape(printable(text), quote=True)


def _pieces(child: Content) -> Iterator[str]:
    if isinstance(child, str):
        yield text_of(child)
    elif isinstance(child, Element):
        yield from child.pieces()
    elif isinstance(child, int):
        yield f"{child:,}"
    elif child is not None:
        for each in child:
            yield from _pieces(each)
