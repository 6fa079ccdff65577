"""The rows of TraceML's SQLite history, which is read without being changed."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from ....errors import InputError
from ...state_database import DATABASE_SUFFIXES, open_database
from .envelopes import Row, envelopes_of, shown
from .payloads import read_payload
from .row_store import META_KEYS, HistoryNote, RowStore, rank_of
from .sample_rows import ENVIRONMENT_TABLE, PROCESS_TABLE, SYSTEM_TABLE
from .step_rows import MEMORY_TABLE, STEP_TABLE

MAGIC: Final = b"SQLite format 3\0"
RAW: Final = "raw_messages"
SYSTEM_SAMPLES: Final = "system_samples"
_GPUS: Final = "system_gpu_samples"
_SAME_SAMPLE: Final = (
    "g.sample_ts_s = s.sample_ts_s AND +g.seq IS s.seq AND +g.global_rank IS s.global_rank"
)
_MAX_GPUS: Final = 1_024
_EXPECTED: Final = "expected a history that TraceML wrote"
_SETTINGS: Final = ("query_only=ON", "trusted_schema=OFF", "cell_size_check=ON")
_MAX_VALUE: Final = 16 * 2**20
_BUSY_S: Final = 10.0
_TABLE_NAMES: Final = {
    "system_samples": SYSTEM_TABLE, "process_samples": PROCESS_TABLE,
    "step_time_samples": STEP_TABLE, "step_memory_samples": MEMORY_TABLE,
    "runtime_environment": ENVIRONMENT_TABLE, "stdout_stderr_samples": "stdout_stderr",
}  # fmt: skip
_KEYS: Final = {
    "sample_ts_s": "ts", "cpu_percent": "cpu", "cpu_logical_core_count": "cpu_cores",
    "ram_used_bytes": "ram_used", "ram_total_bytes": "ram_total",
    "peak_alloc_bytes": "peak_alloc", "peak_reserved_bytes": "peak_resv",
}  # fmt: skip
_GPU_FIGURES: Final = (
    "util", "mem_used_bytes", "mem_total_bytes", "temperature_c", "power_usage_w", "power_limit_w",
)  # fmt: skip
DEVICES_QUERY: Final = (
    f"SELECT s.*, g.gpu_idx, {', '.join(f'g.{name}' for name in _GPU_FIGURES)}"  # noqa: S608
    f" FROM system_samples AS s LEFT JOIN {_GPUS} AS g ON {_SAME_SAMPLE} ORDER BY s.id, g.gpu_idx"
)
"""The samples of hosts with those of their devices. The plus signs keep SQLite from using an index
on the rank, which finds all rows of a rank for each sample."""
_PROCESS_GPU: Final = {
    "gpu_device_index": "device", "gpu_mem_used_bytes": "mem_used",
    "gpu_mem_reserved_bytes": "mem_reserved", "gpu_mem_total_bytes": "mem_total",
}  # fmt: skip
_FLAGS: Final = ("gpu_available", "distributed_initialized")
_BESIDE: Final = frozenset({"id", "recv_ts_ns", *META_KEYS})

OnProblem = Callable[[str, str], None]


def read_history(path: Path, folder: Path, rows: RowStore, on_problem: OnProblem) -> None:
    """Add the rows of a history to `rows`; a table that cannot be read is reported.

    All rows are of one moment, while TraceML may be writing. `folder` is for temporary files.
    Raises InputError if the file cannot be read at all.
    """
    try:
        with _opened(path, folder) as database:
            database.execute("BEGIN")
            tables = _tables(database)
            known = [name for name in (RAW, *_TABLE_NAMES) if name in tables]
            if not known:
                raise InputError(f"{path} has none of TraceML's tables: {_EXPECTED}")
            others = sorted(tables - {RAW, _GPUS, *_TABLE_NAMES} - {"sqlite_sequence"})
            for table in (*known, *others):
                try:
                    _read_table(database, table, rows)
                except (sqlite3.Error, UnicodeError) as error:
                    on_problem("damaged", f"table {shown(table)} cannot be read further: {error}")
            if _GPUS in tables:
                with contextlib.suppress(sqlite3.Error):  # the table is reported as damaged
                    _report_gpus_alone(database, tables, on_problem)
    except (sqlite3.Error, UnicodeError) as error:
        raise InputError(f"{path} is not a usable SQLite file: {error}; {_EXPECTED}") from None


@contextlib.contextmanager
def _opened(path: Path, folder: Path) -> Iterator[sqlite3.Connection]:
    """Open a history read-only.

    A database without a log is not being written: it is opened without locks, so that SQLite
    creates no file beside it. A log is read where it is, together with the index that its writer
    has of it; without a usable index, a copy is opened.
    """
    log = path.with_name(path.name + "-wal")
    has_log = log.exists() and log.stat().st_size > 0
    try:
        if has_log and not path.with_name(path.name + "-shm").exists():
            raise sqlite3.OperationalError("the log has no index")
        mode = "mode=ro&readonly_shm=1" if has_log else "mode=ro&immutable=1"
        database = _connect(path, mode)
    except sqlite3.OperationalError:
        if not has_log:
            raise
        copy = folder / "history"
        for suffix in DATABASE_SUFFIXES[:2]:
            shutil.copyfile(path.with_name(path.name + suffix), copy.with_name("history" + suffix))
        database = _connect(copy, "mode=rw")
    try:
        yield database
    finally:
        database.close()


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    database = open_database(path, *_SETTINGS, busy_s=_BUSY_S, mode=mode)
    try:
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
        database.text_factory = _text
        database.row_factory = sqlite3.Row
        database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        database.close()
        raise
    return database


def _text(data: bytes) -> str | bytes:
    """Return text, or the bytes of a text that is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _tables(database: sqlite3.Connection) -> set[str]:
    """Return the ordinary tables; views and virtual tables may run other code."""
    rows = database.execute("SELECT name FROM pragma_table_list WHERE schema = 'main'"
                            " AND type = 'table'")  # fmt: skip
    return {row[0] for row in rows if isinstance(row[0], str)} - {"sqlite_schema"}


def _read_table(database: sqlite3.Connection, table: str, rows: RowStore) -> None:
    rows.begin_file()
    if table == SYSTEM_SAMPLES:
        _read_system_samples(database, rows)
        return
    quoted = table.replace('"', '""')
    for fields in _fields(database.execute(f'SELECT * FROM "{quoted}"')):  # noqa: S608 - quoted
        note = HistoryNote(table, fields.get("id"), fields.get("recv_ts_ns"))
        if table == RAW:
            _add_message(fields, note, rows)
        else:
            row = Row(_TABLE_NAMES.get(table, table), _row(table, fields))
            rows.add(_meta(fields), row, note)


def _read_system_samples(database: sqlite3.Connection, rows: RowStore) -> None:
    """Add the samples of hosts, each with the figures of its devices in their order."""
    query = DEVICES_QUERY
    if _GPUS not in _tables(database):
        query = "SELECT s.*, NULL AS gpu_idx FROM system_samples AS s ORDER BY s.id"
    joined = _fields(database.execute(query))
    for number, parts in groupby(joined, lambda fields: fields["id"]):
        gpus: list[list[Any]] = []
        sample: dict[str, Any] = {}
        for sample in parts:
            figures = [sample.pop(name, None) for name in _GPU_FIGURES]
            if sample.pop("gpu_idx") is not None and len(gpus) < _MAX_GPUS:
                gpus.append(figures)
        note = HistoryNote(SYSTEM_SAMPLES, number, sample.get("recv_ts_ns"))
        row = _row(SYSTEM_SAMPLES, sample) | {"gpus": gpus}
        rows.add(_meta(sample), Row(SYSTEM_TABLE, row), note)


def _fields(cursor: sqlite3.Cursor) -> Iterator[dict[str, Any]]:
    """Yield the rows of a query by column."""
    for row in cursor:
        yield dict(zip(row.keys(), row, strict=True))


def _meta(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: fields.get(key) for key in META_KEYS}


def _row(table: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the row that TraceML sent for a row of a history."""
    row = {_KEYS.get(key, key): value for key, value in fields.items() if key not in _BESIDE}
    for flag in _FLAGS:
        if row.get(flag) in (0, 1):
            row[flag] = bool(row[flag])
    if table == "step_time_samples":
        row["timestamp"] = row.pop("ts", None)
        events = row.pop("events_json", None)
        try:
            row["events"] = orjson.loads(events) if isinstance(events, str) else events
        except orjson.JSONDecodeError:
            row["events"] = events
    elif table == "process_samples":
        gpu = {name: row.pop(key, None) for key, name in _PROCESS_GPU.items()}
        row["gpu"] = None if all(value is None for value in gpu.values()) else gpu
    return row


def _report_gpus_alone(
    database: sqlite3.Connection, tables: set[str], on_problem: OnProblem
) -> None:
    """Report rows of devices that belong to no sample."""
    query = f"SELECT COUNT(*) FROM {_GPUS}"  # noqa: S608 - a constant
    if SYSTEM_SAMPLES in tables:
        query += f" AS g LEFT JOIN system_samples AS s ON {_SAME_SAMPLE} WHERE s.id IS NULL"
    alone = database.execute(query).fetchone()[0]
    if alone:
        on_problem("alone", f"{alone} rows of {_GPUS} belong to no row of system_samples: skipped")


def _add_message(fields: dict[str, Any], note: HistoryNote, rows: RowStore) -> None:
    """Add a message that the history kept; rows that earlier files contain are left out."""
    payload = fields.get("payload_mp")
    time_ns = note.received_ns if type(note.received_ns) is int else None
    fallback = {"rank": fields.get("rank")}
    if not isinstance(payload, bytes):
        rows.add(fallback, Row(RAW, fields), note)
        return
    decoded = read_payload(payload)
    if decoded.problem:
        rows.add_message(fallback, payload, time_ns, note)
        return
    envelopes = list(envelopes_of(decoded.value))
    pairs = [(envelope.meta, row) for envelope in envelopes for row in envelope.rows]
    new = [pair for pair in pairs if rows.is_new(rank_of(pair[0]), pair[1])]
    meta = pairs[0][0] if pairs else fallback
    if len(new) == len(pairs):
        rows.add_message(meta, payload, time_ns, note)
        return
    for row_meta, row in new:
        kept = {"meta": row_meta, "body": {"tables": {row.table: [row.value]}}}
        rows.add_message(row_meta, msgspec.msgpack.encode(kept), time_ns, note)
    if not new:
        rows.add_note(rank_of(meta), time_ns, note)
