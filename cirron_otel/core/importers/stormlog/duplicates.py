"""Events that several recordings contain, such as a sink and the bundle of an OOM, count once."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from ....ids import digest
from ...state_database import open_database
from ...temporary import writing_temporary_files

_SCHEMA = """
CREATE TABLE seen (
    event BLOB PRIMARY KEY, often INTEGER, recording INTEGER, here INTEGER
) WITHOUT ROWID
"""
_ADD = "INSERT INTO seen VALUES (?, 1, ?, 1) ON CONFLICT DO NOTHING"
_GET = "SELECT often, recording, here FROM seen WHERE event = ?"
_SET = "UPDATE seen SET often = ?, recording = ?, here = ? WHERE event = ?"
_CACHE_KIB = 16 * 1024


def event_key(event: Mapping[str, Any]) -> bytes:
    """Return what an event in its canonical form has in common with copies in other recordings.

    The bundle of an OOM has its events in another form: without process, host and capabilities, and
    with other values: the allocated bytes of the CPU tracker are its peak there.
    """
    scope = event["metadata"].get("phase_scope")
    boundary = (scope.get("scope_id"), scope.get("thread_id")) if isinstance(scope, dict) else ()
    values = (
        event["session_id"], event["rank"], event["timestamp_ns"], event["event_type"],
        event["device_id"], event["context"], boundary,
    )  # fmt: skip
    return digest(repr(values))[:16]


class SeenEvents:
    """The events of all recordings so far, in a temporary file; a context manager.

    An event that one recording contains n times, and another one m times, counts max(n, m) times.
    """

    def __init__(self) -> None:
        """Create an empty set."""
        with writing_temporary_files():
            self._database: sqlite3.Connection = open_database(
                "", "journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE_KIB}"
            )
        self._database.execute(_SCHEMA)
        self._database.execute("BEGIN")

    def __enter__(self) -> SeenEvents:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary file."""
        self._database.close()

    def is_duplicate(self, event: Mapping[str, Any], recording: int) -> bool:
        """Add an event of the recording with this number, and return whether it was known."""
        key = event_key(event)
        run = self._database.execute
        if run(_ADD, (key, recording)).rowcount:
            return False
        often, last, here = run(_GET, (key,)).fetchone()
        here = here + 1 if last == recording else 1
        run(_SET, (max(often, here), recording, here, key))
        return bool(here <= often)
