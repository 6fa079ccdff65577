"""The frames of imported streams, collected from batches in a temporary file."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from .... import exactjson
from ....errors import InputError
from ...state_database import TEMPORARY, open_database
from .framing import frame_of
from .numbers import count, identifier
from .payloads import payload_of

KEY: Final = "traceml"
_TABLES: Final = (
    "CREATE TABLE stream (id TEXT PRIMARY KEY, rank INTEGER, pid INTEGER, ended INTEGER)",
    "CREATE TABLE frame (stream TEXT, number INTEGER, part INTEGER, parts INTEGER, data BLOB,"
    " PRIMARY KEY (stream, number, part)) WITHOUT ROWID",
    "CREATE TABLE document (name TEXT, part INTEGER, parts INTEGER, data BLOB,"
    " PRIMARY KEY (name, part))",
)
_OMITTED: Final = -1
"""`parts` of a frame that was too long to be kept."""
_TORN: Final = -2
"""`parts` of the bytes of a torn last frame."""
_EXPECTED: Final = (
    "expected `stream`, `first` and `frames` or `documents`, as docs/traceml.md describes them"
)


class CollectedStream(NamedTuple):
    """One connection."""

    id: str
    rank: int
    pid: int
    has_end: bool
    """Whether the batch that ends the connection was collected."""


class CollectedFrames:
    """Collects the frames of batches, in any order."""

    def __init__(self, folder: Path) -> None:
        """Use a temporary file in `folder`. Raises sqlite3.Error."""
        self._database = open_database(folder / "frames.sqlite", *TEMPORARY)
        for statement in _TABLES:
            self._database.execute(statement)
        self._database.execute("BEGIN")
        self.notes = 0
        """The number of lists with what histories contain beside their rows."""

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def add(self, members: dict[str, Any]) -> None:
        """Add the object `traceml` of a batch. Raises InputError for any other object."""
        documents = members.get("documents")
        if isinstance(documents, list) and "stream" not in members:
            for document in documents:
                self._add_document(document)
            return
        stream, frames = members.get("stream"), members.get("frames")
        first = count(members.get("first", 0))
        if not isinstance(stream, str) or not isinstance(frames, list) or first is None:
            raise InputError(f"the object traceml of the batch is not valid: {_EXPECTED}")
        rows, number = [], first
        for entry in frames:
            part, parts, data = _row(entry)
            rows.append((stream, number, part, parts, data))
            if part + 1 >= parts:
                number += 1
        place = (identifier(members.get("rank")) or 0, identifier(members.get("pid")) or 0)
        run = self._database.execute
        run("INSERT OR IGNORE INTO stream VALUES (?,?,?,0)", (stream, *place))
        if members.get("end") is True:
            run("UPDATE stream SET ended = 1 WHERE id = ?", (stream,))
        self._database.executemany("INSERT OR IGNORE INTO frame VALUES (?,?,?,?,?)", rows)

    def _add_document(self, document: Any) -> None:
        """Add a part of a document. Raises InputError for an object of another form."""
        document = document if isinstance(document, dict) else {}
        if isinstance(document.get("rows"), list):
            self.notes += 1
            return
        name, text = document.get("name"), document.get("text")
        part, parts = identifier(document.get("part")), identifier(document.get("parts"))
        if isinstance(document.get("base64"), str):
            data = _decoded(document["base64"].encode())
        elif isinstance(text, str):
            data = text.encode("utf-8", "surrogatepass")
        else:
            raise InputError(f"a document of the batch is not valid: {_EXPECTED}")
        row = (name, part, parts, data)
        if not isinstance(name, str) or part is None or parts is None:
            raise InputError(f"a document of the batch is not valid: {_EXPECTED}")
        self._database.execute("INSERT OR IGNORE INTO document VALUES (?,?,?,?)", row)

    def documents(self) -> Iterator[tuple[str, list[bytes], bool]]:
        """Yield the name of each document, its parts, and whether it is complete."""
        run = self._database.execute
        for name, parts in run("SELECT name, MAX(parts) FROM document GROUP BY name ORDER BY name"):
            query = "SELECT data FROM document WHERE name = ? ORDER BY part"
            data = [row[0] for row in run(query, (name,))]
            yield name, data, len(data) == parts

    def streams(self) -> list[CollectedStream]:
        """Return the streams in the order of their first batches."""
        rows = self._database.execute("SELECT id, rank, pid, ended FROM stream ORDER BY rowid")
        return [
            CollectedStream(stream, rank, pid, bool(ended)) for stream, rank, pid, ended in rows
        ]

    def missing(self, stream: CollectedStream) -> int:
        """Return how many frames of a stream are missing, as far as its numbers show."""
        last, complete = self._database.execute(
            "SELECT MAX(number) + 1, COUNT(DISTINCT number) FROM frame WHERE stream = ?"
            " AND (parts < 1 OR number IN (SELECT number FROM frame WHERE stream = ?"
            " GROUP BY number HAVING COUNT(*) = MAX(parts)))",
            (stream.id, stream.id),
        ).fetchone()
        omitted = self._database.execute(
            "SELECT COUNT(*) FROM frame WHERE stream = ? AND parts = ?", (stream.id, _OMITTED)
        ).fetchone()[0]
        return int((last or 0) - complete + omitted)

    def data(self, stream: CollectedStream) -> Iterator[bytes]:
        """Yield the bytes of a stream; a frame of which a part is missing is left out."""
        query = "SELECT number, parts, data FROM frame WHERE stream = ? ORDER BY number, part"
        pieces: list[bytes] = []
        current = -1
        for number, parts, data in self._database.execute(query, (stream.id,)):
            if number != current:
                pieces, current = [], number
            if parts == _TORN:
                yield data
            elif parts == 1:
                yield frame_of(data)
            elif parts > 1:
                pieces.append(data)
                if len(pieces) == parts:
                    entry = exactjson.loads(_decoded(b"".join(pieces)))
                    yield frame_of(payload_of(entry))


def _row(entry: Any) -> tuple[int, int, bytes]:
    """Return the part, the number of parts and the bytes of an entry of `frames`."""
    if isinstance(entry, dict) and "json" not in entry:
        torn, text = entry.get("torn"), entry.get("text")
        part, parts = identifier(entry.get("part")), identifier(entry.get("parts"))
        if isinstance(torn, str):
            return 0, _TORN, _decoded(torn.encode())
        if identifier(entry.get("omitted")) is not None:
            return 0, _OMITTED, b""
        if isinstance(text, str) and part is not None and parts is not None and 0 <= part < parts:
            return part, parts, text.encode()
    return 0, 1, payload_of(entry)


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise InputError("a frame is not base64: expected base64") from None
