"""`--signal metrics`: the points of the memory samples of a source, as messages of metrics.

A spool is read three times: for its sessions, for the resource of each session, and for the points.
In memory are one message and, for each series, the last point.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import msgspec
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from ... import exactjson
from ... import semconv as sc
from ...core.analysis.run_selection import choose_run
from ...core.placement.batch_outline import read_outline
from ...core.placement.session_index import SessionIndex
from ...core.records.canonical import batch_bytes
from ...core.records.memory_points import memory_points
from ...core.records.problems import ReadingProblem
from ...core.spool.reader import SpoolReader
from ...core.translator.header import resource_attributes
from ...core.translator.metric_messages import MetricOrigin, MetricsBuilder
from ...core.translator.options import SESSION_LAYOUT
from ...errors import InputError
from .indexing import read_sessions, temporary_index
from .progress import BYTES, Progress, begin_stage
from .report import Report
from .select import Selection
from .selecting import Selector, sessions_of

POINTS = 5000
"""The number of points from which on a message is complete; each takes about 100 bytes."""


_NO_TIME = -1
"""The time of a record whose own is not an integer."""

_Identity = tuple[int | None, int | None]
"""A process id and a rank."""


class _Process(msgspec.Struct, gc=False):
    """The fields of a span that identify its process."""

    id: str = ""
    start_ns: int = _NO_TIME
    pid: int | None = None
    rank: int | None = None


class _Reading(msgspec.Struct, gc=False):
    """The fields of a mark that its points depend on."""

    span_id: str = ""
    name: str = ""
    value: Any = None
    attrs: dict[str, Any] = {}
    ts_ns: int = _NO_TIME


class _Batch(msgspec.Struct, gc=False):
    """The fields of a batch that points depend on."""

    spans: list[_Process] = []
    marks: list[_Reading] = []
    otel: Any = None
    stormlog: Any = None

    @property
    def process(self) -> _Identity | None:
        """The process id and the rank of all events, if the batch was imported from Stormlog.

        Processes of one session have batches of their own. None for any other batch.
        """
        session = self.stormlog.get("session") if isinstance(self.stormlog, dict) else None
        if not isinstance(session, dict):
            return None
        pid, rank = session.get("pid"), session.get("rank")
        return pid if type(pid) is int else None, rank if type(rank) is int else None


_decoder = msgspec.json.Decoder(_Batch)


class MetricSource:
    """The metric points of a spool's marks."""

    def __init__(
        self,
        directory: str,
        service_name: str,
        *,
        selection: Selection | None = None,
        run: str | None = None,
    ) -> None:
        """Find the spool; `run` chooses a run as in `choose_run`, if it is not None.

        Raises InputError if there is no spool, and UsageError if no run matches.
        """
        self._reader = SpoolReader(directory, on_finding=_reported_later)
        if run is not None:
            choose_run(self._reader, run)
        self._directory = directory
        self._builder = MetricsBuilder(service_name)
        self._selection = selection or Selection()
        self._origins: dict[tuple[str, _Identity | None], MetricOrigin] = {}
        self._starts: dict[str, int] = {}

    def messages(
        self, report: Report, progress: Progress | None
    ) -> Generator[MetricsData, None, None]:
        """Yield messages; add counts and findings to `report`.

        Raises TargetError if temporary files cannot be written, and UsageError if the selection
        is ambiguous.
        """
        with temporary_index() as index:
            total = read_sessions(self._reader, index, SESSION_LAYOUT, progress)
            if self._selection.has_prefixes:
                sessions = sessions_of(self._reader, index)
                self._selection = self._selection.with_sessions(sessions)
            for file in self._reader:
                self._add_origins(file.data, index)
            for origin in self._origins.values():
                origin.start_ns = self._starts.get(origin.session_id, 0)
            selector = Selector(self._selection, index)
            reader = SpoolReader(self._directory, on_finding=report.skip, only=self._reader.only)
            begin_stage(progress, "converting", BYTES)
            for file in reader:
                report.batches += 1
                report.bytes_read += len(file.data)
                for _ in self._add_points(file.data, index, selector, report):
                    if self._builder.size >= POINTS:
                        yield self._take(report)
                if progress is not None:
                    progress(report.bytes_read, total)
            if self._builder.size:
                yield self._take(report)

    def _take(self, report: Report) -> MetricsData:
        report.messages += 1
        return self._builder.take()

    def _add_origins(self, data: bytes, index: SessionIndex) -> None:
        """Note the process, the resource and the earliest time of each session in a batch."""
        batch = _decoded(data)
        session_of = _sessions(data, index)
        attributes = resource_attributes(batch.otel)
        for span in batch.spans:
            origin = self._origin(session_of(span.id), batch.process, span.start_ns, attributes)
            if batch.process is None:
                origin.pid = span.pid if origin.pid is None else origin.pid
                origin.rank = span.rank if origin.rank is None else origin.rank
        for mark in batch.marks:
            self._origin(session_of(mark.span_id), batch.process, mark.ts_ns, attributes)

    def _origin(
        self, session: str, process: _Identity | None, time_ns: int, attributes: dict[str, Any]
    ) -> MetricOrigin:
        if time_ns >= 0:
            self._starts[session] = min(self._starts.get(session, time_ns), time_ns)
        origin = self._origins.get((session, process))
        if origin is None:
            pid, rank = process or (None, None)
            origin = self._origins[session, process] = MetricOrigin(session, 0, pid, rank)
        for key, value in attributes.items():
            if key not in origin.attributes and not sc.describes_run(key):
                origin.attributes[key] = value
        return origin

    def _add_points(
        self, data: bytes, index: SessionIndex, selector: Selector, report: Report
    ) -> Iterator[None]:
        """Add the points of a batch's selected marks to the next message, mark by mark."""
        if self._selection:
            chosen = selector.apply(exactjson.loads(data))
            if chosen is None:
                return
            data = batch_bytes(chosen)
        session_of: Callable[[str], str] | None = None
        batch = _decoded(data)
        for mark in batch.marks:
            points = memory_points(msgspec.structs.asdict(mark))
            if not points:
                continue
            session_of = session_of or _sessions(data, index)
            origin = self._origins[session_of(mark.span_id), batch.process]
            if added := self._builder.add(origin, points):
                report.marks += 1
                report.points = (report.points or 0) + added
            report.lose(self._builder.losses)
            self._builder.losses.clear()
            yield


def _reported_later(_: ReadingProblem) -> None:
    """Ignore a problem that the last pass over the same files finds again."""


def _sessions(data: bytes, index: SessionIndex) -> Callable[[str], str]:
    """Return a function from the id of a scope to its session, for the records of a batch."""
    outline = read_outline(data)
    named = outline.session
    if named is not None:
        return lambda _: named
    by_id = {span.id: span for span in outline.spans}
    positions = index.positions(outline, by_id)
    known = {span.id: at.session for span, at in zip(outline.spans, positions, strict=True)}
    default = positions[0].session if positions else ""

    def session_of(span_id: str) -> str:
        if span_id in ("", "root"):
            return default
        return known.get(span_id) or index.resolve(span_id).session

    return session_of


def _decoded(data: bytes) -> _Batch:
    """Return the fields of a batch; a field of an unexpected type has its default."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    try:
        batch = exactjson.loads(data)
    except InputError:
        return _Batch()
    if not isinstance(batch, dict):
        return _Batch()
    spans = [_struct(_Process, each) for each in _objects(batch.get("spans"))]
    marks = [_struct(_Reading, each) for each in _objects(batch.get("marks"))]
    return _Batch(spans, marks, batch.get("otel"), batch.get("stormlog"))


def _objects(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _struct(type_: type[Any], record: dict[str, Any]) -> Any:
    """Return the fields of a record that have the expected types."""
    fields = {}
    for field in msgspec.structs.fields(type_):
        value = record.get(field.encode_name)
        try:
            fields[field.name] = msgspec.convert(value, field.type)
        except msgspec.ValidationError:
            continue
    return type_(**fields)
