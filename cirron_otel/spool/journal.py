"""The journal of an owner: what is open now, so that the death of its process can be told later.

Protocol: the recording process writes the journal, and only then seals the batch that the journal
calls `next_batch`. So when it is killed, the scopes in `open` are open, and those in `closed` are
in that batch if it was sealed; if it was not, recovery writes them, with the ends that they have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from .. import exactjson
from ..errors import InputError, TargetError
from .conform import Id, Time
from .owner import Owner
from .paths import SpoolPaths, checked_name
from .state import replace_file, unwritable

VERSION = 1
_MAX_BYTES = 256 * 2**20
_PREFIX = r"\A[0-9a-f]{12}\Z"


class JournalSpan(Struct):
    """What recovery asks of a span record; all else in it goes into the batch as it is."""

    id: Id
    parent_id: Id | None
    start_ns: Time
    end_ns: Time
    """0 where it is open."""


class JournalState(Struct):
    """What a journal says, checked: a JSON object with these keys; unknown ones are tolerated."""

    version: Literal[1]
    owner: Annotated[str, Meta(pattern=_PREFIX)]
    session: Id
    pid: int
    rank: int | None
    written_ns: Time
    """When it was written: what was open then is known to have run until then."""
    sdk_version: str
    otel: dict[str, Any]
    """The `otel` object of a batch of that session: what a recovered batch gets."""
    next_batch: str | None
    """The file name of the batch about to be sealed; None where nothing is to be sealed."""
    open: list[JournalSpan]
    """Scopes that have begun: span records of model.Span with `end_ns` 0 and no `mark_ids`."""
    closed: list[JournalSpan]
    """Whole spans: those that go into `next_batch` and stood in the journal as open before, and
    those that have ended and wait (for a device, say) to go into a later one."""


class Journal:
    """Writes the journal of an owner that is alive."""

    def __init__(self, paths: SpoolPaths, owner: Owner) -> None:
        """Nothing is written yet."""
        self.path = journal_path(paths, owner.prefix)
        self._owner = owner

    def write(self, state: bytes) -> None:
        """Replace the journal by `state`, which must be what `read_journal` takes.

        It is whole or the one before, and not synced: it guards against SIGKILL, not against a
        power cut. The owner's lock is made sure of first, for a journal without one belongs to
        the dead. Raises TargetError where it cannot be written.
        """
        self._owner.ensure()
        replace_file(self.path, state)

    def remove(self) -> None:
        """Nothing is open any more. Raises TargetError where it cannot be removed."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from None


def journal_path(paths: SpoolPaths, prefix: str) -> Path:
    """The file of an owner's journal."""
    return paths.state / f"journal-{prefix}.json"


class ReadJournal(Struct):
    """A journal that was read."""

    state: JournalState
    exact: dict[str, Any]
    """The same as exactjson reads it: what goes into a batch is taken from here, unchanged."""


def read_journal(paths: SpoolPaths, prefix: str) -> ReadJournal | None:
    """The journal of an owner; None where there is none.

    Raises InputError where it is damaged: no such JSON object, or another owner's.
    """
    path = journal_path(paths, prefix)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise InputError(f"over {_MAX_BYTES} bytes")
        exact = exactjson.loads(data)
        state = msgspec.convert(exact, JournalState, strict=True)
        if state.next_batch is not None:
            checked_name(state.next_batch)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, InputError, TargetError) as error:
        raise InputError(f"journal {path} cannot be read: {error}") from None
    if state.owner != prefix:
        raise InputError(f"journal {path} is of owner {state.owner}, expected {prefix}")
    return ReadJournal(state, exact)
