"""Write batches as text: valid by construction, in the canonical order and encoding."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ...._version import SDK_VERSION
from ....ids import uuid4_shaped
from ...spool.paths import file_name
from .marks import QuotedTexts, json_text

BATCH_MARKS: Final = 2_000
"""The number of marks after which a batch is complete."""
_QUOTED: Final = QuotedTexts()


class WrittenBatch(NamedTuple):
    """A batch, its file name, and the numbers of its records."""

    name: str
    data: bytes
    spans: int
    marks: int


@dataclass(slots=True)
class PhaseSpanText:
    """A span whose times are integers; None is an unknown value."""

    id: str
    name: str
    parent_id: str | None
    start_ns: int
    end_ns: int
    pid: int | None
    rank: int | None
    attrs: dict[str, Any]
    mark_ids: str
    """The JSON text of the list."""
    index: int | None = None
    memory_peak_bytes: int | None = None
    thread_id: int | None = None
    otel: dict[str, Any] | None = None

    def write(self) -> str:
        """Return the span as JSON."""
        parent = "null" if self.parent_id is None else f'"{self.parent_id}"'
        return (
            f'{{"id":"{self.id}","name":{_QUOTED[self.name]},"parent_id":{parent},'
            f'"index":{_or_null(self.index)},"start_ns":{self.start_ns},"end_ns":{self.end_ns},'
            f'"cpu_ns":null,"gpu_ns":null,"memory_peak_bytes":{_or_null(self.memory_peak_bytes)},'
            f'"thread_id":{_or_null(self.thread_id)},"pid":{_or_null(self.pid)},'
            f'"rank":{_or_null(self.rank)},"attrs":{json_text(self.attrs) if self.attrs else "{}"},'
            f'"mark_ids":{self.mark_ids}'
            f'{f""","otel":{json_text(self.otel)}""" if self.otel else ""}}}'
        )


def _or_null(number: int | None) -> str | int:
    return "null" if number is None else number


class ImportedBatchText:
    """One batch that is being put together."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, str, str]] = []
        self._marks: list[str] = []
        self._last_mark_ns = 0

    def add_span(self, span: PhaseSpanText) -> None:
        """Add a span."""
        self._spans.append((span.end_ns, span.id, span.write()))

    def add_marks(self, texts: list[str], last_ns: int) -> None:
        """Add the JSON texts of marks in the order (time, id), the last of this time."""
        self._marks += texts
        self._last_mark_ns = max(self._last_mark_ns, last_ns)

    def write(self, otel: dict[str, Any], stormlog: dict[str, Any]) -> WrittenBatch:
        """Return the batch. Its id is a digest of its content, its time that of its last record."""
        self._spans.sort()
        created = max(self._last_mark_ns, self._spans[-1][0] if self._spans else 0)
        content = (
            f'","created_ns":{created},"spans":['.encode(),
            ",".join([text for _, _, text in self._spans]).encode(),
            b'],"marks":[',
            ",".join(self._marks).encode(),
            f'],"snapshots":[]{f""","otel":{json_text(otel)}""" if otel else ""}'
            f',"stormlog":{json_text(stormlog)}}}'.encode(),
        )
        hashed = hashlib.sha256(b"stormlog\0")
        for part in content:
            hashed.update(part)
        batch_id = uuid4_shaped(hashed.digest())
        head = f'{{"schema_version":1,"sdk_version":{json_text(SDK_VERSION)},"batch_id":"{batch_id}'
        data = b"".join((head.encode(), *content))
        return WrittenBatch(file_name(created, batch_id), data, len(self._spans), len(self._marks))
