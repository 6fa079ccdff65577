"""The list of pending uploads of snapshot files, on disk: one row per batch and file.

A row is written before its batch counts as delivered. It is removed once the file is uploaded and
the snapshot rows contain the URIs. So neither the end of a process nor a power cut loses an upload.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ....errors import TargetError
from ...spool.blobs import BlobKey
from ...spool.state import set_aside
from ...state_database import (
    DATABASE_SUFFIXES,
    FULL_SYNC,
    WAL,
    create_private_file,
    open_database,
    transaction,
)

_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0
_TABLES = """
CREATE TABLE IF NOT EXISTS pending (
    batch TEXT NOT NULL, directory TEXT NOT NULL, file TEXT NOT NULL, uris TEXT,
    PRIMARY KEY (batch, directory, file)
) WITHOUT ROWID;
CREATE TEMP TABLE turns (
    batch TEXT NOT NULL, directory TEXT NOT NULL, file TEXT NOT NULL,
    is_sent INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL DEFAULT 0, wait REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (batch, directory, file)
) WITHOUT ROWID;
CREATE INDEX temp.due ON turns (due, batch);
INSERT INTO turns SELECT batch, directory, file, uris IS NOT NULL, 0, 0 FROM pending;
"""
# The table `turns` is in memory: on disk, each attempt to upload a missing file would cost a sync.
_HERE = "WHERE batch = ? AND directory = ? AND file = ?"


class Upload(NamedTuple):
    """The upload of a file that a batch names."""

    batch: str
    """The batch's file name."""
    key: BlobKey
    uris: dict[int, str] | None
    """The URIs of the file's tensors, by record number; None before the upload."""


class PendingUploads:
    """The pending uploads to one store, for any thread.

    Methods raise TargetError if the database cannot be used.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """Open the database file, or create it. `clock` returns seconds and never goes back.

        A damaged file is renamed to `.bad`; `was_damaged` is then True.
        """
        self._path, self._clock, self._lock = path, clock, threading.Lock()
        self.was_damaged = False
        try:
            self._db = self._open()
        except sqlite3.OperationalError as error:
            raise self._error(error) from None
        except sqlite3.DatabaseError:
            set_aside(path)
            for suffix in DATABASE_SUFFIXES[1:]:
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self.was_damaged = True
            try:
                self._db = self._open()
            except sqlite3.Error as error:
                raise self._error(error) from None

    def _open(self) -> sqlite3.Connection:
        create_private_file(self._path)
        db = open_database(
            self._path, WAL, FULL_SYNC, "temp_store=MEMORY", busy_s=30, is_shared=True
        )
        db.executescript(_TABLES)
        return db

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                raise self._error(error) from None

    def _error(self, error: sqlite3.Error) -> TargetError:
        return TargetError(f"{self._path} cannot be used: {error}; check the free disk space")

    def __len__(self) -> int:
        with self._connection() as db:
            return int(db.execute("SELECT count(*) FROM turns").fetchone()[0])

    def uploads(self) -> list[tuple[str, BlobKey, bool]]:
        """Return (batch, file, is uploaded) for each pending upload.

        If a file is uploaded, only its URIs remain to be written into the snapshot rows.
        Raises TargetError if the database cannot be read.
        """
        with self._connection() as db:
            rows = db.execute("SELECT batch, directory, file, is_sent FROM turns").fetchall()
        return [
            (batch, BlobKey(directory, file), bool(sent)) for batch, directory, file, sent in rows
        ]

    def add(self, batches: Iterable[tuple[str, Iterable[BlobKey]]]) -> None:
        """Add the files of batches. Files that are already pending are left unchanged."""
        rows = [(batch, key.directory, key.file) for batch, keys in batches for key in keys]
        if not rows:
            return
        with self._changing() as db:
            for table in ("pending", "turns"):
                db.executemany(
                    f"INSERT OR IGNORE INTO {table} (batch, directory, file) VALUES (?, ?, ?)",  # noqa: S608
                    rows,
                )

    def next(self, *, files: bool, rows: bool) -> Upload | None:
        """Return the upload that has been due the longest; None if no upload is due.

        `files` includes files to upload, and `rows` includes uploaded files whose rows must change.
        """
        with self._connection() as db:
            while True:
                row = db.execute(
                    "SELECT batch, directory, file FROM turns WHERE due <= ?"
                    " AND CASE is_sent WHEN 0 THEN ? ELSE ? END ORDER BY due, batch LIMIT 1",
                    (self._clock(), files, rows),
                ).fetchone()
                if row is None:
                    return None
                stored = db.execute(f"SELECT uris FROM pending {_HERE}", row).fetchone()  # noqa: S608
                if stored is not None:
                    break
                # A predecessor that was still uploading has finished this file.
                db.execute(f"DELETE FROM turns {_HERE}", row)  # noqa: S608
        batch, directory, file = row
        [uris] = stored
        numbered = None if uris is None else {int(n): uri for n, uri in json.loads(uris).items()}
        return Upload(batch, BlobKey(directory, file), numbered)

    def later(self, upload: Upload) -> None:
        """Retry an upload after a wait, which doubles each time up to a limit."""
        with self._connection() as db:
            [wait] = db.execute(f"SELECT wait FROM turns {_HERE}", _place(upload)).fetchone()  # noqa: S608
            wait = min(max(2 * wait, _FIRST_WAIT_S), _LONGEST_WAIT_S)
            due = self._clock() + wait
            db.execute(f"UPDATE turns SET wait = ?, due = ? {_HERE}", (wait, due, *_place(upload)))  # noqa: S608

    def defer(self, upload: Upload, until: float) -> None:
        """Delay an upload until a time of the clock."""
        with self._connection() as db:
            db.execute(f"UPDATE turns SET due = ? {_HERE}", (until, *_place(upload)))  # noqa: S608

    def uploaded(self, upload: Upload, uris: dict[int, str]) -> None:
        """Record that a file is uploaded, and the URIs of its tensors."""
        with self._changing() as db:
            db.execute(f"UPDATE pending SET uris = ? {_HERE}", (json.dumps(uris), *_place(upload)))  # noqa: S608
            db.execute(f"UPDATE turns SET is_sent = 1, due = 0, wait = 0 {_HERE}", _place(upload))  # noqa: S608

    def remove(self, upload: Upload) -> None:
        """Remove a finished upload."""
        with self._changing() as db:
            for table in ("pending", "turns"):
                db.execute(f"DELETE FROM {table} {_HERE}", _place(upload))  # noqa: S608

    def shorten_waits(self) -> None:
        """Make all uploads due immediately."""
        with self._connection() as db:
            db.execute("UPDATE turns SET due = 0")

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction, whose changes are on disk at the end of the block."""
        with self._connection() as db, transaction(db):
            yield db

    def close(self) -> None:
        """Close the database file."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._db.close()


def _place(upload: Upload) -> tuple[str, str, str]:
    return (upload.batch, *upload.key)
