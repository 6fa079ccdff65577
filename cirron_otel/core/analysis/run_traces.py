"""Single records of a run's batches, as they were recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from ..records.verbatim import record_at, span_records
from ..spool.reader import BatchFile


class BatchLookup(Protocol):
    """Finds batches by the names of their files, like a SpoolReader."""

    def read_all(self, names: Iterable[str]) -> Iterator[BatchFile]:
        """Yield the batches that can be read, in any order."""


def records_at(
    reader: BatchLookup, places: Iterable[tuple[str, str, int]]
) -> dict[str, dict[str, Any]]:
    """Return the recorded spans with some ids, each from a batch and its position in it.

    Those whose file was removed are left out.
    """
    ordered = list(places)
    positions: dict[str, list[int]] = defaultdict(list)
    for _, name, position in ordered:
        positions[name].append(position)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for batch in reader.read_all(positions):
        records = span_records(batch.data)
        for position in positions[batch.name]:
            record = record_at(records, position)
            if record is not None:
                found[batch.name, position] = record
    spans = ((span_id, found.get((name, position))) for span_id, name, position in ordered)
    return {
        span_id: record
        for span_id, record in spans
        if record is not None and record.get("id") == span_id
    }
