"""The cursor of a delivery: which of an owner's batches a target has acknowledged.

It is the set of acknowledged names above a low-water mark, not just the last file name, because a
batch that was sealed earlier may be renamed into place later. Batches without an owner come in no
particular order; `delivered` stores their state. Only the holder of the lease of (target, owner)
may write the cursor. It is replaced atomically and not synced: after a power failure the last
acknowledgements may be lost, and their batches are sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from pathlib import Path
from typing import Literal

import msgspec

from ...errors import InputError
from ...ids import digest
from .owner import NONE
from .state import replace_file, set_aside

_KEPT = 2_000
"""The number of newest names that are stored individually: a process seals nearly in order."""


class _CursorContent(msgspec.Struct):
    version: Literal[1]
    target: str
    owner: str
    low_water_mark: str
    acknowledged: list[str]
    refused: dict[str, str]
    acknowledged_count: int
    refused_count: int


_decoder = msgspec.json.Decoder(_CursorContent)


class Cursor:
    """The batches of one owner that are done for one target; test with `name in cursor`.

    A batch is done if the target has acknowledged it, or refused it permanently.
    """

    def __init__(self, state: Path, target: str, owner: str) -> None:
        """Read the cursor for the key of a target and the prefix of an owner.

        A missing file is an empty cursor. Raises InputError if the file is damaged (see `reset`).
        The file for `owner.NONE` is from an earlier version of this package.
        """
        self.path = _cursor_file(state, target, owner)
        self.mark = ""
        """All batches whose names are not greater than this name are done."""
        self.refused: dict[str, str] = {}
        """The reasons of permanent refusals, by batch name; entries up to the mark are dropped."""
        self.acknowledged_count = 0
        """The total number of batches acknowledged."""
        self.refused_count = 0
        """The total number of batches refused."""
        self.waiting: set[str] = set()
        """Batches that must not be sent yet; like pending ones, they stay above the mark."""
        self._target, self._owner = target, owner
        self._done: set[str] = set()
        self._load()

    @classmethod
    def reset(cls, state: Path, target: str, owner: str) -> Cursor:
        """Rename a damaged cursor to `.bad` and start afresh: all existing batches are sent again.

        Raises TargetError if `state/` cannot be written.
        """
        set_aside(_cursor_file(state, target, owner))
        return cls(state, target, owner)

    def _load(self) -> None:
        try:
            data = self.path.read_bytes()
            if not data:  # a power failure can leave an unsynced file empty
                return
            content = _decoder.decode(data)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(
                f"cursor {self.path} cannot be read ({error}): remove it to send all batches again"
            ) from None
        if (content.target, content.owner) != (self._target, self._owner):
            raise InputError(
                f"cursor {self.path} belongs to {content.target} {content.owner}, expected"
                f" {self._target} {self._owner}: remove it to send all batches again"
            )
        self.mark, self.refused, self._done = (
            content.low_water_mark,
            content.refused,
            set(content.acknowledged),
        )
        self.acknowledged_count = content.acknowledged_count
        self.refused_count = content.refused_count

    def __contains__(self, name: str) -> bool:
        return name <= self.mark or name in self._done or name in self.refused

    def undone(self, names: Iterable[str]) -> list[str]:
        """Return the `names` that are not done, in their order."""
        return [name for name in names if name not in self]

    @property
    def acknowledged(self) -> Set[str]:
        """The names that are stored individually."""
        return self._done

    def acknowledge(self, name: str) -> None:
        """Record that the target has acknowledged a batch; `save` makes this persistent."""
        if name not in self._done:
            self._done.add(name)
            self.acknowledged_count += 1

    def refuse(self, name: str, reason: str) -> None:
        """Record that the target refused a batch permanently: it is reported, not sent again."""
        if name not in self.refused:
            self.refused[name] = reason
            self.refused_count += 1

    def forget(self, present: Set[str]) -> None:
        """Drop the names of batches that are no longer in the spool (evicted or pruned)."""
        self._done &= present
        self.refused = {name: why for name, why in self.refused.items() if name in present}

    def save(self, pending: Iterable[str] = ()) -> None:
        """Write the cursor. Raises TargetError if it cannot be written.

        `pending` are batches that were seen and are not done: the mark stays below them, and below
        the `waiting` batches.
        """
        self._raise_mark(pending)
        content = _CursorContent(
            1,
            self._target,
            self._owner,
            self.mark,
            sorted(self._done),
            self.refused,
            self.acknowledged_count,
            self.refused_count,
        )
        replace_file(self.path, msgspec.json.encode(content))

    def close(self) -> None:
        """Do nothing: the file is not kept open."""

    def _raise_mark(self, pending: Iterable[str]) -> None:
        if len(self._done) + len(self.refused) <= 2 * _KEPT:
            return
        names = sorted(self._done | self.refused.keys())
        left = (name for name in (*pending, *self.waiting) if name > self.mark)
        mark = min([names[-_KEPT - 1], *left])
        if mark not in self:  # `mark` is the oldest pending batch: the new mark must be below it
            below = [name for name in names if name < mark]
            if not below:
                return
            mark = below[-1]
        self.mark = max(self.mark, mark)
        self._done = {name for name in self._done if name > self.mark}
        self.refused = {name: why for name, why in self.refused.items() if name > self.mark}


def cursor_path(state: Path, target: str, owner: str) -> Path:
    """Return the path of a cursor, or of the `delivered` database for `owner.NONE`."""
    path = _cursor_file(state, target, owner)
    return path.with_suffix(".sqlite") if owner == NONE else path


def _cursor_file(state: Path, target: str, owner: str) -> Path:
    return state / f"cursor-{digest('cursor', target)[:8].hex()}-{owner}.json"
