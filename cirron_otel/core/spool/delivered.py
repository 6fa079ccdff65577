"""An SQLite file of the batches without an owner that a target has acknowledged or refused.

Many processes write such batches, each with its own clock, and hours late if a link was down, so a
name gives no information about when its batch arrived. A batch is done only if its name is in this
file. A name is removed once its batch has left the spool, so the file grows only with the spool.

Only the holder of the lease of (target, `owner.NONE`) may write the file; any process may read it
meanwhile. It is not synced: after a power failure the last acknowledgements may be lost, and their
batches are sent again. If a name cannot be looked up, its batch also counts as not done.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Final

from ...errors import InputError, TargetError
from ..state_database import DATABASE_SUFFIXES, create_private_file, open_database, transaction
from .cursor import Cursor, cursor_path
from .directories import make_private
from .owner import NONE
from .paths import SpoolPaths, batch_names
from .state import set_aside, unwritable

VERSION: Final = 1

_PRUNE_FROM = 2_000
"""The names of batches that left the spool are removed only if there are more names than this."""
_PAGE = 500
"""Names per query."""
_WAIT_S = 10.0

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS batch (name BLOB PRIMARY KEY, refused TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS about (
    version INTEGER, target TEXT, acknowledged INTEGER, refused INTEGER, names INTEGER,
    prune_at INTEGER
);
"""


class Delivered:
    """The batches without an owner that one target has acknowledged or permanently refused.

    Test with `name in delivered`. The threads of one process may share an instance. It has the
    methods of a `Cursor`, and takes over the contents of an earlier version's cursor.
    """

    def __init__(self, paths: SpoolPaths, target: str) -> None:
        """Read the file for the key of a target, if there is one; `save` creates it.

        Raises InputError if the file is damaged (see `reset`), and TargetError if it is temporarily
        unreadable.
        """
        self.path = cursor_path(paths.state, target, NONE)
        self.acknowledged_count = 0
        """The total number of batches acknowledged."""
        self.refused_count = 0
        """The total number of batches refused."""
        self.waiting: set[str] = set()
        """Batches that must not be sent yet; this class ignores them."""
        self._paths, self._target = paths, target
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._file = (0, 0)
        """Device and inode of the open file."""
        self._names, self._prune_at = 0, _PRUNE_FROM
        self._new: dict[str, str | None] = {}
        """Unwritten results by name: None for a delivered batch, or the reason of a refusal."""
        self._is_damaged = False
        self._earlier: Cursor | None = None
        """The cursor of an earlier version, while there is no file of this version."""
        self._is_earlier_gone = False
        if not self._open_existing():
            self._earlier = Cursor(paths.state, target, NONE)
            self.acknowledged_count = self._earlier.acknowledged_count
            self.refused_count = self._earlier.refused_count

    @classmethod
    def reset(cls, paths: SpoolPaths, target: str) -> Delivered:
        """Rename damaged files to `.bad` and start afresh: all existing batches are sent again.

        Raises TargetError if `state/` cannot be written.
        """
        _set_aside(cursor_path(paths.state, target, NONE))
        Cursor.reset(paths.state, target, NONE)
        return cls(paths, target)

    # --- reading --------------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        if name in self._new:
            return True
        with self._lock:
            return self._has(name)

    def undone(self, names: Iterable[str]) -> list[str]:
        """Return the `names` that are not done, in their order."""
        candidates, done = list(names), set(self._new)
        with self._lock, self._one_view():
            for start in range(0, len(candidates), _PAGE):
                done |= self._done_among(candidates[start : start + _PAGE])
        return [name for name in candidates if name not in done]

    def _done_among(self, page: list[str]) -> set[str]:
        with contextlib.suppress(sqlite3.Error, InputError, TargetError):
            if self._open_existing() and self._db is not None:
                query = f"SELECT name FROM batch WHERE name IN ({','.join('?' * len(page))})"  # noqa: S608
                rows = self._db.execute(query, [os.fsencode(name) for name in page])
                return {os.fsdecode(row[0]) for row in rows}
        return {name for name in page if self._has(name)}

    @property
    def is_stale(self) -> bool:
        """Whether the file was replaced or is damaged, so that a reader must open it again."""
        return self._is_damaged or (self._db is not None and _identity(self.path) != self._file)

    @property
    def refused(self) -> dict[str, str]:
        """The reasons of permanent refusals, by batch name."""
        query = "SELECT name, refused FROM batch WHERE refused IS NOT NULL"
        reasons = {name: why for name, why in self._new.items() if why is not None}
        with self._lock, self._explained():
            if self._open_existing() and self._db is not None:
                reasons |= {os.fsdecode(name): why for name, why in self._db.execute(query)}
            elif self._earlier is not None:
                reasons |= self._earlier.refused
        return reasons

    def _has(self, name: str) -> bool:
        try:
            if not self._open_existing() or self._db is None:
                return self._earlier is not None and name in self._earlier
            query = "SELECT 1 FROM batch WHERE name = ?"
            return self._db.execute(query, (os.fsencode(name),)).fetchone() is not None
        except sqlite3.Error as error:
            self._is_damaged |= not isinstance(error, sqlite3.OperationalError)
        except (InputError, TargetError):
            pass
        return False

    @contextlib.contextmanager
    def _one_view(self) -> Iterator[None]:
        """Take the database's lock once for all reads in the block."""
        with contextlib.suppress(sqlite3.Error, InputError, TargetError):
            if self._open_existing() and self._db is not None:
                self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._roll_back()

    # --- writing --------------------------------------------------------------------------------

    def acknowledge(self, name: str) -> None:
        """Record that the target has acknowledged a batch; `save` makes this persistent."""
        if name not in self:
            self._new[name] = None
            self.acknowledged_count += 1

    def refuse(self, name: str, reason: str) -> None:
        """Record that the target refused a batch permanently: it is reported, not sent again."""
        if name not in self:
            self._new[name] = reason
            self.refused_count += 1

    def forget(self, present: Set[str]) -> None:
        """Do nothing: `save` drops the names of batches that left the spool."""

    def save(self, _pending: Iterable[str] = ()) -> None:
        """Write the recorded results. Raises TargetError if they cannot be written.

        Pending batches matter only for the mark of a cursor; there is no mark here.
        """
        with self._lock:
            try:
                self._write()
            except sqlite3.OperationalError as error:
                raise self._error(error) from None
            except OSError as error:
                raise unwritable(self.path, error) from None
            except (sqlite3.DatabaseError, InputError):
                self._begin_anew()
                with self._explained():
                    self._write()
            self._new = {}

    def _write(self) -> None:
        if self._is_damaged:
            raise sqlite3.DatabaseError(str(self.path))
        self._follow_name()
        if self._db is None:
            self._make()
        if not self._is_earlier_gone:
            self.path.with_suffix(".json").unlink(missing_ok=True)
            self._is_earlier_gone = True
        if not self._new and self._names <= self._prune_at:
            return
        db = self._db
        if db is None:
            return
        with transaction(db):
            names = self._names + self._insert(db, self._new)
            prune_at = self._prune_at
            if names > prune_at:
                names -= self._prune(db)
                prune_at = 2 * names + _PRUNE_FROM
            self._tell(db, names, prune_at)
        self._names, self._prune_at = names, prune_at

    def _insert(self, db: sqlite3.Connection, results: dict[str, str | None]) -> int:
        rows = [(os.fsencode(name), why) for name, why in results.items()]
        return max(db.executemany("INSERT OR IGNORE INTO batch VALUES (?, ?)", rows).rowcount, 0)

    def _tell(self, db: sqlite3.Connection, names: int, prune_at: int) -> None:
        db.execute(
            "UPDATE about SET acknowledged = ?, refused = ?, names = ?, prune_at = ?",
            (self.acknowledged_count, self.refused_count, names, prune_at),
        )

    def _prune(self, db: sqlite3.Connection) -> int:
        """Drop the names of batches that left the spool, and return their number."""
        try:
            present = {os.fsencode(name) for name in batch_names(self._paths.spool)}
        except OSError:  # a directory that is missing now may come back with all its contents
            return 0
        known = [row for row in db.execute("SELECT name FROM batch") if row[0] not in present]
        return max(db.executemany("DELETE FROM batch WHERE name = ?", known).rowcount, 0)

    # --- the file -------------------------------------------------------------------------------

    def _open_existing(self) -> bool:
        """Open the file; return False if there is none yet."""
        if self._db is not None:
            return True
        with self._explained():
            if not self.path.exists() or self.path.stat().st_size == 0:
                return False
            db = self._connect()
            try:
                about = db.execute("SELECT * FROM about").fetchone()
            except sqlite3.OperationalError as error:
                db.close()
                if "no such table" in str(error):  # another process is still creating it
                    return False
                raise
            except BaseException:
                db.close()
                raise
            if about is None or about[:2] != (VERSION, self._target):
                db.close()
                raise InputError(
                    f"cursor {self.path} belongs to {about and about[:2]}, expected"
                    f" {(VERSION, self._target)}: remove it to send all batches again"
                )
            self._use(db)
            self._earlier = None
            *_, self.acknowledged_count, self.refused_count, self._names, self._prune_at = about
        return True

    def _connect(self) -> sqlite3.Connection:
        return open_database(self.path, "synchronous=NORMAL", busy_s=_WAIT_S, is_shared=True)

    def _use(self, db: sqlite3.Connection) -> None:
        self._db, self._file = db, _identity(self.path)

    def _make(self) -> None:
        """Create the file with the contents of an earlier version's cursor."""
        if self._open_existing():
            return
        try:
            make_private(self.path.parent)
            create_private_file(self.path)
        except OSError as error:
            raise unwritable(self.path, error) from None
        db = self._connect()
        try:
            # The earlier version's file is removed once the new file is on disk.
            db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;")
            known = self._known_earlier()
            with transaction(db):
                for statement in _TABLES.split(";"):
                    db.execute(statement)
                db.execute("DELETE FROM about")
                db.execute("INSERT INTO about VALUES (?, ?, 0, 0, 0, 0)", (VERSION, self._target))
                names = self._insert(db, known)
                self._tell(db, names, names + _PRUNE_FROM)
            db.execute("PRAGMA synchronous=NORMAL")
        except BaseException:
            db.close()
            raise
        self._use(db)
        self._names, self._prune_at = names, names + _PRUNE_FROM
        self._earlier = None

    def _known_earlier(self) -> dict[str, str | None]:
        """Return the earlier cursor's results for the batches in the spool.

        If the spool cannot be listed, return the results that the cursor stores individually.
        """
        earlier = self._earlier or Cursor(self._paths.state, self._target, NONE)
        with contextlib.suppress(OSError):
            present = [name for name in batch_names(self._paths.spool) if name in earlier]
            return {name: earlier.refused.get(name) for name in present}
        return dict(earlier.refused) | dict.fromkeys(earlier.acknowledged)

    def _follow_name(self) -> None:
        """If the file was removed or replaced, queue all its contents for the new file."""
        if self._db is None or _identity(self.path) == self._file:
            return
        with contextlib.suppress(sqlite3.Error):
            rows = self._db.execute("SELECT name, refused FROM batch").fetchall()
            self._new = {os.fsdecode(name): why for name, why in rows} | self._new
        self._release()

    def _begin_anew(self) -> None:
        """Discard damaged files, and keep the results that are not written yet."""
        self._release()
        _set_aside(self.path)
        self.path.with_suffix(".json").unlink(missing_ok=True)
        self._earlier, self._is_damaged = None, False

    def _roll_back(self) -> None:
        if self._db is not None and self._db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise self._error(error) from None
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"cursor {self.path} cannot be read ({error}): remove it to send all batches again"
            ) from None
        except OSError as error:
            raise unwritable(self.path, error) from None

    def _error(self, error: sqlite3.Error) -> TargetError:
        return TargetError(f"{self.path} cannot be written: {error}; free some space")

    def _release(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.close()

    def close(self) -> None:
        """Close the file; the next access opens it again."""
        with self._lock:
            self._release()


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _set_aside(path: Path) -> None:
    """Rename the database to `.bad`, and remove its logs, which would corrupt the next database."""
    set_aside(path)
    for suffix in DATABASE_SUFFIXES[1:]:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
