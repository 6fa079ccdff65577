"""The records of batches that are written as Stormlog's files, kept in a temporary SQLite file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from .... import exactjson
from ....errors import InputError
from ...state_database import TEMPORARY, open_database
from .marks import KEY, PREFIX, TEXT, bytes_of_json, plain_text_of, record_of, with_sorted_keys

_MOST: Final = 2**63 - 1
_TABLES: Final = (
    "CREATE TABLE event (id TEXT PRIMARY KEY, session BLOB, rank INTEGER, ts INTEGER, record BLOB,"
    " kept BLOB) WITHOUT ROWID",
    "CREATE TABLE place (file TEXT, position INTEGER, event TEXT, text BLOB, is_repeat INTEGER,"
    " PRIMARY KEY (file, position)) WITHOUT ROWID",
    "CREATE TABLE gap (file TEXT, position INTEGER, text BLOB, PRIMARY KEY (file, position))",
    "CREATE TABLE layout (file TEXT PRIMARY KEY, form TEXT, records INTEGER, head BLOB,"
    " separator BLOB, tail BLOB)",
    "CREATE TABLE document (file TEXT, part INTEGER, parts INTEGER, text BLOB,"
    " PRIMARY KEY (file, part))",
)


class FileLayout(NamedTuple):
    """A file with records: its form, the number of its records, and the text around them."""

    name: str
    form: str
    records: int
    head: bytes
    separator: bytes
    tail: bytes


class CollectedRecords:
    """Collects the events, the files and the documents of imported batches."""

    def __init__(self, folder: Path) -> None:
        """Use a temporary file in `folder`. Raises sqlite3.Error."""
        self.database = open_database(folder / "records.sqlite", *TEMPORARY)
        for statement in _TABLES:
            self.database.execute(statement)
        self.database.execute("BEGIN")
        self.loose = 0
        """The number of events whose place in a file is unknown."""

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    def add(self, batch: dict[str, Any]) -> None:
        """Add an imported batch. Raises InputError if it is not as the importer writes it."""
        try:
            self._add(batch)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise InputError(f"{KEY}: not as the importer writes it: {error}") from None

    def _add(self, batch: dict[str, Any]) -> None:
        stormlog = batch[KEY]
        files, session = stormlog.get("files", {}), stormlog.get("session", {})
        events = [
            (mark["id"], *self._event(mark, session))
            for mark in batch["marks"]
            if str(mark["name"]).startswith(PREFIX)
        ]
        run = self.database.executemany
        run("INSERT OR IGNORE INTO event VALUES (?,?,?,?,?,?)", events)
        places = _places(stormlog.get("at", ()), files)
        if len(places) == len(events):
            rows = [
                (*place, event[0]) for place, event in zip(places, events, strict=True) if place
            ]
            run("INSERT OR IGNORE INTO place VALUES (?,?,?,NULL,0)", rows)
        else:
            self.loose += len(events)
        run("INSERT OR IGNORE INTO place VALUES (?,?,?,NULL,1)", [
            (files[str(file)], position, some_id)
            for file, position, some_id in stormlog.get("repeats", ())
        ])  # fmt: skip
        run("INSERT OR IGNORE INTO place VALUES (?,?,NULL,?,0)", [
            (files[str(file)], position, bytes_of_json(text))
            for file, position, text in stormlog.get("texts", ())
        ])  # fmt: skip
        run("INSERT OR IGNORE INTO gap VALUES (?,?,?)", [
            (files[str(file)], position, bytes_of_json(text))
            for file, position, text in stormlog.get("gaps", ())
        ])  # fmt: skip
        run("INSERT OR IGNORE INTO layout VALUES (?,?,?,?,?,?)", [
            (files[str(each["file"])], each["form"], each["records"],
             *(bytes_of_json(each[key]) for key in ("head", "separator", "tail")))
            for each in stormlog.get("layouts", ())
        ])  # fmt: skip
        run("INSERT OR IGNORE INTO document VALUES (?,?,?,?)", [
            (str(name), part, parts, bytes_of_json(text))
            for name, part, parts, text in stormlog.get("documents", ())
        ])  # fmt: skip

    def _event(self, mark: dict[str, Any], session: dict[str, Any]) -> tuple[Any, ...]:
        record = record_of(mark, session)
        text = mark.get(KEY, {}).get(TEXT)
        kept = None if text is None else bytes_of_json(text)
        rank = min(record["rank"] or 0, _MOST)
        values = _session_key(record["session_id"]), rank, record["timestamp_ns"]
        return *values, exactjson.dumps(record), kept

    def layouts(self) -> list[FileLayout]:
        """Return the files with records, in the order of their names."""
        rows = self.database.execute(
            "SELECT file, form, records, head, separator, tail FROM layout ORDER BY file"
        )
        return [FileLayout(*row) for row in rows]

    def is_complete(self, layout: FileLayout) -> bool:
        """Return whether every record of a file is known."""
        query = (
            "SELECT COUNT(*) FROM place LEFT JOIN event ON event.id = place.event"
            " WHERE file = ? AND (place.text IS NOT NULL OR event.id IS NOT NULL)"
        )
        (count,) = self.database.execute(query, (layout.name,)).fetchone()
        return bool(count == layout.records)

    def pieces(self, layout: FileLayout) -> Iterator[bytes]:
        """Yield the content of a complete file."""
        rows = self.database.execute(
            "SELECT place.position, place.text, place.is_repeat, event.record, event.kept, gap.text"
            " FROM place LEFT JOIN event ON event.id = place.event"
            " LEFT JOIN gap ON gap.file = place.file AND gap.position = place.position"
            " WHERE place.file = ? ORDER BY place.position",
            (layout.name,),
        )
        yield layout.head
        for position, text, is_repeat, data, kept, gap in rows:
            if position:
                yield layout.separator if gap is None else gap
            if text is not None:
                yield text
            elif kept is not None and not is_repeat:
                yield kept
            else:
                record = exactjson.loads(data)
                if is_repeat:
                    record["metadata"] = with_sorted_keys(record["metadata"])
                yield plain_text_of(record, layout.form)
        yield layout.tail

    def documents(self) -> list[str]:
        """Return the names of the files without records."""
        rows = self.database.execute("SELECT DISTINCT file FROM document ORDER BY file")
        return [name for (name,) in rows]

    def document(self, name: str) -> bytes | None:
        """Return the content of a file without records; None if a part is missing."""
        rows = self.database.execute(
            "SELECT parts, text FROM document WHERE file = ? ORDER BY part", (name,)
        ).fetchall()
        return b"".join(text for _, text in rows) if len(rows) == rows[0][0] else None

    def sessions(self) -> list[str]:
        """Return the ids of the sessions with events."""
        rows = self.database.execute("SELECT DISTINCT session FROM event ORDER BY session")
        return [session.decode("utf-8", "surrogatepass") for (session,) in rows]

    def events(self, session_id: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the events in the order of time, those of one session or all."""
        where = "" if session_id is None else "WHERE session = ?"
        values = () if session_id is None else (_session_key(session_id),)
        query = f"SELECT record FROM event {where} ORDER BY ts, rank, id"  # noqa: S608 - constants
        for (record,) in self.database.execute(query, values):
            yield exactjson.loads(record)


def _session_key(session_id: str) -> bytes:
    """Return a session id, which may contain half of a surrogate pair, as bytes."""
    return session_id.encode("utf-8", "surrogatepass")


def _places(runs: Any, files: dict[str, str]) -> list[tuple[str, int] | None]:
    """Return the place of each mark; None for one that is in no file by itself."""
    places: list[tuple[str, int] | None] = []
    for file, first, count in runs:
        if not 0 <= count <= 2**24:
            raise ValueError(f"a run of {count} records")
        if file < 0:
            places += [None] * count
        else:
            name = files[str(file)]
            places += [(name, position) for position in range(first, first + count)]
    return places
