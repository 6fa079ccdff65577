"""What came before: requests and batches of the last hours, so that none is stored twice.

A client whose acknowledgement was lost sends again, and a collector in between may send what it had
queued after a restart; both bring the same bytes. Entries carry the position of the frame that made
them, so that what still lies in the journal is not forgotten. Keys are noted when their batches are
in the spool: a frame whose key is known is done.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

from .journal.files import Position
from .state_file import StateFile

_SCHEMA = """
CREATE TABLE IF NOT EXISTS seen (
  key BLOB PRIMARY KEY, at_ns INTEGER NOT NULL, segment INTEGER NOT NULL, offset INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS seen_at ON seen (at_ns);
CREATE TABLE IF NOT EXISTS part (
  batch BLOB, segment INTEGER, offset INTEGER, at_ns INTEGER NOT NULL, records BLOB NOT NULL,
  PRIMARY KEY (batch, segment, offset)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS part_at ON part (at_ns);
"""


class SeenPart(NamedTuple):
    """What a frame brought of a batch that was born in Cirron."""

    batch: bytes
    """What all parts of the batch have in common."""
    at_ns: int
    """When it came, Unix ns."""
    position: Position
    """Where its frame begins."""
    records: bytes
    """The keys of the records that it brought, one behind the other."""


class Seen:
    """Keys of what came, in a file; for one process.

    All that it does raises TargetError where the file cannot be used for now.
    """

    def __init__(self, path: Path) -> None:
        """Open it. One that is damaged is made anew: the worst that follows is a duplicate."""
        self._file = StateFile(path, _SCHEMA, "what came before is not known any more")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_known(self, key: bytes) -> bool:
        """Whether it came before, and is stored."""
        return bool(self._file.read("SELECT 1 FROM seen WHERE key = ?", (key,)))

    def add(self, entries: Iterable[tuple[bytes, int, Position]]) -> None:
        """Remember keys: when they came, ns, and with which frame."""
        rows = [(key, at_ns, *position) for key, at_ns, position in entries]
        self._file.write(("INSERT OR IGNORE INTO seen VALUES (?, ?, ?, ?)", rows))

    def parts(self, batch: bytes, position: Position) -> list[bytes]:
        """The records of a batch that other frames than the one at `position` brought."""
        rows = self._file.read(
            "SELECT records FROM part WHERE batch = ? AND NOT (segment = ? AND offset = ?)",
            (batch, *position),
        )
        return [row[0] for row in rows]

    def add_parts(self, parts: Iterable[SeenPart]) -> None:
        """Remember parts of batches."""
        rows = [(p.batch, *p.position, p.at_ns, p.records) for p in parts]
        self._file.write(("INSERT OR IGNORE INTO part VALUES (?, ?, ?, ?, ?)", rows))

    def forget(self, before_ns: int, segment: int = 2**63 - 1) -> None:
        """Forget what came before a time, in Unix ns, with frames of segments before `segment`."""
        row = [(before_ns, segment)]
        self._file.write(
            ("DELETE FROM seen WHERE at_ns < ? AND segment < ?", row),
            ("DELETE FROM part WHERE at_ns < ? AND segment < ?", row),
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()
