"""A strict parser of the pages that `report --html` writes: any mistake is an AssertionError.

HTML that browsers repair (an unclosed tag, a repeated attribute) is a mistake, and so is anything
that could run, load or lead to other sites.
"""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

_VOID = {"meta"}
_LEAVES = {"rect", "path", "line"}
_FORBIDDEN = {
    "script", "iframe", "object", "embed", "link", "img", "image", "video", "audio", "source",
    "form", "input", "button", "base", "use", "foreignobject", "animate", "set", "template",
}  # fmt: skip
_LOADING = {"src", "srcset", "action", "formaction", "data", "poster", "background", "style"}


class Page(HTMLParser):
    """A page that was read: its tables, its ids, its text."""

    def __init__(self, text: str) -> None:
        """Parse and check the complete page."""
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.texts: list[str] = []
        self.style = ""
        self.policy = ""
        self.tables: dict[str, list[list[Any]]] = {}
        """The rows of each table by its caption: texts, and the numbers of `data` elements."""
        self.sections: list[str] = []
        self._rows: list[list[Any]] = []
        self._caption = ""
        self._value: int | None = None
        assert text.startswith("<!DOCTYPE html>\n<html")
        self.feed(text)
        self.close()
        assert self.open == [], "elements that are never closed"
        assert self.rawdata == ""
        assert self.links <= self.ids, "links that lead nowhere"
        digest = base64.b64encode(hashlib.sha256(self.style.encode()).digest()).decode()
        assert self.policy.split("; ") == [
            "default-src 'none'", f"style-src 'sha256-{digest}'", "base-uri 'none'",
            "form-action 'none'",
        ]  # fmt: skip

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._check(tag, attrs)
        assert tag not in _LEAVES or any(key == "x" for key, _ in attrs)
        if tag not in _VOID:
            self.open.append(tag)
        given = dict(attrs)
        if tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th") and self._rows:
            self._rows[-1].append("")
        elif tag == "table":
            self._rows = []
        elif tag == "data":
            self._value = int(given["value"] or "")
        elif tag == "section":
            self.sections.append(given.get("id") or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _LEAVES, f"<{tag}/> means <{tag}> in HTML"
        self._check(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag
        if tag == "table":
            assert self._caption not in self.tables or self._caption == ""
            self.tables[self._caption] = [row for row in self._rows if row]

    def handle_data(self, data: str) -> None:
        where = self.open[-1] if self.open else ""
        if where == "style":
            self.style += data
            return
        assert data.isprintable() or not data.strip(), f"{data!r} is not escaped"
        self.texts.append(data)
        if where == "caption":
            self._caption = data
        elif self._value is not None:
            if "table" in self.open:
                self._rows[-1][-1] = self._value
            self._value = None
        elif "tbody" in self.open and "svg" not in self.open:
            self._rows[-1][-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data!r}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data!r}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"a declaration: {data!r}")

    def _check(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in _FORBIDDEN, tag
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"{tag} has an attribute twice"
        for name, value in attrs:
            assert re.fullmatch(r"[a-z][a-z0-9-]*", name), name
            assert not name.startswith("on"), name
            assert name not in _LOADING, name
            assert value is not None
            assert value.isprintable(), f"{value!r} is not escaped"
            if name == "href":
                assert value.startswith("#"), value
                self.links.add(value[1:])
            elif name == "id":
                assert value not in self.ids, f"{value} is there twice"
                self.ids.add(value)
        given = dict(attrs)
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        if tag == "th":
            assert given.get("scope") in ("row", "col")
        if tag == "svg":
            assert "aria-label" in given or given.get("aria-hidden") == "true"
