"""From the intake journal to the spool: everything that was acknowledged becomes batches.

A group of frames at a time. Before a group is translated it is written down which frames it is
made of and which of them are duplicates, so that after a crash the same group is made again, with
the same names: a batch that was sealed before is found and not written twice. A group is done when
its batches are in the spool and its keys are known; then the next one may begin. So a frame whose
key is known is done even where it is not known any more how far all is.
"""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...core.spool.writer import SpoolWriter
from ...ids import digest
from .damaged_copies import remove_damaged
from .journal.files import GROUP_BYTES, Damage, Frame, Position, remove_before, segment_numbers
from .journal.position import ConsumerPosition, read_place, write_place
from .journal.reader import JournalReader
from .seen import Seen
from .storing import FrameStorage
from .tenancy import TenantStore, tenant_headers

logger = logging.getLogger(__name__)


class Done(NamedTuple):
    """What became of a group."""

    position: Position
    """All before it is in the spool."""
    names: list[str]
    """Of its batches."""
    size: int
    """Bytes of the bodies in it."""


class _Duplicate(NamedTuple):
    """A frame that brought what had come before."""

    start: Position
    """Where it begins: numbers would be shifted by a frame that cannot be read any more."""
    first: Position | None
    """Where the first of them begins, if it is in the same group."""


class _Intent(msgspec.Struct, forbid_unknown_fields=True):
    """What is to be done of the journal next."""

    until: Position
    skip: list[_Duplicate]


class Translation:
    """Translates what is in `directory` into the spool of `writer`; one to a journal."""

    def __init__(
        self,
        directory: Path,
        writer: SpoolWriter,
        seen: Seen,
        owners: TenantStore,
        most_damaged_bytes: int | None = None,
    ) -> None:
        """`owners` is told whose the batches are. Nothing is read yet.

        Copies of damaged files may take `most_damaged_bytes`, or any number if it is None. Raises
        InputError and TargetError.
        """
        self._directory, self._seen = directory, seen
        self._most_damaged_bytes = most_damaged_bytes
        self.counts: Counter[str] = Counter()
        self._storing = FrameStorage(directory, writer, owners, seen)
        self._damaged_segment: int | None = None
        self._is_broken_off = False
        """Whether frames were read and are not done."""
        self._place, self._intent = self._read_place()
        self._reader = self._read_from(self._place.position)
        self._remove_damaged()

    def recover(self) -> Done | None:
        """Finish the group that was broken off, by this process or an earlier one; None without.

        To be called before `work`, which does it, too.
        """
        if self._intent is None:
            return None
        self._begin()
        done = self._again(self._intent)
        self._is_broken_off = False
        return done

    def work(self, until: Position | None) -> Done | None:
        """Translate the next group of frames before `until`; None where there is none.

        Raises TargetError where the spool cannot be written: the group is to be tried again.
        """
        if self._intent is not None:
            return self.recover()
        self._begin()
        done = self._next(until)
        self._is_broken_off = False
        return done

    def _begin(self) -> None:
        """Stand where all is done up to; until it is said otherwise, what is read now is not."""
        if self._is_broken_off:
            self._reader.close()
            self._reader = self._read_from(self._place.position)
        self._is_broken_off = True

    def _again(self, intent: _Intent) -> Done:
        frames: list[Frame] = []
        while found := self._reader.poll(max_bytes=GROUP_BYTES, until=intent.until):
            frames += found
        return self._finish(frames, intent)

    def _next(self, until: Position | None) -> Done | None:
        frames = self._reader.poll(max_bytes=GROUP_BYTES, until=until)
        if not frames:
            return None
        intent = _Intent(frames[-1].end, self._duplicates(frames))
        self._move(ConsumerPosition(self._place.position, msgspec.to_builtins(intent)), intent)
        return self._finish(frames, intent)

    def take_counts(self) -> dict[str, int]:
        """What was counted since the last time."""
        taken = dict(self.counts)
        self.counts.clear()
        return taken

    def take_damaged(self) -> int | None:
        """The last segment in which damage was found since the last time; None without."""
        found, self._damaged_segment = self._damaged_segment, None
        return found

    def forget(self, before_ns: int) -> None:
        """Duplicates of what came before are not known any more, but for what still lies there."""
        numbers = segment_numbers(self._directory)
        self._seen.forget(before_ns, *numbers[:1])

    def close(self) -> None:
        """Close the files."""
        self._reader.close()
        self._seen.close()

    # --- a group --------------------------------------------------------------------------------

    def _finish(self, frames: list[Frame], intent: _Intent) -> Done:
        skip = _skipped(frames, intent)
        kept = [frame for frame in frames if frame.start not in skip]
        names = self._storing.store(kept)
        self._seen.add((_key(f), f.head.received_ns, f.start) for f in kept)
        self._move(ConsumerPosition(intent.until), None)
        if remove_before(self._directory, intent.until):
            self._remove_damaged()
        self.counts.update(self._storing.counts)
        self.counts.update({"requests": len(frames), "duplicates": len(frames) - len(kept)})
        return Done(intent.until, names, sum(len(frame.body) for frame in frames))

    def _duplicates(self, frames: list[Frame]) -> list[_Duplicate]:
        """The frames that came before, or earlier in the group."""
        found: list[_Duplicate] = []
        here: dict[bytes, Position] = {}
        for frame in frames:
            key = _key(frame)
            if key in here:
                found.append(_Duplicate(frame.start, here[key]))
            elif self._seen.is_known(key):
                found.append(_Duplicate(frame.start, None))
            else:
                here[key] = frame.start
        return found

    # --- the place ------------------------------------------------------------------------------

    def _read_place(self) -> tuple[ConsumerPosition, _Intent | None]:
        place = read_place(self._directory, self._report)
        if place.intent is None:
            return place, None
        try:
            return place, msgspec.convert(place.intent, _Intent)
        except msgspec.ValidationError as error:
            self._report(f"what was to be done in {self._directory} cannot be read ({error})")
            return ConsumerPosition(place.position), None

    def _move(self, place: ConsumerPosition, intent: _Intent | None) -> None:
        write_place(self._directory, place)
        self._place, self._intent = place, intent

    def _read_from(self, position: Position | None) -> JournalReader:
        return JournalReader(self._directory, position, self._damaged)

    def _damaged(self, damage: Damage) -> None:
        self._damaged_segment = damage.number
        self._report(_words(damage))

    def _remove_damaged(self) -> None:
        """Remove old copies of damaged files: a journal that is full refuses all requests."""
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

    def _report(self, told: str) -> None:
        self.counts["damaged"] += 1
        logger.warning("%s", told)


def _skipped(frames: list[Frame], intent: _Intent) -> set[Position]:
    """Where the frames begin that are not stored.

    In the place of a first one that cannot be read any more its duplicate is stored.
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
    kept = f"; kept as {damage.kept}" if damage.kept is not None else ""
    return f"{damage.path} is damaged at {damage.offset}: {damage.reason}{kept}"


def _key(frame: Frame) -> bytes:
    """What tells a request from others: whose it is, and its bytes.

    The id of a Cirron batch would not do: forked processes give theirs to different batches.
    """
    tenant = "".join(f"{name}={value}\n" for name, value in tenant_headers(frame.head.headers))
    return digest(frame.head.signal.value, tenant, frame.sha256)[:16]
