"""Single records of a run's batches, as they were recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Protocol

from ..records.verbatim import record_at, span_records
from ..spool.reader import BatchFile


class BatchLookup(Protocol):
    """Finds batches by the names of their files, like a SpoolReader."""

    def read(self, name: str, *, check: bool = True) -> BatchFile | None:
        """Return a batch; None if there is none that can be read."""


def records_at(
    reader: BatchLookup, places: Iterable[tuple[str, str, int]]
) -> dict[str, dict[str, Any]]:
    """Return the recorded spans with some ids, each from a batch and its position in it.

    Those whose file was removed are left out.
    """
    places_by_name: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for span_id, name, position in places:
        places_by_name[name].append((span_id, position))
    spans: dict[str, dict[str, Any]] = {}
    for name, in_batch in places_by_name.items():
        batch = reader.read(name, check=False)
        if batch is not None:
            records = span_records(batch.data)
            for span_id, position in in_batch:
                record = record_at(records, position)
                if record is not None and record.get("id") == span_id:
                    spans[span_id] = record
    return spans
