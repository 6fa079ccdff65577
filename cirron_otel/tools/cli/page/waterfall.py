"""Waterfall charts of the run and of single steps: a row per scope, positioned by its time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .... import exactjson
from ....core.run.step_traces import StepTrace
from ....core.run.trees import MarkNode, TreeNode, scopes_of
from ....semconv import COSTS
from ...present.formatting import duration, is_listed, local_moment, size, value_text
from .charts import placed
from .element import Content, Element, text_of
from .parts import Palette, note, rank_name, short, table, took

_MOST_LEVELS = 12
_FIELDS = (*(field for _, field in COSTS), "thread_id")
_MOST_FIELDS = 16
_LONGEST_FIELD = 120
_MOST_DETAIL = 200_000
"""The maximum total length of the attributes and marks on one page, in characters of HTML."""

_SUMS = (
    "Dashed bars are sums: how long a phase took in its step was recorded, and not when. They all"
    " begin with the step."
)


class Details:
    """Renders the attributes and marks of scopes as long as the page has room."""

    def __init__(self, records: dict[str, dict[str, Any]]) -> None:
        """`records` are the records of the scopes, by id."""
        self._records = records
        self._left = _MOST_DETAIL

    def of(self, node: TreeNode) -> Element | None:
        """Return the attributes and the marks of a scope.

        Returns None if there are none, or if the page has no room left for them.
        """
        rows = [*self._fields(node), *_marks(node.marks)]
        if node.marks_left_out:
            rows.append(("marks", f"{node.marks_left_out:,} more"))
        if node.snapshots:
            rows.append(("snapshots", f"{node.snapshots:,}"))
        rows = [(short(name), short(value, _LONGEST_FIELD)) for name, value in rows]
        self._left -= sum(len(text_of(each)) for row in rows for each in row)
        if not rows or self._left < 0:
            return None
        return Element("dl", [
            Element("div", Element("dt", name), Element("dd", value)) for name, value in rows
        ], class_="fields")  # fmt: skip

    def _fields(self, node: TreeNode) -> Iterator[tuple[str, str]]:
        if node.id is not None:
            yield "id", node.id
        record = self._records.get(node.id or "", {})
        for place, (name, value) in enumerate(fields_of(record)):
            if place == _MOST_FIELDS:
                yield "…", "more attributes"
                return
            yield name, _value(name, value)


def fields_of(record: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the costs of a record, then its attributes."""
    for name in _FIELDS:
        if record.get(name) is not None:
            yield name, record[name]
    attributes = record.get("attrs")
    if isinstance(attributes, dict):
        yield from attributes.items()


def _value(name: str, value: Any) -> str:
    """Format an attribute's value; the suffixes `_ns` and `_bytes` of its name imply a unit."""
    if type(value) is int and name.endswith("_ns"):
        return duration(value)
    if type(value) is int and name.endswith("_bytes") and value >= 0:
        return size(value)
    return value if isinstance(value, str) else exactjson.dumps_ascii(value)


def _marks(marks: Iterable[MarkNode]) -> Iterator[tuple[str, str]]:
    for mark in marks:
        if is_listed(mark.name):
            yield f"● {mark.name or '?'}", value_text(mark.value)


def waterfall(
    caption: str,
    trees: Sequence[TreeNode],
    palette: Palette,
    details: Details,
    *,
    is_open: bool = False,
) -> Element | None:
    """Draw trees on one time scale, from the first start to the last end.

    With `is_open`, the details of the outermost scopes are expanded. Returns None if no scope has a
    start.
    """
    scopes = [each for tree in trees for each in scopes_of(tree)]
    ranks = {tree.rank for tree in trees}
    known = [node for _, node in scopes if node.start_ns is not None]
    if not known:
        return None
    sums = {
        id(child): node.start_ns
        for _, node in scopes
        if node.phases_are_sums
        for child in node.children
    }
    first = min(node.start_ns or 0 for node in known)
    whole = max((node.start_ns or 0) + max(node.duration_ns or 0, 0) for node in known) - first
    rows = [
        _row(
            _name(level, node, details, is_one_of=len(ranks) > 1, is_open=is_open and not level),
            (level, node),
            (first, whole),
            palette,
            sums,
        )
        for level, node in scopes
    ]
    heads = ("scope", "took", f"0 to {duration(whole)}")
    drawn = table(caption, heads, rows, right=("took",), class_="fall")
    return Element("div", drawn, note(_SUMS)) if sums else drawn


def _row(
    named: Content,
    scope: tuple[int, TreeNode],
    scale: tuple[int, int],
    palette: Palette,
    sums: dict[int, int | None],
) -> list[Content]:
    """Return a row. `sums` has the starts of the parents of phases without a position."""
    level, node = scope
    first, whole = scale
    bar: Content = None
    if id(node) in sums:
        class_ = f"{palette.of(node.name)} sum"
        bar = placed(class_, (sums[id(node)] or 0) - first, node.duration_ns or 0, whole, ())
        return [named, took(node.duration_ns), bar]
    if node.start_ns is not None:
        marks = (mark.ts_ns - first for mark in node.marks
                 if mark.ts_ns is not None and is_listed(mark.name))  # fmt: skip
        class_ = palette.of(node.name) if level else "k0"
        bar = placed(class_, node.start_ns - first, node.duration_ns or 0, whole, marks)
    return [named, took(node.duration_ns), bar]


def _name(
    level: int, node: TreeNode, details: Details, *, is_one_of: bool, is_open: bool
) -> Content:
    named = scope_name(node.name, node.index)
    if is_one_of and not level:
        named += f", {rank_name(node.rank)}"
    title: list[Content] = [named]
    if node.error is not None:
        title.append(Element("span", " " + short(node.error), class_="bad"))
    if node.children_left_out:
        title.append(Element("span", f" + {node.children_left_out:,} in it", class_="dim"))
    body = details.of(node)
    if body is None:
        return _indented(level, title)
    shown = Element("details", Element("summary", title), body, open="" if is_open else None)
    return _indented(level, shown)


def _indented(level: int, content: Content) -> Element:
    return Element("div", content, class_=f"in d{min(level, _MOST_LEVELS)}")


def scope_name(name: str | None, index: str | None) -> str:
    """Return a name such as `step 4`."""
    return short(name or "?") if index is None else f"{short(name or '?', 40)} {short(index, 19)}"


def step_page(
    trace: StepTrace, anchor: str, palette: Palette, details: Details, is_open: bool
) -> Element:
    """Return the details of one step, as a collapsible block."""
    step = trace.step
    where = [scope_name(*each) for each in (*trace.above, (step.name or "?", step.index))]
    why = {
        "slowest": f"the slowest step of {rank_name(step.rank)}",
        "typical": f"a typical step of {rank_name(step.rank)}",
    }.get(trace.why, f"asked for, {rank_name(step.rank)}")
    caption = f"{' › '.join(where)}: {why}"
    facts = [
        ("started", local_moment(step.start_ns)),
        ("took", took(step.duration_ns)),
        ("span", Element("code", step.id or "-")),
        ("process, thread", f"{_known(step.pid)}, {_known(step.thread_id)}"),
    ]
    if step.session is not None:
        facts.append(("session", Element("code", step.session)))
    drawn = waterfall(caption, [step], palette, details, is_open=True)
    named = Element("strong", scope_name(step.name, step.index))
    title: list[Content] = [named, f", {duration(step.duration_ns)}: {why}"]
    return Element(
        "details",
        Element("summary", title),
        Element("p", " › ".join(where), class_="path", id=anchor),
        facts_list(facts),
        drawn if drawn is not None else note("No times are recorded for it."),
        open="" if is_open else None,
        class_="trace",
    )


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)


def facts_list(facts: Iterable[tuple[str, Content]]) -> Element:
    """Return a list of facts with their names."""
    return Element("dl", [
        Element("div", Element("dt", name), Element("dd", value)) for name, value in facts
    ], class_="facts")  # fmt: skip
