"""Runs of our own as TraceML's rows: steps, phases and memory; everything else is counted."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from .... import exactjson
from ....semconv import MEMORY, SESSION
from ...state_database import TEMPORARY, open_database
from .envelopes import CONTROL, RANK_FINISHED
from .framing import frame_of
from .numbers import count, identifier, text, time_ns
from .sample_rows import PROCESS_TABLE
from .step_rows import MEMORY_TABLE, PEAK, PHASES, RESERVED_PEAK, STEP_EVENT, STEP_TABLE, SUMS

_TABLES: Final = (
    "CREATE TABLE session (id TEXT PRIMARY KEY, attrs TEXT, run TEXT, ended INTEGER)",
    "CREATE TABLE span (id TEXT PRIMARY KEY, session TEXT, parent TEXT, name TEXT, number INTEGER,"
    " start INTEGER, end INTEGER, gpu INTEGER, pid INTEGER, rank INTEGER, peak INTEGER,"
    " reserved INTEGER, device TEXT) WITHOUT ROWID",
    "CREATE TABLE memory (session TEXT, ts INTEGER, id TEXT, value INTEGER, attrs TEXT,"
    " PRIMARY KEY (session, ts, id)) WITHOUT ROWID",
)
_INDEX: Final = "CREATE INDEX IF NOT EXISTS by_parent ON span (parent)"
_EVENTS: Final = {name: event for event, name in PHASES.items()} | {
    "loss": "_traceml_internal:forward_time"
}
"""TraceML's events by our phases; the loss belongs to the forward pass."""
_STEPS: Final = ("step", "batch")
_MICRO_STEP: Final = "micro_step"
_PARTS: Final = """
SELECT name, start, end, gpu FROM span WHERE parent = ?1
UNION ALL SELECT part.name, part.start, part.end, part.gpu FROM span AS part
JOIN span AS micro ON part.parent = micro.id WHERE micro.parent = ?1 AND micro.name = 'micro_step'
"""
_TICK_NS: Final = 1_000_000_000
OTHER_SPANS: Final = "spans that are neither steps nor phases of steps"
OTHER_MARKS: Final = "marks that are not samples of memory"
SNAPSHOTS: Final = "snapshots"
ATTRIBUTES: Final = "attributes"
POSITIONS: Final = "positions of phases, of which TraceML has the sums"
COSTS: Final = "CPU times and peaks of the resident set"
TIMES: Final = "times that a double of seconds rounds"


class _Place(NamedTuple):
    """The process of a session."""

    session: str
    meta: dict[str, Any]
    is_ended: bool


class OwnRunRows:
    """Collects steps, phases and samples of memory in a temporary file."""

    def __init__(self, folder: Path) -> None:
        """Use a temporary file in `folder`. Raises sqlite3.Error."""
        self._database = open_database(folder / "own.sqlite", *TEMPORARY)
        for statement in _TABLES:
            self._database.execute(statement)
        self._database.execute("BEGIN")
        self.losses: dict[str, int] = {}
        """The number of values of the runs that the rows do not contain, by kind."""
        self.has_batches = self.is_written = False

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def add(self, batch: dict[str, Any]) -> None:
        """Add a batch; records of an unexpected form are counted as lost."""
        self.has_batches = True
        otel = batch.get("otel")
        otel = otel if isinstance(otel, dict) else {}
        spans = [each for each in _list(batch.get("spans")) if isinstance(each, dict)]
        first: dict[str, Any] = spans[0] if spans else {}
        session = text(otel.get("session")) or f"{first.get('pid')}-{first.get('rank')}"
        resource = otel.get("resource")
        attributes = resource.get("attributes", {}) if isinstance(resource, dict) else {}
        run = self._database.execute
        trace = text(otel.get("session_trace_id")) or session
        run(
            "INSERT OR IGNORE INTO session VALUES (?,?,?,0)",
            (session, exactjson.dumps_ascii(attributes), trace),
        )
        rows = [row for span in spans if (row := self._span(session, span)) is not None]
        self._database.executemany(
            "INSERT OR IGNORE INTO span VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)", rows
        )
        marks = _list(batch.get("marks"))
        samples = [row for mark in marks if (row := _sample(session, mark)) is not None]
        self._database.executemany("INSERT OR IGNORE INTO memory VALUES (?,?,?,?,?)", samples)
        self._lose(OTHER_MARKS, len(marks) - len(samples))
        self._lose(SNAPSHOTS, len(_list(batch.get("snapshots"))))

    def _lose(self, kind: str, number: int) -> None:
        if number:
            self.losses[kind] = self.losses.get(kind, 0) + number

    def _span(self, session: str, span: dict[str, Any]) -> tuple[Any, ...] | None:
        start, end, span_id = count(span.get("start_ns")), count(span.get("end_ns")), span.get("id")
        name, attrs = span.get("name"), span.get("attrs")
        attrs = attrs if isinstance(attrs, dict) else {}
        if name == SESSION and span.get("parent_id") is None:
            if not attrs.get("incomplete"):
                self._database.execute("UPDATE session SET ended = 1 WHERE id = ?", (session,))
            self._lose(ATTRIBUTES, len(attrs))
            return None
        is_known = name in (*_STEPS, _MICRO_STEP) or name in _EVENTS
        if start is None or end is None or not isinstance(span_id, str) or not is_known:
            self._lose(OTHER_SPANS, 1)
            return None
        self._lose(COSTS, sum(span.get(key) is not None for key in ("cpu_ns", "memory_peak_bytes")))
        used = {PEAK, RESERVED_PEAK, SUMS} if name in _STEPS else set()
        self._lose(ATTRIBUTES, len(attrs.keys() - used))
        peaks = (count(attrs.get(PEAK)), count(attrs.get(RESERVED_PEAK)), text(attrs.get("device")))
        return (span_id, session, text(span.get("parent_id")), name, identifier(span.get("index")),
                start, end, count(span.get("gpu_ns")), identifier(span.get("pid")),
                identifier(span.get("rank")), *peaks)  # fmt: skip

    def files(self) -> Iterator[tuple[str, Iterable[bytes]]]:
        """Yield the name and the frames of each session that has steps or samples."""
        self._database.execute(_INDEX)
        orphans = """
            SELECT COUNT(*) FROM span WHERE name NOT IN ('step', 'batch', 'micro_step')
            AND parent NOT IN (SELECT id FROM span WHERE name IN ('step', 'batch', 'micro_step'))
        """
        row = self._database.execute(orphans).fetchone()
        self._lose(OTHER_SPANS, row[0])
        for session, attrs, run, ended in self._database.execute(
            "SELECT id, attrs, run, ended FROM session ORDER BY rowid"
        ).fetchall():
            meta = self._meta(session, exactjson.loads(attrs), run)
            if meta is not None:
                self.is_written = True
                name = f"rank{meta['rank']}_pid{meta['pid']}"
                yield name, self._frames(_Place(session, meta, bool(ended)))

    def _meta(self, session: str, attrs: Any, run: str) -> dict[str, Any] | None:
        one = self._database.execute(
            "SELECT MAX(pid), MAX(rank), COUNT(*) FROM span WHERE session = ?", (session,)
        ).fetchone()
        samples = self._database.execute(
            "SELECT COUNT(*) FROM memory WHERE session = ?", (session,)
        ).fetchone()[0]
        if not one[2] and not samples:
            return None
        attrs = attrs if isinstance(attrs, dict) else {}
        rank = one[1] or 0
        local = identifier(attrs.get("cirron.local_rank"))
        size = identifier(attrs.get("cirron.world_size"))
        return {
            "rank": rank, "global_rank": rank, "local_rank": rank if local is None else local,
            "world_size": max(rank + 1, size or 0), "local_world_size": None, "node_rank": None,
            "hostname": text(attrs.get("host.name")), "pid": one[0] or 0, "sampler": None,
            "timestamp": None, "session_id": text(attrs.get("cirron.run.name")) or run,
            "run_nonce": text(attrs.get("cirron.run.id")) or run, "session_source": "cirron-otel",
        }  # fmt: skip

    def _frames(self, place: _Place) -> Iterator[bytes]:
        """Yield the frames of a session: one for each second in which something happened."""
        rows = heapq.merge(
            self._step_rows(place.session), self._sample_rows(place), key=lambda row: row[0]
        )
        last_ns = 0
        for seq, (_, tick) in enumerate(groupby(rows, lambda row: row[0] // _TICK_NS), 1):
            tables: dict[str, list[dict[str, Any]]] = {}
            for at_ns, table, row in tick:
                last_ns = at_ns
                tables.setdefault(table, []).append({"seq": seq} | row)
            yield _frame([_envelope(place.meta, table, tables[table], last_ns) for table in tables])
        if place.is_ended:
            keys = ("global_rank", "world_size")
            stamp = ("session_id", "run_nonce", "session_source")
            message = {CONTROL: RANK_FINISHED} | {key: place.meta[key] for key in keys}
            message |= {"node_rank": 0, "hostname": place.meta["hostname"] or ""}  # both required
            message |= {"timestamp": last_ns / 1e9} | {key: place.meta[key] for key in stamp}
            yield _frame([message])

    def _step_rows(self, session: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
        run = self._database.execute
        all_steps, distinct = run(
            "SELECT COUNT(*), COUNT(DISTINCT number) FROM span WHERE session = ?"
            " AND name IN (?, ?)",
            (session, *_STEPS),
        ).fetchone()
        steps = run(
            "SELECT id, number, start, end, gpu, peak, reserved, device FROM span"
            " WHERE session = ? AND name IN (?, ?) ORDER BY end, id", (session, *_STEPS),
        )  # fmt: skip
        for ordinal, step in enumerate(steps, 1):
            span_id, number, start, end, gpu, peak, reserved, device = step
            number = number if distinct == all_steps else ordinal
            parts = run(_PARTS, (span_id,)).fetchall()
            events = self._events(parts, end - start, gpu)
            seconds = end / 1e9
            self._lose(TIMES, time_ns(seconds) != end)
            row = {"timestamp": seconds, "step": number, "events": events}
            yield end, STEP_TABLE, row
            if peak is not None or reserved is not None:
                yield end, MEMORY_TABLE, {
                    "ts": seconds, "device": device or "cuda", "step": number,
                    "peak_alloc": _float(peak), "peak_resv": _float(reserved),
                }  # fmt: skip

    def _events(
        self, parts: list[tuple[str, int, int, int | None]], whole_ns: int, gpu: int | None
    ) -> dict[str, Any]:
        sums: dict[str, list[int | None]] = {}
        for name, start, end, gpu_ns in parts:
            event = _EVENTS.get(name)
            if event is None:
                continue
            wall, device, calls = sums.get(event, (0, None, 0))
            device = device if gpu_ns is None else (device or 0) + gpu_ns
            sums[event] = [(wall or 0) + end - start, device, (calls or 0) + 1]
            self._lose(POSITIONS, 1)
        load = sums.get(_EVENTS["data_load"], [0])[0] or 0
        events = {event: _figures(*sums[event]) for event in PHASES if event in sums}
        return events | {STEP_EVENT: _figures(max(0, whole_ns - load), gpu, 1)}

    def _sample_rows(self, place: _Place) -> Iterator[tuple[int, str, dict[str, Any]]]:
        query = "SELECT ts, value, attrs FROM memory WHERE session = ? ORDER BY ts, id"
        for ts, value, attrs_text in self._database.execute(query, (place.session,)):
            attrs = exactjson.loads(attrs_text)
            device = identifier(attrs.get("device_id"))
            resident, gpu = value, None
            if device is not None and device >= 0:
                resident = count(attrs.get("process_rss_bytes"))
                gpu = {
                    "device": device, "mem_used": float(value),
                    "mem_reserved": _float(count(attrs.get("allocator_reserved_bytes"))),
                    "mem_total": _float(count(attrs.get("device_total_bytes"))),
                }  # fmt: skip
            yield ts, PROCESS_TABLE, {
                "ts": ts / 1e9, "pid": place.meta["pid"], "cpu": None, "cpu_cores": None,
                "ram_used": _float(resident),
                "ram_total": _float(count(attrs.get("host_total_bytes"))),
                "gpu_available": gpu is not None, "gpu_count": None, "gpu": gpu,
            }  # fmt: skip


def _figures(wall_ns: int | None, gpu_ns: int | None, calls: int | None) -> dict[str, Any]:
    wall_ms = (wall_ns or 0) / 1e6
    gpu_ms = None if gpu_ns is None else gpu_ns / 1e6
    figures = {
        "is_gpu": gpu_ms is not None, "duration_ms": wall_ms if gpu_ms is None else gpu_ms,
        "cpu_ms": wall_ms, "gpu_ms": gpu_ms, "n_calls": calls,
    }  # fmt: skip
    return {"cpu" if gpu_ms is None else "cuda:0": figures}


def _envelope(
    meta: dict[str, Any], table: str, rows: list[dict[str, Any]], last_ns: int
) -> dict[str, Any]:
    samplers = {STEP_TABLE: "StepTimeSampler", MEMORY_TABLE: "StepMemorySampler"}
    sampler = samplers.get(table, "ProcessSampler")
    fields = meta | {"sampler": sampler, "timestamp": last_ns / 1e9}
    return {"meta": fields, "body": {"tables": {table: rows}}}


def _frame(messages: list[dict[str, Any]]) -> bytes:
    return frame_of(msgspec.msgpack.encode(messages))


def _float(size: int | None) -> float | None:
    return None if size is None else float(size)


def _sample(session: str, mark: Any) -> tuple[Any, ...] | None:
    if not isinstance(mark, dict) or mark.get("name") != MEMORY:
        return None
    ts, value, attrs = count(mark.get("ts_ns")), count(mark.get("value")), mark.get("attrs")
    if ts is None or value is None or not isinstance(attrs, dict) or type(mark["value"]) is not int:
        return None
    return session, ts, text(mark.get("id")), value, exactjson.dumps_ascii(attrs)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
