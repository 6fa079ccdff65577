"""The journal of an owner: its open scopes, so that they can be recovered if its process dies.

Protocol: the recording process writes the journal, and only then seals the batch that the journal
names as `next_batch`. So if the process is killed, the scopes in `open` are open, and those in
`closed` are in that batch if it was sealed; if it was not, recovery writes them with their ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ... import exactjson
from ...errors import InputError, TargetError
from ..records.conform import Id, Time
from .oom_kills import OomKillCounter
from .owner import Owner
from .paths import SpoolPaths, checked_name
from .state import replace_file, unwritable

VERSION = 1
_MAX_BYTES = 256 * 2**20
_PREFIX = r"\A[0-9a-f]{12}\Z"


class JournalSpan(Struct):
    """The fields of a span that recovery needs; all others go into the batch unchanged."""

    id: Id
    parent_id: Id | None
    start_ns: Time
    end_ns: Time
    """0 while the scope is open."""


class JournalState(Struct):
    """The checked contents of a journal: a JSON object; unknown keys are ignored."""

    version: Literal[1]
    owner: Annotated[str, Meta(pattern=_PREFIX)]
    session: Id
    pid: int
    rank: int | None
    written_ns: Time
    """The time of writing: the scopes that were open then ran at least until then."""
    sdk_version: str
    otel: dict[str, Any]
    """The `otel` object of the session's batches; a recovered batch contains it too."""
    next_batch: str | None
    """The file name of the batch that is about to be sealed, or None."""
    open: list[JournalSpan]
    """Scopes that have started: span records with `end_ns` 0 and no `mark_ids`."""
    closed: list[JournalSpan]
    """Complete spans: those that go into `next_batch` and were open in an earlier journal or are
    around an open scope, and those that have ended and wait (for a device, for example) to go into
    a later batch. They may be in a sealed batch already."""
    oom_kills: OomKillCounter | None = None
    """The OOM kills in the process's cgroup when the session began; None if unknown."""


class OwnerJournal:
    """Writes the journal of a live owner."""

    def __init__(self, paths: SpoolPaths, owner: Owner) -> None:
        """Prepare the journal without writing it."""
        self.path = journal_path(paths, owner.prefix)
        self._owner = owner

    def write(self, state: bytes) -> None:
        """Replace the journal with `state`, which `read_journal` must accept.

        The replacement is atomic and not synced: it guards against SIGKILL, not against a power
        failure. The owner's lock is ensured first, because a journal without a lock belongs to a
        dead process. Raises TargetError if the journal cannot be written.
        """
        self._owner.ensure()
        replace_file(self.path, state)

    def remove(self) -> None:
        """Remove the journal once no scope is open. Raises TargetError if that fails."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from None


def journal_path(paths: SpoolPaths, prefix: str) -> Path:
    """Return the path of an owner's journal."""
    return paths.state / f"journal-{prefix}.json"


class ReadJournal(Struct):
    """The contents of a journal, checked and verbatim."""

    state: JournalState
    exact: dict[str, Any]
    """The values that `exactjson` reads; recovery copies them into a batch unchanged."""


def open_scopes(paths: SpoolPaths, prefix: str) -> list[dict[str, Any]]:
    """Return the records of an owner's open scopes; none without a readable journal."""
    try:
        journal = read_journal(paths, prefix)
    except InputError:
        return []
    scopes = journal.exact.get("open") if journal is not None else None
    return [each for each in scopes or [] if isinstance(each, dict)]


def read_journal(paths: SpoolPaths, prefix: str) -> ReadJournal | None:
    """Return the journal of an owner, or None if there is none.

    Raises InputError if it is damaged: not a valid JSON object, or the journal of another owner.
    """
    path = journal_path(paths, prefix)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise InputError(f"larger than {_MAX_BYTES} bytes")
        exact = exactjson.loads(data)
        state = msgspec.convert(exact, JournalState, strict=True)
        if state.next_batch is not None:
            checked_name(state.next_batch)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, InputError, TargetError) as error:
        raise InputError(f"journal {path} cannot be read: {error}") from None
    if state.owner != prefix:
        raise InputError(f"journal {path} belongs to owner {state.owner}, expected {prefix}")
    return ReadJournal(state, exact)
