"""The steps of one rank of a run in order, which records without times are attached to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ... import exactjson
from ...errors import InputError
from ..spool.reader import SpoolReader
from ..state_database import TEMPORARY, open_database

_TABLES: Final = (
    "CREATE TABLE scope (id TEXT PRIMARY KEY, parent TEXT) WITHOUT ROWID",
    "CREATE TABLE step (name TEXT, start INTEGER, id TEXT, end INTEGER,"
    " PRIMARY KEY (name, start, id)) WITHOUT ROWID",
)
_STEP_NAMES: Final = ("step", "batch")
"""A rank without a `step` has a `batch` for each item of its loop."""
_MAX_DEPTH: Final = 100
_INT64: Final = range(-(2**63), 2**63)


class StepPlace(NamedTuple):
    """A step and its session."""

    id: str
    session: str
    end_ns: int


class JoinedSteps:
    """The steps of a rank, in a temporary file."""

    def __init__(self, reader: SpoolReader, rank: int, folder: Path) -> None:
        """Read the spool. A process without a rank is rank 0.

        Raises InputError if the rank has no step, and sqlite3.Error.
        """
        self._database = open_database(folder / "steps.sqlite", *TEMPORARY)
        for statement in _TABLES:
            self._database.execute(statement)
        self._database.execute("BEGIN")
        for file in reader:
            spans = exactjson.loads(file.data).get("spans") or ()
            rows = [(span["id"], span.get("parent_id")) for span in spans if _is_plain(span)]
            steps = [
                (span["name"], span["start_ns"], span["id"], span["end_ns"])
                for span in spans
                if _is_plain(span)
                and span.get("name") in _STEP_NAMES
                and (span.get("rank") or 0) == rank
            ]
            self._database.executemany("INSERT OR IGNORE INTO scope VALUES (?,?)", rows)
            self._database.executemany("INSERT OR IGNORE INTO step VALUES (?,?,?,?)", steps)
        query = "SELECT max(name) FROM step"  # `step` comes after `batch`
        self._step_name = self._database.execute(query).fetchone()[0]
        if self._step_name is None:
            self.close()
            raise InputError(
                f"{reader.paths.root} contains no step of rank {rank}: expected the spool of a run"
            )

    def close(self) -> None:
        """Close the temporary file, which the owner of its folder removes."""
        self._database.close()

    def __iter__(self) -> Iterator[StepPlace]:
        """Yield the steps in the order in which they began."""
        for some_id, end_ns in self._database.execute(
            "SELECT id, end FROM step ORDER BY start, id"
        ):
            yield StepPlace(some_id, self._session(some_id), end_ns)

    def _session(self, some_id: str) -> str:
        """Return the topmost recorded ancestor."""
        for _ in range(_MAX_DEPTH):
            query = "SELECT parent FROM scope WHERE id = ?"
            row = self._database.execute(query, (some_id,)).fetchone()
            if row is None or row[0] is None:
                break
            some_id = row[0]
        return some_id


def _is_plain(span: Any) -> bool:
    """Return whether a span has an id, a parent or none, and times that a database can store."""
    if not isinstance(span, dict) or not isinstance(span.get("id"), str):
        return False
    times = (span.get("start_ns"), span.get("end_ns"))
    return all(type(each) is int and each in _INT64 for each in times) and isinstance(
        span.get("parent_id"), str | None
    )
