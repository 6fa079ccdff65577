"""From the intake journal to the spool: everything that was acknowledged becomes batches.

A group of frames at a time. Before a group is translated it is written down which frames it is
made of and which of them are duplicates, so that after a crash the same group is made again, with
the same names: a batch that was sealed before is found and not written twice. A group is done when
its batches are in the spool and its keys are known; then the next one may begin.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError, RefusedNameError, TargetError
from ..ids import digest, uuid4_shaped
from ..spool.canonical import batch_bytes
from ..spool.paths import file_name
from ..spool.writer import SpoolWriter, name_of
from ..translator.decode import Decoded
from ..translator.fast_foreign import ForeignText
from ..translator.translate import FromOtlp
from .export import Signal
from .journal_files import Damage, Frame, Position, remove_before, sync_directory
from .journal_place import Place, read_place, write_place
from .journal_reader import Reader
from .seen import Seen

logger = logging.getLogger(__name__)

GROUP_BYTES = 2 * 1024 * 1024
"""Bodies that become batches together."""
_BORN_IN_CIRRON = b"cirron.batch.id"
_TENANT = "x-scope-orgid"


class Done(NamedTuple):
    """What became of a group."""

    position: Position
    """All before it is in the spool."""
    names: list[str]
    """Of its batches."""
    size: int
    """Bytes of the bodies in it."""


class Translation:
    """Translates what is in `directory` into the spool of `writer`; one to a journal."""

    def __init__(self, directory: Path, writer: SpoolWriter, seen: Seen) -> None:
        """Nothing is read yet. Raises InputError, TargetError."""
        self._directory, self._writer, self._seen = directory, writer, seen
        self.counts: Counter[str] = Counter()
        self._is_broken_off = False
        """Whether frames were read and are not done."""
        self._place = read_place(directory, self._damaged)
        self._reader = self._read_from(self._place.position)

    def recover(self) -> Done | None:
        """Finish the group that was broken off, by this process or an earlier one; None without.

        To be called before `work`, which does it, too.
        """
        if not self._place.intent:
            return None
        self._begin()
        done = self._again(self._place.intent)
        self._is_broken_off = False
        return done

    def work(self, until: Position | None) -> Done | None:
        """Translate the next group of frames before `until`; None where there is none.

        Raises TargetError where the spool cannot be written: the group is to be tried again.
        """
        if self._place.intent:
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

    def _again(self, intent: dict[str, Any]) -> Done:
        until = Position(*intent["until"])
        frames: list[Frame] = []
        while found := self._reader.poll(max_bytes=GROUP_BYTES, until=until):
            frames += found
        return self._finish(frames, until, set(intent["skip"]))

    def _next(self, until: Position | None) -> Done | None:
        frames = self._reader.poll(max_bytes=GROUP_BYTES, until=until)
        if not frames:
            return None
        end = frames[-1].end
        skip = self._duplicates(frames)
        self._move(Place(self._place.position, {"until": list(end), "skip": sorted(skip)}))
        return self._finish(frames, end, skip)

    def forget(self, before_ns: int) -> None:
        """Duplicates of what came before are not known any more."""
        self._seen.forget(before_ns)

    def close(self) -> None:
        """Close the files."""
        self._reader.close()
        self._seen.close()

    # --- a group --------------------------------------------------------------------------------

    def _finish(self, frames: list[Frame], end: Position, skip: set[int]) -> Done:
        kept = [frame for number, frame in enumerate(frames) if number not in skip]
        self.counts["duplicates"] += len(skip)
        done = Done(end, [], sum(len(frame.body) for frame in frames))
        foreign: list[Frame] = []
        for frame in kept:
            if frame.head.signal is Signal.CIRRON:
                self._attempt(frame, lambda frame=frame: self._store_batch(frame, done))  # type: ignore[misc]
            elif _BORN_IN_CIRRON in frame.body:
                self._attempt(frame, lambda frame=frame: self._store_own(frame, done))  # type: ignore[misc]
            else:
                foreign.append(frame)
        if foreign:
            self._store_foreign(foreign, done)
        self._seen.add((_key(f), f.head.received_ns, f.start) for f in kept)
        self._move(Place(end, None))
        remove_before(self._directory, end)
        self.counts["requests"] += len(frames)
        return done

    def _duplicates(self, frames: list[Frame]) -> set[int]:
        """Numbers of frames that came before, or earlier in the group."""
        found: set[int] = set()
        here: set[bytes] = set()
        for number, frame in enumerate(frames):
            key = _key(frame)
            if key in here or self._seen.is_known(key, frame.start):
                found.add(number)
            here.add(key)
        return found

    def _store_batch(self, frame: Frame, done: Done) -> None:
        """A Cirron batch stays what it is, byte for byte."""
        try:
            name = name_of(frame.body)
        except TargetError:
            name = _name_by_content(frame)
        try:
            written = self._writer.write(frame.body, name)
        except RefusedNameError:
            written = self._writer.write(frame.body, _name_by_content(frame))
        done.names.append(written.name)
        self.counts["batches"] += 1

    def _store_own(self, frame: Frame, done: Done) -> None:
        """OTLP that was born in Cirron becomes the batches that it was."""
        reader = FromOtlp()
        whole = reader.feed_whole(frame.body)
        if whole is not None:
            self._write(whole.data, whole.name, done)
            self.counts["spans"] += whole.spans
            return
        from opentelemetry.proto.trace.v1.trace_pb2 import TracesData  # noqa: PLC0415

        message = TracesData.FromString(frame.body)
        for decoded in [*reader.feed(message.resource_spans), *reader.finish()]:
            self._store_decoded(decoded, done)

    def _store_decoded(self, decoded: Decoded, done: Done) -> None:
        self._write(batch_bytes(decoded.batch), decoded.name, done)
        self.counts["spans"] += len(decoded.batch.get("spans") or ())

    def _write(self, data: bytes, name: str, done: Done) -> None:
        try:
            written = self._writer.write(data, name)
        except RefusedNameError:
            at_ns = int(name.partition("-")[0]) if name[:20].isdigit() else 0
            other = file_name(at_ns, uuid4_shaped(digest("part", hashlib.sha256(data).digest())))
            written = self._writer.write(data, other)
        done.names.append(written.name)
        self.counts["batches"] += 1

    def _store_foreign(self, frames: list[Frame], done: Done) -> None:
        text = ForeignText()
        added: list[Frame] = []
        for frame in frames:
            if self._attempt(frame, lambda frame=frame: text.add(frame.body)):  # type: ignore[misc]
                added.append(frame)
        if not added:
            return
        created_ns = added[0].head.received_ns
        told = digest("intake", *added[0].start, *(frame.head.sha256 for frame in added))
        batch_id = uuid4_shaped(told)
        written = self._writer.write(
            text.text(batch_id, created_ns), file_name(created_ns, batch_id)
        )
        done.names.append(written.name)
        self.counts["batches"] += 1
        self.counts["spans"] += text.spans

    def _attempt(self, frame: Frame, what: Callable[[], Any]) -> bool:
        """Do it, and keep the frame beside the journal where it cannot be done; whether it was."""
        try:
            what()
        except TargetError:
            raise
        except Exception as error:
            self._set_aside(frame, error)
            return False
        return True

    def _set_aside(self, frame: Frame, error: Exception) -> None:
        path = self._directory / f"refused-{frame.head.sha256[:32]}.bin"
        try:
            path.touch(mode=0o600)
            path.write_bytes(frame.body)
            sync_directory(self._directory)
        except OSError as problem:
            raise TargetError(f"{path} cannot be written: {problem.strerror}") from None
        self.counts["set_aside"] += 1
        known = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        logger.warning("a request cannot be translated (%s): kept as %s", known, path)

    # --- the place ------------------------------------------------------------------------------

    def _move(self, place: Place) -> None:
        write_place(self._directory, place)
        self._place = place

    def _read_from(self, position: Position | None) -> Reader:
        return Reader(self._directory, position, lambda damage: self._damaged(_words(damage)))

    def _damaged(self, told: str) -> None:
        self.counts["damaged"] += 1
        logger.warning("%s", told)


def _words(damage: Damage) -> str:
    kept = f"; kept as {damage.kept}" if damage.kept is not None else ""
    return f"{damage.path} is damaged at {damage.offset}: {damage.reason}{kept}"


def _key(frame: Frame) -> bytes:
    """What tells a request from others: a Cirron batch by its id, all else by its bytes."""
    tenant = frame.head.headers.get(_TENANT, "")
    if frame.head.signal is Signal.CIRRON:
        try:
            return digest("batch", tenant, name_of(frame.body).partition("-")[2])[:16]
        except TargetError:
            pass
    return digest(frame.head.signal.value, tenant, frame.head.sha256)[:16]


def _name_by_content(frame: Frame) -> str:
    return file_name(frame.head.received_ns, uuid4_shaped(digest("batch", frame.head.sha256)))
