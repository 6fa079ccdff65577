"""Remember the requests and batches of the last hours, so that none of them is stored twice.

A client resends a request if it did not receive the acknowledgement, and an intermediate collector
may resend its queue after a restart; both resend identical bytes. Each entry contains the position
of its frame, so that entries of frames that are still in the journal are retained. A key is added
once its batch is in the spool, so a frame with a known key needs no more work.
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
    """The part of a batch from Cirron that one frame contained."""

    batch: bytes
    """The key of the batch."""
    at_ns: int
    """Time of arrival, Unix ns."""
    position: Position
    """The start of its frame."""
    records: bytes
    """The concatenated keys of its records."""


class Seen:
    """The keys of stored requests and batches, in a file; for one process.

    All methods raise TargetError if the file cannot be used now.
    """

    def __init__(self, path: Path) -> None:
        """Open the file. A damaged file is recreated, which may lead to duplicates."""
        self._file = StateFile(
            path, _SCHEMA, "duplicates of earlier requests are no longer detected"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_known(self, key: bytes) -> bool:
        """Return whether a request with this key is stored."""
        return bool(self._file.read("SELECT 1 FROM seen WHERE key = ?", (key,)))

    def add(self, entries: Iterable[tuple[bytes, int, Position]]) -> None:
        """Add keys with their time of arrival, Unix ns, and the position of their frame."""
        rows = [(key, at_ns, *position) for key, at_ns, position in entries]
        self._file.write(("INSERT OR IGNORE INTO seen VALUES (?, ?, ?, ?)", rows))

    def parts(self, batch: bytes, position: Position) -> list[bytes]:
        """Return the record keys of a batch's parts in frames other than the one at `position`."""
        rows = self._file.read(
            "SELECT records FROM part WHERE batch = ? AND NOT (segment = ? AND offset = ?)",
            (batch, *position),
        )
        return [row[0] for row in rows]

    def add_parts(self, parts: Iterable[SeenPart]) -> None:
        """Add parts of batches."""
        rows = [(p.batch, *p.position, p.at_ns, p.records) for p in parts]
        self._file.write(("INSERT OR IGNORE INTO part VALUES (?, ?, ?, ?, ?)", rows))

    def forget(self, before_ns: int, segment: int = 2**63 - 1) -> None:
        """Remove entries older than `before_ns` (Unix ns) whose frames are in segments below
        `segment`.
        """
        row = [(before_ns, segment)]
        self._file.write(
            ("DELETE FROM seen WHERE at_ns < ? AND segment < ?", row),
            ("DELETE FROM part WHERE at_ns < ? AND segment < ?", row),
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()
