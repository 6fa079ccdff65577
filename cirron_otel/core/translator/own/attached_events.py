"""The marks and snapshots on a span: their order, their size limit, and the overhead mark."""

from __future__ import annotations

from .... import exactjson
from .... import semconv as sc
from ..values import is_int
from .spans import Placed, SpanSet, overhead_mark


def in_order_of(mark_ids: object, marks: list[Placed]) -> list[Placed]:
    """Order a span's marks by `mark_ids` if that names exactly these marks; else keep the order."""
    if not isinstance(mark_ids, list) or len(mark_ids) != len(marks):
        return marks
    by_id = {m["id"]: (m, seq) for m, seq in marks if isinstance(m.get("id"), str)}
    if len(by_id) != len(marks) or not all(isinstance(i, str) and i in by_id for i in mark_ids):
        return marks
    ordered = [by_id[mark_id] for mark_id in mark_ids]
    return ordered if len({id(mark) for mark, _ in ordered}) == len(marks) else marks


def take_overhead(unit: SpanSet, marks: list[Placed]) -> list[Placed]:
    """Take the SDK's own overhead mark, if it is the last one, as an attribute of the span."""
    record = unit.record
    if not marks or not isinstance(record.get("id"), str) or not is_int(record.get("end_ns"), 0):
        return marks
    mark, seq = marks[-1]
    value = mark.get("value")
    if seq is not None or not is_int(value) or len(marks) > sc.MAX_EVENTS:
        return marks
    if not exactjson.equal(mark, overhead_mark(record["id"], record["end_ns"], int(value or 0))):
        return marks
    unit.overhead_ns = value
    return marks[:-1]


def fitting(
    riders: list[Placed], most: int, space: int, at_least: int = 0
) -> tuple[tuple[list[Placed], int], list[Placed]]:
    """Split attached events into those that fit on the span, with their size, and the overflow.

    The size is in bytes and approximate. At least `at_least` events are among the first.
    """
    size = 0
    number = 0
    for record, _ in riders:
        record_size = 2 * len(exactjson.dumps(record))
        if number >= most or (size + record_size > space and number >= at_least):
            break
        size += record_size
        number += 1
    return (riders[:number], size), riders[number:]
