"""The building blocks of the page's sections: tables, numbers, legends, colours of phases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ....core.analysis.breakdown import Breakdown
from ...present.formatting import duration, printable
from .element import Content, Element

COLOURS = 7
"""The number of phases with a separate colour; all other phases share one."""
OTHERS = "k8"
REST = "k9"
"""The colour of time that no phase covers."""
_LONGEST = 60


def short(text: str | None, most: int = _LONGEST) -> str:
    """Return a name or a value, cut to `most` characters; `-` for None."""
    if text is None:
        return "-"
    text = printable(text[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"


def rank_name(rank: int | None) -> str:
    """Return the name of a rank."""
    return "no rank" if rank is None else f"rank {rank}"


def took(ns: int | None) -> Content:
    """Return a duration, with the exact value in an attribute for programs."""
    return Element("data", duration(ns), value=ns) if ns is not None else "?"


def number(value: int) -> Content:
    """Return a count, with the exact value in an attribute for programs."""
    return Element("data", f"{value:,}", value=value)


def share(part: float) -> str:
    """Return a fraction of 1 as a percentage."""
    return f"{100 * part:.1f} %"


def section(id_: str, heading: str, *content: Content) -> Element:
    """Return a section of the page with an id for links."""
    return Element(
        "section",
        Element("h2", heading, id=f"{id_}-h"),
        *content,
        id=id_,
        aria_labelledby=f"{id_}-h",
    )


def note(*text: Content) -> Element:
    """Return a paragraph with a remark."""
    return Element("p", *text, class_="note")


def code(text: str) -> Element:
    """Return a command or an option in code style."""
    return Element("code", text)


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[Content]],
    *,
    right: Iterable[str] = (),
    class_: str | None = None,
) -> Element:
    """Return a table whose first column names its rows; columns in `right` are right-aligned.

    A table that is wider than the page has its own scroll bar.
    """
    numeric = set(right)
    kinds = ["n" if head in numeric else None for head in heads]
    body = [
        Element("tr", [
            Element("td", cell, class_=kind) if place else
            Element("th", cell, scope="row", class_=kind)
            for place, (cell, kind) in enumerate(zip(row, kinds, strict=True))
        ])
        for row in rows
    ]  # fmt: skip
    named = [
        Element("th", head, scope="col", class_=kind)
        for head, kind in zip(heads, kinds, strict=True)
    ]
    drawn = Element(
        "table",
        Element("caption", caption, class_="unseen"),
        Element("thead", Element("tr", named)),
        Element("tbody", body),
        class_=class_,
    )
    return Element("div", drawn, class_="scroll", role="region", aria_label=caption, tabindex=0)


def folded(heading: str, *content: Content) -> Element:
    """Return content that is collapsed until the reader opens it."""
    return Element("details", Element("summary", heading), *content)


class Palette:
    """The colours of phases: each of the longest phases of the run has a separate colour."""

    def __init__(self, breakdowns: Iterable[Breakdown]) -> None:
        """Choose the longest phases of all ranks together."""
        totals: Counter[str] = Counter()
        for each in breakdowns:
            for phase in each.phases:
                totals[phase.name] += phase.total_ns
        longest = {name for name, _ in totals.most_common(COLOURS)}
        self.names = [name for name in totals if name in longest]
        """The names of the longest phases in order of first occurrence, usually their order within
        a step."""
        self.has_others = len(totals) > COLOURS
        self._places = {name: place for place, name in enumerate(self.names)}

    def of(self, name: str | None) -> str:
        """Return the CSS class of a phase."""
        place = self._places.get(name or "?")
        return OTHERS if place is None else f"k{place + 1}"

    def legend(self) -> Element:
        """Return the legend of the colours."""
        rows = [(self.of(name), short(name)) for name in self.names]
        if self.has_others:
            rows.append((OTHERS, "other phases"))
        rows.append((REST, "unattributed"))
        return Element("ul", [
            Element("li", Element("span", class_=f"swatch {class_}"), name)
            for class_, name in rows
        ], class_="legend")  # fmt: skip
