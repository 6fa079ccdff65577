"""Translate the intake journal into the spool: every acknowledged request becomes part of a batch.

Frames are translated in groups. First the extent of a group and its duplicates are written to disk
as an intent. So after a crash the same group is formed again, with the same batch names, and a
batch that was already written is found instead of being written again. A group is done when its
batches are in the spool and its keys are in `Seen`; then the next group may begin. So a frame with
a known key is done, even if the position has been lost.

Each crash may leave a damaged segment, of which a copy is kept for later examination. The total
size of these copies is limited.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...core.spool.writer import SpoolWriter
from ...ids import digest
from .journal.files import (
    DAMAGED_SUFFIX,
    GROUP_BYTES,
    Damage,
    Frame,
    Position,
    remove_before,
    segment_numbers,
)
from .journal.position import ConsumerPosition, read_position, write_position
from .journal.reader import JournalReader
from .seen import Seen
from .storing import FrameStorage
from .tenancy import TenantStore, tenant_headers

_SEGMENT = re.compile(r"intake-([0-9a-f]{16})\.log" + re.escape(DAMAGED_SUFFIX), re.ASCII)


class Removed(NamedTuple):
    """A copy of a damaged file that was removed."""

    path: Path
    size: int
    """The size of the file, bytes."""


def remove_damaged(directory: Path, most_bytes: int) -> list[Removed]:
    """Remove copies of damaged files, oldest first, until their total size is at most `most_bytes`.

    All readable data of a damaged segment is in the spool before the segment is removed, so a copy
    is needed only for later examination. A copy is retained if it is a hard link to a segment of
    the journal, since it takes no additional space. Copies of other files, such as `seen.sqlite`,
    are removed first. The age of copies is compared by segment number rather than by time, because
    the clock may be wrong.
    """
    copies = []
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if DAMAGED_SUFFIX in entry.name:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                        match = _SEGMENT.fullmatch(entry.name)
                        number = int(match[1], 16) if match else -1
                        copies.append((number, entry.name, status.st_size))
    total = sum(size for *_, size in copies)
    removed = []
    for _, name, size in sorted(copies):
        if total <= most_bytes:
            break
        with contextlib.suppress(OSError):
            (directory / name).unlink()
            total -= size
            removed.append(Removed(directory / name, size))
    return removed


logger = logging.getLogger(__name__)


class Done(NamedTuple):
    """The result of a group."""

    position: Position
    """All frames before it are in the spool."""
    names: list[str]
    """The names of the group's batches."""
    size: int
    """The total size of the group's request bodies, bytes."""


class _Duplicate(NamedTuple):
    """A frame with the same request as an earlier one."""

    start: Position
    """The start of the frame. An index would be wrong if an earlier frame became unreadable."""
    first: Position | None
    """The start of the first frame with this request, if it is in the same group."""


class _Intent(msgspec.Struct, forbid_unknown_fields=True):
    """The next group to translate."""

    until: Position
    skip: list[_Duplicate]


class Translation:
    """Translates the journal in `directory` into the spool of `writer`; one per journal."""

    def __init__(
        self,
        directory: Path,
        writer: SpoolWriter,
        seen: Seen,
        owners: TenantStore,
        most_damaged_bytes: int | None = None,
    ) -> None:
        """Read the stored position; `owners` records the tenants of batches.

        Copies of damaged files may take `most_damaged_bytes` bytes; None means no limit. Raises
        InputError and TargetError.
        """
        self._directory, self._seen = directory, seen
        self._most_damaged_bytes = most_damaged_bytes
        self.counts: Counter[str] = Counter()
        self._storing = FrameStorage(directory, writer, owners, seen)
        self._damaged_segment: int | None = None
        self._is_broken_off = False
        """Whether the reader has read frames of a group that is not done."""
        self._place, self._intent = self._read_place()
        self._reader = self._read_from(self._place.position)
        self._remove_damaged()

    def recover(self) -> Done | None:
        """Finish the group that this or an earlier process left unfinished, and return its result;
        None if there is none.

        `work` does this too; call `recover` first to do it without waiting for new frames.
        """
        if self._intent is None:
            return None
        self._begin()
        done = self._again(self._intent)
        self._is_broken_off = False
        return done

    def work(self, until: Position | None) -> Done | None:
        """Translate the next group of frames before `until`, and return its result; None if there
        is none.

        Raises TargetError if the spool cannot be written; the next call retries the group.
        """
        if self._intent is not None:
            return self.recover()
        self._begin()
        done = self._next(until)
        self._is_broken_off = False
        return done

    def _begin(self) -> None:
        """Move the reader back to the stored position if the last group was interrupted."""
        if self._is_broken_off:
            self._reader.close()
            self._reader = self._read_from(self._place.position)
        self._is_broken_off = True

    def _again(self, intent: _Intent) -> Done:
        frames: list[Frame] = []
        while batch := self._reader.poll(max_bytes=GROUP_BYTES, until=intent.until):
            frames += batch
        return self._finish(frames, intent)

    def _next(self, until: Position | None) -> Done | None:
        frames = self._reader.poll(max_bytes=GROUP_BYTES, until=until)
        if not frames:
            return None
        intent = _Intent(frames[-1].end, self._duplicates(frames))
        self._move(ConsumerPosition(self._place.position, msgspec.to_builtins(intent)), intent)
        return self._finish(frames, intent)

    def take_counts(self) -> dict[str, int]:
        """Return and reset the counts."""
        counts = dict(self.counts)
        self.counts.clear()
        return counts

    def take_damaged(self) -> int | None:
        """Return the last segment in which damage was found since the last call, or None."""
        number, self._damaged_segment = self._damaged_segment, None
        return number

    def forget(self, before_ns: int) -> None:
        """Forget the keys of requests from before `before_ns` (Unix ns), except those whose frames
        are still in the journal.
        """
        numbers = segment_numbers(self._directory)
        self._seen.forget(before_ns, *numbers[:1])

    def close(self) -> None:
        """Close the files."""
        self._reader.close()
        self._storing.close()
        self._seen.close()

    # --- a group --------------------------------------------------------------------------------

    def _finish(self, frames: list[Frame], intent: _Intent) -> Done:
        skip = _skipped(frames, intent)
        retained = [frame for frame in frames if frame.start not in skip]
        names = self._storing.store(retained)
        self._seen.add((_key(f), f.head.received_ns, f.start) for f in retained)
        self._move(ConsumerPosition(intent.until), None)
        if remove_before(self._directory, intent.until):
            self._remove_damaged()
        self.counts.update(self._storing.counts)
        self.counts.update({"requests": len(frames), "duplicates": len(frames) - len(retained)})
        return Done(intent.until, names, sum(len(frame.body) for frame in frames))

    def _duplicates(self, frames: list[Frame]) -> list[_Duplicate]:
        """Return the frames whose request was stored before, or is earlier in the group."""
        duplicates: list[_Duplicate] = []
        here: dict[bytes, Position] = {}
        for frame in frames:
            key = _key(frame)
            if key in here:
                duplicates.append(_Duplicate(frame.start, here[key]))
            elif self._seen.is_known(key):
                duplicates.append(_Duplicate(frame.start, None))
            else:
                here[key] = frame.start
        return duplicates

    # --- the position ---------------------------------------------------------------------------

    def _read_place(self) -> tuple[ConsumerPosition, _Intent | None]:
        place = read_position(self._directory, self._report)
        if place.intent is None:
            return place, None
        try:
            return place, msgspec.convert(place.intent, _Intent)
        except msgspec.ValidationError as error:
            self._report(f"the intent in {self._directory} cannot be read ({error})")
            return ConsumerPosition(place.position), None

    def _move(self, place: ConsumerPosition, intent: _Intent | None) -> None:
        write_position(self._directory, place)
        self._place, self._intent = place, intent

    def _read_from(self, position: Position | None) -> JournalReader:
        return JournalReader(self._directory, position, self._damaged)

    def _damaged(self, damage: Damage) -> None:
        self._damaged_segment = damage.number
        self._report(_words(damage))

    def _remove_damaged(self) -> None:
        """Remove old copies of damaged files, since a full journal refuses all requests."""
        if self._most_damaged_bytes is None:
            return
        for path, size in remove_damaged(self._directory, self._most_damaged_bytes):
            logger.warning(
                "removed %s (%d bytes): copies of damaged files may have %d bytes in total",
                path,
                size,
                self._most_damaged_bytes,
                extra={"cause": f"removed {path.name}"},
            )

    def _report(self, message: str) -> None:
        self.counts["damaged"] += 1
        logger.warning("%s", message)


def _skipped(frames: list[Frame], intent: _Intent) -> set[Position]:
    """Return the starts of the frames that are not stored.

    If the first frame of a request has become unreadable, its duplicate is stored instead.
    """
    present = {frame.start for frame in frames}
    skip = set()
    for start, first in intent.skip:
        if first is not None and first not in present and start in present:
            present.add(first)
        else:
            skip.add(start)
    return skip


def _words(damage: Damage) -> str:
    copy_note = f"; kept as {damage.backup}" if damage.backup is not None else ""
    return f"{damage.path} is damaged at {damage.offset}: {damage.reason}{copy_note}"


def _key(frame: Frame) -> bytes:
    """Return the key of a request, derived from its signal, its tenant and its bytes.

    The id of a Cirron batch cannot serve as its key, because forked processes use the same id for
    several batches.
    """
    tenant = "".join(f"{name}={value}\n" for name, value in tenant_headers(frame.head.headers))
    return digest(frame.head.signal.value, tenant, frame.sha256)[:16]
