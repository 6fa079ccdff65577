"""The records of a simulated process as batches of a spool, written as text because they are many.

A process may die: scopes that were open are closed at that time with an error, and those that would
have started later are not recorded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.kit.spools.made import EPOCH_NS

OURS: Final = "0.3.0+cirron-otel.0.1.0"
THEIRS: Final = "0.3.0"
RUN_ID: Final = "5a17c2e96d3b48f0a1d2c3b4e5f60718"
_HALF: Final = "8b1d5c7e2f304a69"
_SPANS_OF_BATCH: Final = 4000
_INCOMPLETE: Final = "incomplete: the process ended without closing this scope"

Files = list[tuple[str, bytes]]


@dataclass(slots=True)
class Session:
    """The session of a process, and the description of its run."""

    number: int
    """The number of the process in the run, from 0."""
    rank: int | None
    host: str
    sdk_version: str = OURS
    has_run: bool = True
    """Whether the batches name the session and the run."""
    world_size: int = 1
    shift_ns: int = 0
    """The difference of its host's clock."""
    cut: int | None = None
    """The time at which the process dies."""
    error: str = _INCOMPLETE
    """The status of the scopes that were open then; an empty text for a program that ends early."""
    resource_spans: str | None = None
    """The foreign part of the batches, as JSON, if another service recorded the spans."""
    thread_id: int | None = 7
    last_id: int = 0
    open_scopes: list[tuple[int, str]] = field(default_factory=list)
    """The start and the id of the scopes that were open when the process died."""
    spans: list[tuple[int, str, str]] = field(default_factory=list)
    """The end, the id and the text of each span, without its marks."""
    marks: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """By the id of a span: the ids and the texts of its marks."""

    @property
    def pid(self) -> int:
        """The id of the process."""
        return 100 + self.number

    def new_id(self) -> str:
        """Return a new id."""
        self.last_id += 1
        return f"{self.number + 1:06x}{self.last_id:010x}{_HALF}"

    def scope(
        self,
        name: str,
        parent: str | None,
        start: int,
        end: int,
        *,
        index: int | None = None,
        attrs: str = "{}",
        gpu: int | None = None,
        error: str | None = None,
        id_: str | None = None,
    ) -> str:
        """Add a scope, and return its id. Times are ns since the start of the run."""
        id_ = self.new_id() if id_ is None else id_
        if self.cut is not None:
            if start >= self.cut:
                return id_
            if end > self.cut:
                end = self.cut
                error = error or self.error
                self.open_scopes.append((start, id_))
        zero = EPOCH_NS + self.shift_ns
        status = f',"otel":{{"status":{{"code":2,"message":{json.dumps(error)}}}}}' if error else ""
        above = "null" if parent is None else f'"{parent}"'
        text = (
            f'{{"id":"{id_}","name":"{name}","parent_id":{above},"index":{_text(index)}'
            f',"start_ns":{zero + start},"end_ns":{zero + end},"cpu_ns":null,"gpu_ns":{_text(gpu)}'
            f',"memory_peak_bytes":null,"thread_id":{_text(self.thread_id)},"pid":{self.pid}'
            f',"rank":{_text(self.rank)},"attrs":{attrs}{status},"mark_ids":'
        )
        self.spans.append((end, id_, text))
        return id_

    def mark(
        self, scope: str, name: str, value: Any, at: int, *, attrs: str = "{}", kind: str = "point"
    ) -> None:
        """Add a mark to a scope. A value that is not finite is recorded as the SDKs do."""
        if self.cut is not None and at > self.cut:
            return
        id_, type_, rest = self.new_id(), "int" if isinstance(value, int) else "float", ""
        text = _text(value)
        if isinstance(value, float) and not math.isfinite(value):
            rest, text = f',"value_nonfinite":"{_text_of_odd(value)}"', "null"
        self.marks.setdefault(scope, []).append((
            id_,
            f'{{"id":"{id_}","span_id":"{scope}","name":"{name}","value_type":"{type_}"'
            f',"value":{text}{rest},"attrs":{attrs},"ts_ns":{EPOCH_NS + self.shift_ns + at}'
            f',"kind":"{kind}"}}',
        ))  # fmt: skip

    def files(self, session: str) -> Iterator[tuple[str, bytes]]:
        """Yield the names and the contents of the batches."""
        self.spans.sort()
        header = "" if self.resource_spans is None else f',"otel":{self.resource_spans}'
        if self.has_run:
            header = f',"otel":{self._header(session)}'
        for part, first in enumerate(range(0, len(self.spans), _SPANS_OF_BATCH)):
            some = self.spans[first : first + _SPANS_OF_BATCH]
            marks = [(each[1], self.marks.get(each[1], [])) for each in some]
            spans = [
                f"{text}{json.dumps([mark[0] for mark in of_span])}}}"
                for (_, _, text), (_, of_span) in zip(some, marks, strict=True)
            ]
            created = EPOCH_NS + self.shift_ns + some[-1][0]
            id_ = f"{self.number + 1:06x}{part:06x}4000800000000000{0:04x}"
            batch = (
                f'{{"schema_version":1,"sdk_version":"{self.sdk_version}","batch_id":"{id_}"'
                f',"created_ns":{created},"spans":[{",".join(spans)}]'
                f',"marks":[{",".join(mark[1] for _, of_span in marks for mark in of_span)}]'
                f',"snapshots":[]{header}}}'
            )
            yield f"{created:020d}-{id_}.json", batch.encode()

    def _header(self, session: str) -> str:
        attributes = {
            "host.name": self.host, "service.name": "train", "cirron.run.id": RUN_ID,
            "cirron.run.name": "train-5a17c2e9", "cirron.world_size": self.world_size,
        }  # fmt: skip
        trace = RUN_ID[:16] + _HALF
        return json.dumps({
            "session": session, "session_trace_id": trace, "trace_id": trace,
            "resource": {"attributes": attributes},
        })  # fmt: skip


def _text(value: int | float | None) -> str:
    return "null" if value is None else repr(value)


def _text_of_odd(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
