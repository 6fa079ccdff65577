"""Write batches as text: valid by construction, in the canonical order and encoding."""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

from ...._version import SDK_VERSION
from ....ids import uuid4_shaped
from ...spool.paths import file_name
from .marks import json_text

BATCH_MARKS: Final = 2_000
"""The number of marks after which a batch is complete."""
_NO_ID: Final = "0" * 32


class WrittenBatch(NamedTuple):
    """A batch, its file name, and the numbers of its records."""

    name: str
    data: bytes
    spans: int
    marks: int


class ImportedBatchText:
    """One batch that is being put together."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, str, str]] = []
        self._marks: list[str] = []
        self._last_mark_ns = 0

    def add_span(self, end_ns: int, span_id: str, span: dict[str, Any]) -> None:
        """Add a span."""
        self._spans.append((end_ns, span_id, json_text(span)))

    def add_marks(self, texts: list[str], last_ns: int) -> None:
        """Add the JSON texts of marks in the order (time, id), the last of this time."""
        self._marks += texts
        self._last_mark_ns = max(self._last_mark_ns, last_ns)

    def write(self, otel: dict[str, Any], stormlog: dict[str, Any]) -> WrittenBatch:
        """Return the batch. Its id is a digest of its content, its time that of its last record."""
        self._spans.sort()
        created = max(self._last_mark_ns, self._spans[-1][0] if self._spans else 0)
        spans = ",".join(text for _, _, text in self._spans)
        marks = ",".join(self._marks)
        parts = (
            f'{{"schema_version":1,"sdk_version":{json_text(SDK_VERSION)},"batch_id":"',
            f'","created_ns":{created},"spans":[{spans}],"marks":[{marks}],"snapshots":[]'
            f'{f""","otel":{json_text(otel)}""" if otel else ""}'
            f',"stormlog":{json_text(stormlog)}}}',
        )
        content = parts[1].encode()
        batch_id = uuid4_shaped(hashlib.sha256(b"stormlog\0" + content).digest())
        data = b"".join((parts[0].encode(), batch_id.encode(), content))
        return WrittenBatch(file_name(created, batch_id), data, len(self._spans), len(self._marks))
