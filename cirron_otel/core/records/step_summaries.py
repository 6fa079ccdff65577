"""Steps as summaries: the form in which an export budget sends steps (docs/scaling.md).

A *step summary* is the span of a step that also contains the scopes inside it, as rows of its
attribute `step.inside`. A *step group* is a span that contains several steps, as entries of its
attribute `steps.entries`. Both are JSON text, which every mapper passes on as one string.
`expand` restores the steps and the scopes, without what a summary leaves out: the attributes, the
marks and the ids of the scopes inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from ... import exactjson
from ...ids import digest, is_id
from .columns import well_formed
from .rows import IndexedBatch, IndexedSpan

STEP: Final = "step"
GROUP: Final = "steps"
"""The name of a step group."""
INSIDE: Final = "step.inside"
"""The attribute of a step with the scopes inside it. A row consists of the name, the row
number of the parent (-1: the step), the start, from the step's, and the duration in ns, then, if
known, the time on the device in ns, and, if the row stands for several scopes, their number."""
STEPS: Final = "steps.entries"
"""The attribute of a group with its steps: their fields, without those of the group, and `inside`,
the rows of the scopes inside them."""
STEP_COUNT: Final = "steps.count"
"""The attribute of a group with the number of its steps."""
SUMMARISED: Final = "summarised"
"""The member of a complete batch's `otel` that lists the steps to summarise for an export."""
SUMMARY_OF: Final = "summary_of"
"""The member of an exported batch's `otel` with the id of the complete batch, and the numbers of
spans and marks that the export leaves out."""
MAX_ROWS: Final = 1000
"""If a step has more scopes, those of one name and parent share a row."""
_HINTS = (b'"step.inside"', b'"steps.entries"')
_ROWS = "inside"
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_SURROGATE, _HALF = r"\ud", r"\ufffd"
_ESCAPES: Final = re.compile(r"\\(?:ud[89ab]..\\ud[c-f]..|ud[89a-f]..|.)")
"""An escape of JSON in the form that `exactjson` writes; pairs of surrogates are one."""
_HARMLESS = frozenset({"trace_id"})
"""The members of a scope's `otel` that a summary may leave out."""
_AROUND_MARKS = frozenset({"eval", "epoch"})
"""The scopes that determine the series of the marks inside them."""
_DURATION, _GPU, _TIMES = 3, 4, 5
_STEP_FIELDS = frozenset({
    "id", "index", "start_ns", "end_ns", "cpu_ns", "gpu_ns", "memory_peak_bytes", "attrs",
    "mark_ids",
})  # fmt: skip


class ExpandedSpan(IndexedSpan):
    """A summarised step, or a scope inside one."""

    origin: str | None = None
    """The id of the step."""

    @property
    def is_summary(self) -> bool:
        """Whether it is from the summary of a step."""
        return True


def is_plain(id_: Any, name: Any, start_ns: Any, end_ns: Any, otel: Any) -> bool:
    """Return whether a summary can represent a scope with these fields.

    `otel` is None if the scope has none. A failed scope, a scope with links or events, a call of
    another service, an evaluation, and a scope with half of a surrogate pair, or U+FFFD, in its
    name are never plain.
    """
    return (
        is_id(id_)
        and isinstance(name, str)
        and name not in _AROUND_MARKS
        and (name.isascii() or _REPLACEMENT not in well_formed(name))
        and type(start_ns) is int
        and type(end_ns) is int
        and 0 <= start_ns <= end_ns < 2**63
        and (otel is None or (isinstance(otel, dict) and otel.keys() <= _HARMLESS))
    )


def scopes_inside(
    ids: Sequence[Any], parents: Sequence[Any], names: Sequence[Any]
) -> dict[int, list[int]]:
    """Return the positions of the scopes inside each outermost step of a batch, parents first.

    The columns contain the ids, the parents' ids and the names of a batch's spans. Returns {} if
    one is not an id, or if an id occurs twice.
    """
    places = {id_: place for place, id_ in enumerate(ids) if isinstance(id_, str)}
    if len(places) < len(ids) or not all(p is None or isinstance(p, str) for p in parents):
        return {}
    children: dict[int, list[int]] = {}
    for place, parent in enumerate(parents):
        above = places.get(parent)
        if above is not None and above != place:
            children.setdefault(above, []).append(place)
    inside: dict[int, list[int]] = {}
    for place, name in enumerate(names):
        if name == STEP and not _is_in_step(place, places, parents, names):
            found = inside[place] = []
            todo = children.get(place, [])
            while todo:
                found += todo
                todo = [below for each in todo for below in children.get(each, ())]
    return inside


def _is_in_step(
    place: int, places: Mapping[str, int], parents: Sequence[Any], names: Sequence[Any]
) -> bool:
    """Return whether a scope is inside a step of its batch, or in a cycle of parents."""
    seen = {place}
    while (parent := parents[place]) in places:
        place = places[parent]
        if place in seen or names[place] == STEP:
            return True
        seen.add(place)
    return False


# --- writing --------------------------------------------------------------------------------------


def inside_rows(step: Mapping[str, Any], scopes: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Return the rows for the scopes inside a step, which are plain records.

    The rows have the order of the scopes. If there are more than `MAX_ROWS` scopes, parents must
    come first.
    """
    if len(scopes) > MAX_ROWS:
        return _merged_rows(step, scopes)
    numbers = {scope["id"]: number for number, scope in enumerate(scopes)}
    rows = []
    for scope in scopes:
        row = _row(step, scope, numbers.get(scope["parent_id"], -1))
        rows.append(row if row[_GPU] is not None else row[:_GPU])
    return rows


def _merged_rows(step: Mapping[str, Any], scopes: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    numbers: dict[str, int] = {}
    merged: dict[tuple[int, str], int] = {}
    for scope in scopes:
        parent, name = numbers.get(scope["parent_id"], -1), scope["name"]
        row = _row(step, scope, parent)
        number = merged.setdefault((parent, name), len(rows))
        if number == len(rows):
            rows.append([*row, 1])
        else:
            first = rows[number]
            first[_DURATION] += row[_DURATION]
            if row[_GPU] is not None:
                first[_GPU] = (first[_GPU] or 0) + row[_GPU]
            first[_TIMES] += 1
        numbers[scope["id"]] = number
    return rows


def _row(step: Mapping[str, Any], scope: Mapping[str, Any], parent: int) -> list[Any]:
    start_ns = scope["start_ns"]
    duration_ns = scope["end_ns"] - start_ns
    gpu_ns = scope.get("gpu_ns")
    return [
        scope["name"], parent, start_ns - step["start_ns"], duration_ns,
        gpu_ns if type(gpu_ns) is int else None,
    ]  # fmt: skip


def phase_sums(rows: Sequence[Sequence[Any]]) -> dict[str, int]:
    """Return the sum of the durations for each name of scopes directly inside a step, as attributes
    for people: `phase.<name>_ns`.
    """
    sums: dict[str, int] = {}
    for name, parent, _, duration_ns, *_ in rows:
        if parent == -1:
            key = f"phase.{name}_ns"
            sums[key] = sums.get(key, 0) + duration_ns
    return sums


# --- reading --------------------------------------------------------------------------------------


def may_have_summaries(data: bytes) -> bool:
    """Return whether the text of a batch may contain summaries; parsing it takes longer."""
    return any(hint in data for hint in _HINTS)


def expand(rows: IndexedBatch) -> list[tuple[int, IndexedSpan]]:
    """Return the spans of a batch and their positions, with its summaries and groups expanded.

    The spans from a summary have the position of the span that contains it. The marks of a group's
    steps get their step as their scope.
    """
    out: list[tuple[int, IndexedSpan]] = []
    owners: dict[str, str] = {}
    for place, span in enumerate(rows.spans):
        entries = _listed(span, STEPS) if span.name == GROUP else None
        rows_inside = _listed(span, INSIDE) if span.name == STEP else None
        if entries is not None and all(map(_is_entry, entries)):
            for entry in entries:
                step = _step_of(span, entry)
                owners.update(dict.fromkeys(step.mark_ids, step.id or ""))
                out += [(place, each) for each in _restored(step, entry.get(_ROWS))]
        elif rows_inside is not None:
            out += [(place, each) for each in _restored(_expanded(span), rows_inside)]
        else:
            out.append((place, span))
    for mark in rows.marks:
        if mark.id in owners:
            mark.span_id = owners[mark.id]
    return out


def _listed(span: IndexedSpan, name: str) -> list[Any] | None:
    """Return the list in an attribute of a span; None if it has none."""
    attributes = span.attributes
    return listed(attributes.get(name)) if isinstance(attributes, dict) else None


def listed(text: object) -> list[Any] | None:
    """Return the list that is the value of `INSIDE` or `STEPS`; None for any other value."""
    try:
        value = msgspec.json.decode(text) if isinstance(text, str) else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def text_of(values: Sequence[Any]) -> str:
    """Return the value of `INSIDE` or `STEPS` for these rows or entries.

    Halves of surrogate pairs in attributes are replaced by U+FFFD: parsers of JSON reject them.
    """
    text = exactjson.dumps_ascii(values)
    return _ESCAPES.sub(_well_formed_escape, text) if _SURROGATE in text else text


def _well_formed_escape(match: re.Match[str]) -> str:
    escape = match[0]
    is_half = len(escape) == len(_HALF) and escape.startswith(_SURROGATE)
    return _HALF if is_half else escape


def _restored(step: ExpandedSpan, inside: Any) -> Iterator[IndexedSpan]:
    """Yield the scopes inside a step, and the step; only the step if the rows are not valid."""
    rows = inside if isinstance(inside, list) else []
    if all(_is_row(row, len(rows)) for row in rows):
        ids = [digest(INSIDE, step.id or "", number)[:16].hex() for number in range(len(rows))]
        for id_, (name, parent, offset_ns, duration_ns, *more) in zip(ids, rows, strict=True):
            start_ns = (step.start_ns or 0) + offset_ns
            yield ExpandedSpan(
                id_,
                step.id if parent < 0 else ids[parent],
                name,
                None,
                start_ns,
                start_ns + duration_ns,
                step.pid,
                step.rank,
                step.thread_id,
                more[0] if more else None,
                origin=step.id,
            )
    yield step


def _expanded(span: IndexedSpan) -> ExpandedSpan:
    fields = {name: getattr(span, name) for name in span.__struct_fields__}
    return ExpandedSpan(**fields, origin=span.id)


def _step_of(group: IndexedSpan, entry: dict[str, Any]) -> ExpandedSpan:
    return ExpandedSpan(
        entry["id"],
        group.parent_id,
        STEP,
        entry.get("index"),
        entry["start_ns"],
        entry["end_ns"],
        group.pid,
        group.rank,
        group.thread_id,
        entry.get("gpu_ns"),
        entry.get("memory_peak_bytes"),
        [each for each in entry.get("mark_ids", ()) if isinstance(each, str)],
        msgspec.Raw(msgspec.json.encode(entry.get("attrs", {}))),
        origin=entry["id"],
    )


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() <= _STEP_FIELDS | {_ROWS}
        and is_plain(entry.get("id"), STEP, entry.get("start_ns"), entry.get("end_ns"), None)
        and isinstance(entry.get("mark_ids", []), list)
        and all(_is_optional_int(entry.get(key)) for key in ("gpu_ns", "memory_peak_bytes"))
    )


def _is_row(row: Any, count: int) -> bool:
    return (
        isinstance(row, list)
        and len(row) >= 4
        and isinstance(row[0], str)
        and all(type(each) is int for each in row[1:4])
        and -1 <= row[1] < count
        and row[3] >= 0
        and all(_is_optional_int(each) for each in row[4:])
    )


def _is_optional_int(value: Any) -> bool:
    return value is None or type(value) is int


def entry_of(
    step: Mapping[str, Any], mark_ids: Sequence[str], rows: list[list[Any]]
) -> dict[str, Any]:
    """Return the entry of a step in a group."""
    entry: dict[str, Any] = {
        key: step[key]
        for key in ("id", "index", "start_ns", "end_ns", "cpu_ns", "gpu_ns", "memory_peak_bytes")
        if step.get(key) is not None
    }
    if step.get("attrs"):
        entry["attrs"] = step["attrs"]
    if mark_ids:
        entry["mark_ids"] = list(mark_ids)
    return entry | {_ROWS: rows}
