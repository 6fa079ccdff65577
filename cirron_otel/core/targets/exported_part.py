"""The part of a batch that an export budget lets through: steps as summaries (docs/scaling.md).

The flush that built the batch decided which steps to summarise, and listed them in
`otel.summarised`. So the result depends on the batch alone, whoever sends it, and however often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import exactjson
from ...ids import digest
from ...semconv import OVERHEAD_NS
from ..delivery.batch_target import SealedBatch
from ..records.step_summaries import (
    GROUP,
    INSIDE,
    MAX_ROWS,
    STEP_COUNT,
    STEPS,
    SUMMARISED,
    SUMMARY_OF,
    entry_of,
    inside_rows,
    is_plain,
    phase_sums,
    scopes_inside,
    text_of,
)
from ..spool.owner import batch_id_of
from ..spool.paths import file_name

_HINT = f'"{SUMMARISED}":{{'.encode()
_COMMON = ("parent_id", "thread_id", "pid", "rank", "otel")
_PREFIX_DIGITS = 12


def exported_part(batch: SealedBatch) -> SealedBatch:
    """Return a batch with the steps summarised that it lists; most batches are returned unparsed.

    The part has an id of its own, with the same owner. A listed step that is not in the batch, or
    that a summary cannot represent, is sent completely. Raises InputError if the batch has to be
    parsed and is not JSON.
    """
    if _HINT not in batch.data:
        return batch
    document = exactjson.loads(batch.data)
    stated = document["otel"].get(SUMMARISED) if _has_lists(document) else None
    if not isinstance(stated, dict):
        return batch
    part = _Part(document)
    for id_ in _ids(stated.get("steps")):
        part.summarise(id_)
    groups = stated.get("groups")
    for ids in groups if isinstance(groups, list) else ():
        part.group(_ids(ids))
    return SealedBatch(*part.finished())


def _has_lists(batch: Any) -> bool:
    """Return whether a parsed batch has the shape of those that the SDK writes."""
    return (
        isinstance(batch, dict)
        and isinstance(batch.get("otel"), dict)
        and isinstance(batch.get("batch_id"), str)
        and type(batch.get("created_ns")) is int
        and all(
            isinstance(batch.get(key), list) and all(isinstance(e, dict) for e in batch[key])
            for key in ("spans", "marks", "snapshots")
        )
    )


def _ids(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


class _Part:
    """A batch of which some steps are being replaced."""

    def __init__(self, batch: dict[str, Any]) -> None:
        self._batch = batch
        self._spans: list[dict[str, Any]] = batch["spans"]
        ids = [span.get("id") for span in self._spans]
        names = [span.get("name") for span in self._spans]
        places = scopes_inside(ids, [span.get("parent_id") for span in self._spans], names)
        pinned = {each.get("span_id") for each in batch["snapshots"]}
        self._inside: dict[str, tuple[int, list[int]]] = {
            str(ids[place]): (place, inside)
            for place, inside in places.items()
            if all(self._is_plain(each) and ids[each] not in pinned for each in (place, *inside))
        }
        """The position of each step that can be summarised, and those of the scopes inside it."""
        self._marks: dict[str, list[dict[str, Any]]] = {}
        for mark in batch["marks"]:
            if isinstance(span_id := mark.get("span_id"), str):
                self._marks.setdefault(span_id, []).append(mark)
        self._left_out: set[int] = set()
        self._dropped_marks: set[int] = set()
        self._groups: list[dict[str, Any]] = []

    def _is_plain(self, place: int) -> bool:
        span = self._spans[place]
        fields = (span.get(key) for key in ("id", "name", "start_ns", "end_ns", "otel"))
        is_listed = isinstance(span.get("mark_ids", []), list)
        return is_plain(*fields) and is_listed and isinstance(span.get("attrs", {}), dict)

    def summarise(self, step_id: str) -> None:
        """Replace the scopes inside a step by rows of the step's attribute."""
        place, inside = self._inside.pop(step_id, (-1, []))
        if not inside:
            return
        step = self._spans[place]
        rows = self._taken(step, inside)
        own = list(step.get("mark_ids", ()))
        # The SDK's overhead mark stays the last one: only then it is an attribute in OTLP.
        end = len(own) - any(
            m.get("name") == OVERHEAD_NS for m in self._marks.get(step_id, ())[-1:]
        )
        moved = self._moved(inside, step_id)
        step["mark_ids"] = [*own[:end], *moved, *own[end:]]
        step["attrs"] = phase_sums(rows) | step.get("attrs", {}) | {INSIDE: text_of(rows)}

    def group(self, step_ids: Sequence[str]) -> None:
        """Replace steps with the same parent, thread, process and rank by one span."""
        places = [self._inside.pop(each, None) for each in step_ids]
        known = [each for each in places if each is not None]
        if not known:
            return
        first = self._spans[known[0][0]]
        common = [first.get(key) for key in _COMMON]
        same = [e for e in known if [self._spans[e[0]].get(key) for key in _COMMON] == common]
        entries: list[dict[str, Any]] = []
        sums: dict[str, int] = {}
        mark_ids: list[str] = []
        id_ = digest(GROUP, *(self._spans[place]["id"] for place, _ in same))[:8].hex()
        id_ += first["id"][16:]
        for place, inside in same:
            step = self._spans[place]
            rows = self._taken(step, inside)
            moved = self._moved([place, *inside], id_)
            mark_ids += moved
            entries.append(entry_of(step, moved, rows))
            for key, ns in phase_sums(rows).items():
                sums[key] = sums.get(key, 0) + ns
            self._left_out.add(place)
        attributes = {STEP_COUNT: len(entries), **sums, STEPS: text_of(entries)}
        group: dict[str, Any] = {
            "id": id_, "name": GROUP, "parent_id": first.get("parent_id"), "index": None,
            "start_ns": min(each["start_ns"] for each in entries),
            "end_ns": max(each["end_ns"] for each in entries),
            "cpu_ns": None, "gpu_ns": None, "memory_peak_bytes": None,
            "thread_id": first.get("thread_id"), "pid": first.get("pid"),
            "rank": first.get("rank"), "attrs": attributes, "mark_ids": mark_ids,
        }  # fmt: skip
        if "otel" in first:
            group["otel"] = first["otel"]
        self._groups.append(group)

    def _taken(self, step: dict[str, Any], inside: list[int]) -> list[list[Any]]:
        self._left_out.update(inside)
        places = inside if len(inside) > MAX_ROWS else sorted(inside)
        return inside_rows(step, [self._spans[each] for each in places])

    def _moved(self, places: Sequence[int], span_id: str) -> list[str]:
        """Attach the marks of some scopes, except the SDK's own, to another; return their ids."""
        moved = []
        for place in places:
            for mark in self._marks.get(self._spans[place]["id"], ()):
                if mark.get("name") == OVERHEAD_NS:
                    self._dropped_marks.add(id(mark))
                else:
                    mark["span_id"] = span_id
                    moved.append(mark.get("id"))
        return [each for each in moved if isinstance(each, str)]

    def finished(self) -> tuple[str, bytes]:
        """Return the file name and the content of the part."""
        batch, otel = self._batch, self._batch["otel"]
        left = [span for place, span in enumerate(self._spans) if place not in self._left_out]
        order = sorted([*left, *self._groups], key=_order) if self._groups else left
        batch_id, created_ns = batch["batch_id"], batch["created_ns"]
        part_id = batch_id_of(
            _prefix(batch_id), digest(SUMMARY_OF, batch_id, exactjson.dumps(otel[SUMMARISED]))
        )
        marks = [mark for mark in batch["marks"] if id(mark) not in self._dropped_marks]
        origin = {
            "batch_id": batch_id,
            "spans": len(self._spans) - len(order),
            "marks": len(batch["marks"]) - len(marks),
        }
        others = {key: value for key, value in otel.items() if key != SUMMARISED}
        batch |= {
            "batch_id": part_id, "spans": order, "marks": marks,
            "otel": others | {SUMMARY_OF: origin},
        }  # fmt: skip
        return file_name(created_ns, part_id), exactjson.dumps(batch)


def _prefix(batch_id: str) -> str:
    prefix = batch_id[:_PREFIX_DIGITS]
    is_hex = len(prefix) == _PREFIX_DIGITS and set(prefix) <= set("0123456789abcdef")
    return prefix if is_hex else "0" * _PREFIX_DIGITS


def _order(span: dict[str, Any]) -> tuple[int, str]:
    return span["end_ns"], span["id"]
