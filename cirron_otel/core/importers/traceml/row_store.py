"""Rows of several files of one run: a row that two files contain is one record."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from .... import exactjson
from ...state_database import TEMPORARY, open_database
from .envelopes import CONTROL, HISTORY_CONTROL, Row
from .numbers import identifier, text
from .sample_rows import ENVIRONMENT_TABLE, PROCESS_TABLE, SYSTEM_TABLE, plain, row_time
from .step_rows import MEMORY_TABLE, STEP_TABLE

META_KEYS: Final = (
    "rank", "global_rank", "local_rank", "world_size", "local_world_size", "node_rank",
    "hostname", "pid",
)  # fmt: skip
_SAMPLERS: Final = {
    STEP_TABLE: "StepTimeSampler", MEMORY_TABLE: "StepMemorySampler",
    PROCESS_TABLE: "ProcessSampler", SYSTEM_TABLE: "SystemSampler",
    ENVIRONMENT_TABLE: "RuntimeEnvironmentSampler",
}  # fmt: skip
_NOT_IN_HISTORIES: Final = frozenset({"pid", "model_id"})
_FRAME_ROWS: Final = 64
_NOTES: Final = 2_000
_TABLES: Final = (
    "CREATE TABLE seen (key BLOB PRIMARY KEY, known INTEGER, here INTEGER, file INTEGER)"
    " WITHOUT ROWID",
    "CREATE TABLE pending (rank INTEGER, time INTEGER, number INTEGER, name TEXT, data BLOB,"
    " note TEXT, PRIMARY KEY (rank, time, number)) WITHOUT ROWID",
    "CREATE TABLE sender (rank INTEGER PRIMARY KEY, meta TEXT)",
)


class HistoryNote(NamedTuple):
    """The columns of a history that no row on the wire has."""

    table: str
    id: Any
    received_ns: Any


class RowStore:
    """Collects rows in a temporary file, and yields those of each rank as frames' payloads."""

    def __init__(self, folder: Path) -> None:
        """Use a temporary file in `folder`. Raises sqlite3.Error."""
        self._database = open_database(folder / "rows.sqlite", *TEMPORARY)
        for statement in _TABLES:
            self._database.execute(statement)
        self._database.execute("BEGIN")
        self._file = 0
        self._number = 0
        self.duplicates = 0
        """The number of rows that an earlier file contains."""

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def begin_file(self) -> None:
        """Start the next file, or the next table of a database that repeats another one."""
        self._file += 1

    def is_new(self, rank: int | None, row: Row) -> bool:
        """Return whether no earlier file contains the row; equal rows of one file are all new."""
        key = _key(rank, row)
        found = self._database.execute(
            "SELECT known, here, file FROM seen WHERE key = ?", (key,)
        ).fetchone()
        known, here, file = found or (0, 0, self._file)
        if file != self._file:
            known, here = max(known, here), 0
        here += 1
        self._database.execute(
            "INSERT OR REPLACE INTO seen VALUES (?,?,?,?)", (key, known, here, self._file)
        )
        if here <= known:
            self.duplicates += 1
        return bool(here > known)

    def add(self, meta: dict[str, Any], row: Row, note: HistoryNote | None = None) -> None:
        """Add a row unless an earlier file contains it; the note is kept in any case."""
        rank = rank_of(meta)
        is_new = self.is_new(rank, row)
        self._note_sender(rank, meta, row)
        data = msgspec.msgpack.encode(row.value) if is_new else b""
        self._insert(rank, _time(row.value, note), row.table if is_new else "", data, note)

    def add_message(
        self, meta: dict[str, Any], payload: bytes, time_ns: int | None, note: HistoryNote
    ) -> None:
        """Add a complete message, verbatim."""
        rank = rank_of(meta)
        self._note_sender(rank, meta, None)
        self._insert(rank, time_ns or 0, "message", payload, note)

    def add_note(self, rank: int | None, time_ns: int | None, note: HistoryNote) -> None:
        """Add a note about a message whose rows earlier files contain."""
        self._insert(rank, time_ns or 0, "", b"", note)

    def _insert(
        self, rank: int | None, time_ns: int, name: str, data: bytes, note: HistoryNote | None
    ) -> None:
        if not data and note is None:
            return
        self._number += 1
        noted = None if note is None else exactjson.dumps_ascii([plain(each) for each in note])
        self._database.execute(
            "INSERT INTO pending VALUES (?,?,?,?,?,?)",
            (-1 if rank is None else rank, time_ns, self._number, name, data, noted),
        )

    def _note_sender(self, rank: int | None, meta: dict[str, Any], row: Row | None) -> None:
        """Remember the fields about the sender that are known."""
        pid = identifier(row.value.get("pid")) if row is not None else None
        fields = {
            key: value
            for key in META_KEYS
            if (value := (text if key == "hostname" else identifier)(meta.get(key))) is not None
        }
        fields = fields | ({"pid": pid} if pid is not None else {})
        number = -1 if rank is None else rank
        known = self._sender(number)
        if fields.keys() - known.keys():
            self._database.execute(
                "INSERT OR REPLACE INTO sender VALUES (?,?)",
                (number, exactjson.dumps_ascii(fields | known)),
            )

    def _sender(self, rank: int) -> dict[str, Any]:
        found = self._database.execute("SELECT meta FROM sender WHERE rank = ?", (rank,)).fetchone()
        meta: dict[str, Any] = exactjson.loads(found[0]) if found is not None else {}
        return meta

    def ranks(self) -> list[int]:
        """Return the ranks with rows that no frames contain; -1 is an unknown rank."""
        rows = self._database.execute(
            "SELECT DISTINCT rank FROM pending WHERE name != '' ORDER BY rank"
        )
        return [rank for (rank,) in rows]

    def notes_alone(self) -> Iterator[list[Any]]:
        """Yield lists of the notes of ranks whose rows all are in frames."""
        rows = self._database.execute(
            "SELECT note FROM pending WHERE rank NOT IN"
            " (SELECT rank FROM pending WHERE name != '') ORDER BY rank, time, number"
        )
        while some := rows.fetchmany(_NOTES):
            yield [exactjson.loads(note) for (note,) in some]

    def payloads(self, rank: int) -> Iterator[bytes]:
        """Yield the payloads of a rank in the order of time."""
        known = self._sender(rank)
        meta = {key: known.get(key) for key in META_KEYS}
        rows = self._database.execute(
            "SELECT name, data, note, time FROM pending WHERE rank = ? ORDER BY time, number",
            (rank,),
        )
        numbered = ((number // _FRAME_ROWS, row) for number, row in enumerate(rows))
        for _, group in groupby(numbered, lambda pair: pair[0]):
            yield from _frames([row for _, row in group], meta)


def _frames(
    rows: list[tuple[str, bytes, str | None, int]], meta: dict[str, Any]
) -> Iterator[bytes]:
    """Yield the payloads of some rows: messages verbatim, then the rows by table, then notes."""
    tables: dict[str, list[Any]] = {}
    notes, last_ns = [], 0
    for name, data, note, time_ns in rows:
        last_ns = max(last_ns, time_ns)
        if name == "message":
            yield data
        elif name:
            tables.setdefault(name, []).append(msgspec.msgpack.decode(data))
        if note is not None:
            notes.append(exactjson.loads(note))
    messages: list[dict[str, Any]] = []
    for table, values in tables.items():
        sampler = _SAMPLERS.get(table, table)
        fields = meta | {"sampler": sampler, "timestamp": last_ns / 1e9}
        messages.append({"meta": fields, "body": {"tables": {table: values}}})
    if notes:
        messages.append({CONTROL: HISTORY_CONTROL, "rows": notes})
    if messages:
        yield msgspec.msgpack.encode(messages)


def rank_of(meta: dict[str, Any]) -> int | None:
    """Return the global rank of a sender, or else its rank."""
    rank = identifier(meta.get("global_rank"))
    return identifier(meta.get("rank")) if rank is None else rank


def _time(row: dict[str, Any], note: HistoryNote | None) -> int:
    """Return the time of a row, or else that of its arrival, for the order of rows."""
    time_ns = row_time(row)
    if time_ns is None and note is not None:
        time_ns = identifier(note.received_ns)
    return time_ns or 0


def _key(rank: int | None, row: Row) -> bytes:
    """Return a digest of the fields of a row that all of its files contain."""
    fields = {key: value for key, value in row.value.items() if key not in _NOT_IN_HISTORIES}
    try:
        content = msgspec.json.encode([rank, row.table, fields], order="sorted")
    except (TypeError, ValueError, RecursionError):  # keys that JSON does not have
        content = repr((rank, row.table, fields)).encode("utf-8", "surrogatepass")
    return hashlib.sha256(content).digest()[:16]
