"""The order of records in a batch.

The canonical order is (end_ns, id) for spans and (ts_ns, id) for marks and snapshots. A record has
a `seq`, its index in its list, if the canonical order gives another index, if its id is missing or
not unique in the list, or if its time is not an int.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]

TIME = {"spans": "end_ns", "marks": "ts_ns", "snapshots": "ts_ns"}


def sequence_numbers(records: Sequence[Record], time_field: str) -> list[int | None]:
    """Return the `seq` of each record; None if the canonical order gives its index."""
    return sequence_of(
        [record.get(time_field) for record in records], [record.get("id") for record in records]
    )


def sequence_of(times: Sequence[Any], ids: Sequence[Any]) -> list[int | None]:
    """Return the `seq` of each record, given the times and ids of the records."""
    count = Counter(some_id for some_id in ids if isinstance(some_id, str))
    ordered = [
        number
        for number, some_id in enumerate(ids)
        if isinstance(some_id, str) and count[some_id] == 1 and type(times[number]) is int
    ]
    canonical = sorted(ordered, key=lambda number: (times[number], ids[number]))
    result: list[int | None] = list(range(len(ids)))
    for place, number in zip(ordered, canonical, strict=True):
        if place == number:
            result[number] = None
    return result


def arranged(
    placed: Sequence[tuple[Record, int | None]], time_field: str
) -> list[tuple[Record, int | None]]:
    """Sort the records of one list. If records are missing, the order is approximate."""
    free = [(record, seq) for record, seq in placed if seq is None]
    free.sort(key=lambda each: (_int(each[0].get(time_field)), str(each[0].get("id"))))
    fixed = sorted(
        ((seq, n) for n, (_, seq) in enumerate(placed) if seq is not None),
    )
    result: list[tuple[Record, int | None]] = []
    rest = iter(free)
    for seq, number in fixed:
        while len(result) < seq and (record := next(rest, None)) is not None:
            result.append(record)
        result.append(placed[number])
    result.extend(rest)
    return result


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
