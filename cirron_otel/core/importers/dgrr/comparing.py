"""Compare the records of a trace with their replay, and of two traces with each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ....ulp import ulp_distance
from .checking import TraceData
from .layout import RECORD, TraceRecord
from .training import replayed

_COMPARED: Final = slice(40, 64)
"""`w_after`, `b_after` and `loss`."""
COMPARED_FIELDS: Final = ("w_after", "b_after", "loss")


class FieldDifference(NamedTuple):
    """Two values of a field."""

    name: str
    a: float
    b: float
    ulp: int | None
    """The distance; None if exactly one of the values is a NaN."""


@dataclass(frozen=True, slots=True)
class TraceDivergence:
    """The first step that differs in two traces."""

    step: int
    record: int
    """The position of the step in both traces, from 0."""
    fields: list[FieldDifference] = field(default_factory=list)
    """The fields that differ; none if one of the traces has ended before this step."""


def difference(name: str, a: float, b: float, tolerance: int) -> FieldDifference | None:
    """Return the difference of two values; None if they are at most `tolerance` ULPs apart."""
    ulp = ulp_distance(a, b)
    return None if ulp is not None and ulp <= tolerance else FieldDifference(name, a, b, ulp)


def replay_differences(
    record: TraceRecord, learning_rate: float, tolerance: int
) -> list[FieldDifference]:
    """Return the fields of a record that differ from their replay: `a` is stored, `b` computed."""
    w, b = replayed(record, learning_rate)
    pairs = (("w_after", record.w_after, w), ("b_after", record.b_after, b))
    return [each for pair in pairs if (each := difference(*pair, tolerance)) is not None]


def records_of(trace: TraceData) -> Iterator[TraceRecord]:
    """Yield the complete records of a trace."""
    for chunk in trace.chunks():
        yield from map(TraceRecord._make, RECORD.iter_unpack(chunk))


def first_divergence(a: TraceData, b: TraceData, tolerance: int) -> TraceDivergence | None:
    """Return the first step that differs; None if all are equal, and equally many."""
    position = 0
    for first, second in zip(_blocks(a, b), _blocks(b, a), strict=True):
        divergence = _in_block(first, second, position, tolerance)
        if divergence is not None:
            return divergence
        position += len(first) // RECORD.size
    if a.records == b.records:
        return None
    longer = a if a.records > b.records else b
    step = _record_at(longer, position).step_id
    return TraceDivergence(step, position)


def _blocks(trace: TraceData, other: TraceData) -> Iterator[bytes]:
    """Yield the records of a trace that the other trace has too; both yield equal lengths."""
    left = min(trace.records, other.records) * RECORD.size
    for chunk in trace.chunks():
        if not left:
            return
        yield chunk[:left]
        left -= len(chunk[:left])


def _in_block(first: bytes, second: bytes, position: int, tolerance: int) -> TraceDivergence | None:
    if first == second:
        return None
    for start in range(0, len(first), RECORD.size):
        one, other = first[start : start + RECORD.size], second[start : start + RECORD.size]
        if one[_COMPARED] == other[_COMPARED]:
            continue
        a, b = TraceRecord.parse(one), TraceRecord.parse(other)
        differences = [
            each
            for name in COMPARED_FIELDS
            if (each := difference(name, getattr(a, name), getattr(b, name), tolerance))
        ]
        if differences:
            return TraceDivergence(a.step_id, position + start // RECORD.size, differences)
    return None


def _record_at(trace: TraceData, position: int) -> TraceRecord:
    for chunk in trace.chunks():
        count = len(chunk) // RECORD.size
        if position < count:
            return TraceRecord.parse(chunk[position * RECORD.size : (position + 1) * RECORD.size])
        position -= count
    raise IndexError(position)
