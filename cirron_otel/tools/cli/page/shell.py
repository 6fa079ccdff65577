"""The frame of every page: self-contained HTML that loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import metadata, resources
from typing import TYPE_CHECKING

from .element import Content, Element, Stylesheet
from .parts import code, table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def page_of(title: str, body: Element) -> Iterator[str]:
    """Yield the text of a page."""
    style = Stylesheet(resources.files(__package__).joinpath("style.css").read_text("utf-8"))
    head = Element(
        "head",
        Element("meta", charset="utf-8"),
        Element("meta", http_equiv="Content-Security-Policy", content=style.policy),
        Element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        Element("meta", name="color-scheme", content="light dark"),
        Element("title", title),
        style,
    )
    yield "<!DOCTYPE html>\n"
    yield from Element("html", head, body, lang="en").pieces()
    yield "\n"


def footer(command: str) -> Element:
    """Return the end of a page whose figures are those of a command."""
    return Element(
        "footer",
        f"Written by cirron-otel {metadata.version('cirron-otel')}. Times include their zone."
        " The figures are those of ",
        code(command),
        ".",
    )


def elements_of(parts: Iterable[RenderableType]) -> list[Content]:
    """Return the lines and tables of a command's text as paragraphs and tables.

    A line that is not indented begins a paragraph. A paragraph that ends with a colon is the
    caption of a table after it.
    """
    from rich.table import Table  # noqa: PLC0415 - so that other commands start faster

    found: list[Content] = []
    paragraph = ""
    for part in parts:
        if isinstance(part, Table):
            is_caption = paragraph.endswith(":")
            found += [paragraph and Element("p", paragraph), _table(part, paragraph * is_caption)]
            paragraph = ""
            continue
        for line in str(part).split("\n"):
            if line.startswith(" "):
                paragraph = f"{paragraph} {line.strip()}".strip()
            elif line:
                found.append(paragraph and Element("p", paragraph))
                paragraph = line
    return [each for each in (*found, paragraph and Element("p", paragraph)) if each]


def _table(drawn: Table, caption: str) -> Element:
    heads = [str(column.header) for column in drawn.columns]
    caption = caption.removesuffix(":") or f"By {heads[0]}"
    right = [str(column.header) for column in drawn.columns if column.justify == "right"]
    rows = zip(*([str(cell) for cell in column.cells] for column in drawn.columns), strict=True)
    return table(caption, heads, rows, right=right)
