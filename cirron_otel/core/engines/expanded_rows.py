"""The records of odd batches, which an index expands, as rows of the relations of an engine."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from ..analysis.index import SpoolIndex, id_of, key_of
from ..records.memory_marks import KIND_BY_NAME, STORMLOG_ERROR
from ..records.rows import shown
from .engine import PLACES

MEMORY_NAMES: Final = (*KIND_BY_NAME, STORMLOG_ERROR)
"""The names of the marks about memory."""
ADD_SPAN: Final = f"INSERT OR IGNORE INTO span VALUES (?{', ?' * 20})"  # noqa: S608 - constants
_INT64: Final = range(-(2**63) + 1, 2**63)


def expanded_rows(
    index: SpoolIndex,
) -> tuple[Iterable[tuple[Any, ...]], Iterable[tuple[Any, ...]]]:
    """Return the spans and the marks of an index of odd batches as rows of the relations."""
    return _spans_of(index), _marks_of(index)


def _spans_of(index: SpoolIndex) -> Iterator[tuple[Any, ...]]:
    query = """
        SELECT file, row_number() OVER (PARTITION BY file ORDER BY no) - 1, position, id, parent,
            name, idx, start_ns, end_ns, pid, rank, thread_id, error, gpu_ns, memory_peak,
            device_peak, reserved_peak, is_peak_sampled, phases_are_sums, training, origin
        FROM span
    """
    for file, place, position, id_, parent, *rest, sampled, sums, training, origin in index.rows(
        query
    ):
        ids = (None if key is None else id_of(key) for key in (id_, parent))
        yield (
            file * PLACES + place, position, *ids, *rest, bool(sampled), bool(sums), training,
            None if origin is None else id_of(origin),
        )  # fmt: skip


def _marks_of(index: SpoolIndex) -> Iterator[tuple[Any, ...]]:
    query = """
        SELECT mark.file, position, mark.id, span, mark.name, kind, ts_ns, device, value, is_text,
            has_summaries
        FROM mark JOIN file ON file.no = mark.file
    """
    for file, position, id_, span, *rest, value, is_text, has_summaries in index.rows(query):
        ids = (None if key is None else id_of(key) for key in (id_, span))
        yield (
            file * PLACES + position, *ids, *rest, *_typed(value, is_text=bool(is_text)), None,
            bool(has_summaries), bool(is_text),
        )  # fmt: skip


def _typed(value: str | None, *, is_text: bool) -> tuple[str | None, float | None, int | None]:
    """Return a value, which an index has as text, as a text, a double or an integer."""
    if value is not None and not is_text:
        with contextlib.suppress(ValueError):
            integer = int(value)
            if str(integer) == value and integer in _INT64:
                return None, None, integer
        with contextlib.suppress(ValueError):
            double = float(value)
            if math.isfinite(double) and shown(double) == value:
                return None, double, None
    return value, None, None


def value_of(text: str | None, number: float | None, integer: int | None, flag: bool | None) -> Any:
    """Return the value of a mark."""
    return next((each for each in (number, integer, flag) if each is not None), text)


def span_row(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row of the relation `span` as the values of `ADD_SPAN`."""
    no, position, id_, parent, *rest, origin = row
    return no, no // PLACES, position, key_of(id_), key_of(parent), *rest, key_of(origin)
