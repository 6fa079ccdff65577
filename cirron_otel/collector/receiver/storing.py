"""Translate journalled requests into batches and write them into the spool.

Requests of different tenants (`tenant_headers`) never share a batch. OTLP that Cirron produced is
converted back. Each of its records is stored once, even if an intermediate collector received
requests twice and then split and merged them: records of a partial batch that were stored earlier
are omitted.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from ... import exactjson
from ...core.atomic_files import sync_directory
from ...core.importers.sealing import ImportedBatch
from ...core.records.canonical import batch_bytes
from ...core.records.check import records_of
from ...core.spool.paths import checked_name, file_name
from ...core.spool.reader import stored_batch
from ...core.spool.writer import SpoolWriter, name_of
from ...core.translator.foreign.fast import ForeignText, Known
from ...core.translator.header import LISTS
from ...core.translator.logs.log_marks import LogMarks
from ...core.translator.own.decode import Decoded
from ...core.translator.translate import FromOtlp
from ...core.translator.values import encodable
from ...errors import InputError, OverCapError, RefusedNameError, TargetError
from ...ids import digest, uuid4_shaped
from .consumer import ReceivedSignal
from .journal.files import REFUSED_PREFIX, Frame, write_synced
from .seen import Seen, SeenPart
from .tenancy import TenantHeaders, TenantStore, tenant_headers
from .traceml_storing import TracemlStorage

logger = logging.getLogger(__name__)

_BORN_IN_CIRRON = b"cirron.batch.id"
_WHOLE = b"*"
"""A key that denotes all records of a batch."""
_KEY_BYTES = 8
_NAMES = 100
"""Number of names to try for a batch whose own name is taken."""


class FrameStorage:
    """Translates journal frames into batches, and writes them."""

    def __init__(
        self, directory: Path, writer: SpoolWriter, owners: TenantStore, seen: Seen
    ) -> None:
        """`directory` receives the requests that cannot be translated."""
        self._directory, self._writer, self._owners = directory, writer, owners
        self._seen = seen
        self.counts: Counter[str] = Counter()
        """The counts of the last call of `store`."""
        self._known_texts = Known()
        self._names: list[str] = []
        self._is_found = False
        """Whether a batch already existed in the spool. Its name may then not be on disk yet."""
        self._traceml: TracemlStorage | None = None
        self._parts: dict[bytes, list[SeenPart]] = {}
        """The parts of each batch that this group of frames contains."""

    def store(self, frames: Sequence[Frame]) -> list[str]:
        """Write the batches made from these frames, and return the names of the batches.

        The same frames always yield the same batches. Raises TargetError if they cannot be written.
        """
        self._names, self._parts, self._is_found = [], {}, False
        self.counts.clear()
        foreign: dict[TenantHeaders, list[Frame]] = {}
        logs: dict[TenantHeaders, list[Frame]] = {}
        traceml: list[Frame] = []
        for frame in frames:
            if frame.head.signal is ReceivedSignal.CIRRON:
                self._attempt(frame, self._store_batch)
            elif frame.head.signal is ReceivedSignal.TRACEML:
                traceml.append(frame)
            elif frame.head.signal is ReceivedSignal.LOGS:
                logs.setdefault(tenant_headers(frame.head.headers), []).append(frame)
            elif _BORN_IN_CIRRON in frame.body:
                self._attempt(frame, self._store_own)
            else:
                foreign.setdefault(tenant_headers(frame.head.headers), []).append(frame)
        for headers, of_one in foreign.items():
            self._store_together(of_one, headers, self._store_foreign)
        for headers, of_one in logs.items():
            self._store_together(of_one, headers, self._store_logs)
        if traceml:
            self._store_traceml(traceml)
        if self._is_found:
            self._sync()
        self._seen.add_parts(part for parts in self._parts.values() for part in parts)
        return self._names

    # --- kinds of requests ----------------------------------------------------------------------

    def _store_together(
        self,
        frames: list[Frame],
        headers: TenantHeaders,
        what: Callable[[list[Frame], TenantHeaders], None],
    ) -> None:
        """Make one batch from several frames, or several batches if one would exceed the spool's
        cap.
        """
        try:
            what(frames, headers)
        except OverCapError as error:
            if len(frames) == 1:
                self._set_aside(frames[0], error)
                return
            half = len(frames) // 2
            self._store_together(frames[:half], headers, what)
            self._store_together(frames[half:], headers, what)

    def _store_batch(self, frame: Frame) -> None:
        """Store a Cirron batch unchanged, byte for byte."""
        headers = tenant_headers(frame.head.headers)
        id_digest = digest("batch", frame.sha256, *_words(headers))
        other = file_name(frame.head.received_ns, uuid4_shaped(id_digest))
        try:
            name = name_of(frame.body)
        except TargetError:
            name = other
        self._write(frame.body, name, headers, other)
        self._count(*records_of(frame.body))

    def _store_own(self, frame: Frame) -> None:
        """Convert OTLP that Cirron produced back into the original batches."""
        headers = tenant_headers(frame.head.headers)
        whole = FromOtlp().feed_whole(frame.body)
        if whole is not None and not self._known(self._batch(headers, whole.key), frame):
            self._write(whole.data, whole.name, headers)
            self._count(whole.spans, whole.marks, whole.snapshots)
            self._note(self._batch(headers, whole.key), frame, _WHOLE)
            return
        reader = FromOtlp(lambda key: self._records(self._batch(headers, key), frame))
        message = TracesData.FromString(frame.body)
        for decoded in [*reader.feed(message.resource_spans), *reader.finish()]:
            self._store_decoded(decoded, headers, frame)

    def _store_decoded(self, decoded: Decoded, headers: TenantHeaders, frame: Frame) -> None:
        """Store a decoded batch of Cirron, or a part of one, or foreign spans of the request."""
        batch = self._batch(headers, decoded.key) if decoded.key else b""
        is_new = decoded.complete or bool(decoded.records)
        is_known = bool(batch) and _WHOLE in self._known(batch, frame)
        if batch and (not is_new or (is_known and not self._differs(decoded))):
            self.counts["duplicates"] += 1
            return
        self._write(batch_bytes(decoded.batch), decoded.namesake or decoded.name, headers)
        self._count(*(len(decoded.batch.get(key) or ()) for key in LISTS))
        if batch:
            records = _WHOLE if decoded.complete else b"".join(sorted(decoded.records))
            self._note(batch, frame, records)

    def _differs(self, decoded: Decoded) -> bool:
        """Return whether the spool has a batch with this name and different content.

        A batch that has left the spool is not compared. A batch with a name that cannot be a file
        name is stored under a name derived from its content, so storing it again changes nothing.
        """
        try:
            name = _checked(decoded.namesake or decoded.name)
        except RefusedNameError:
            return decoded.complete
        data = stored_batch(self._writer.paths.spool, name)
        if data is None:
            return False
        try:
            stored = exactjson.loads(data)
        except InputError:
            return False
        return decoded.complete and not exactjson.equal(stored, decoded.batch)

    def _store_foreign(self, frames: list[Frame], headers: TenantHeaders) -> None:
        text = ForeignText(self._known_texts)
        added = [f for f in frames if self._attempt(f, lambda f: text.add(f.body))]
        if not added:
            return
        created_ns = added[0].head.received_ns
        batch_id = _id_of("intake", added)
        self._write(text.text(batch_id, created_ns), file_name(created_ns, batch_id), headers)
        self._count(text.spans)

    def _store_logs(self, frames: list[Frame], headers: TenantHeaders) -> None:
        marks = LogMarks()
        added = [f for f in frames if self._attempt(f, lambda f: marks.add(f.body))]
        if not added:
            return
        created_ns = added[0].head.received_ns
        for batch in marks.batches(_id_of("intake logs", added), created_ns):
            name = file_name(created_ns, batch["batch_id"])
            self._write(batch_bytes(batch), name, headers)
            self._count(0, len(batch["marks"]))

    def _store_traceml(self, frames: list[Frame]) -> None:
        """Store the batches that groups of TraceML's frames complete."""
        if self._traceml is None:
            self._traceml = TracemlStorage(self._directory)

        def write(batch: ImportedBatch) -> None:
            self._write(batch.data, batch.name, ())
            self._count(batch.spans, batch.marks)

        self._traceml.apply(frames, write)
        self.counts.update(self._traceml.counts)
        self._traceml.counts.clear()

    def close(self) -> None:
        """Close the files."""
        if self._traceml is not None:
            self._traceml.close()

    # --- parts of a batch that were stored before -----------------------------------------------

    @staticmethod
    def _batch(headers: TenantHeaders, key: bytes) -> bytes:
        return digest(key, *_words(headers))[:16]

    def _known(self, batch: bytes, frame: Frame) -> list[bytes]:
        """Return the parts of a batch that were in other frames: the keys of the records, or
        _WHOLE.
        """
        here = [part.records for part in self._parts.get(batch, ())]
        return here + self._seen.parts(batch, frame.start)

    def _records(self, batch: bytes, frame: Frame) -> frozenset[bytes]:
        return frozenset(
            records[at : at + _KEY_BYTES]
            for records in self._known(batch, frame)
            for at in range(0, len(records), _KEY_BYTES)
        )

    def _note(self, batch: bytes, frame: Frame, records: bytes) -> None:
        part = SeenPart(batch, frame.head.received_ns, frame.start, records)
        self._parts.setdefault(batch, []).append(part)

    # --- the spool ------------------------------------------------------------------------------

    def _write(
        self, data: bytes, name: str, headers: TenantHeaders, other: str | None = None
    ) -> None:
        """Write a batch under its name or, if that name is taken, under a name derived from its
        content.

        `other` is the first alternative name. The existing file is never touched: it may be another
        batch with the same id, or a copy of this batch that a bad disk has damaged.
        """
        try:
            written = self._claimed(data, name, headers)
        except RefusedNameError as error:
            written = self._beside(data, name, headers, other)
            self.counts["conflicts"] += 1
            logger.warning(
                "%s; the received batch is stored as %s", error, written, extra={"cause": "name"}
            )
        self._names.append(written)
        self.counts["batches"] += 1

    def _beside(self, data: bytes, name: str, headers: TenantHeaders, other: str | None) -> str:
        at_ns = int(name.partition("-")[0]) if name[:20].isdigit() else 0
        content = hashlib.sha256(data).digest()
        for number in range(_NAMES):
            id_digest = digest("part", content, *_words(headers), *([number] if number else []))
            try:
                tried = other if other and not number else file_name(at_ns, uuid4_shaped(id_digest))
                return self._claimed(data, tried, headers)
            except RefusedNameError:
                continue
        raise TargetError(f"{self._writer.paths.spool} has other content under all names of {name}")

    def _claimed(self, data: bytes, name: str, headers: TenantHeaders) -> str:
        _checked(name)
        is_there = (self._writer.paths.spool / name).exists()
        if not self._owners.claim(name, headers, is_there=is_there):
            raise RefusedNameError(f"{name} belongs to another tenant")
        written = self._writer.write(data, name)
        self._is_found |= not written.is_new
        return written.name

    def _sync(self) -> None:
        """Sync the names of batches that already existed: their writer may have died before it
        synced them.
        """
        try:
            sync_directory(self._writer.paths.spool)
        except OSError as error:
            raise TargetError(
                f"{self._writer.paths.spool} cannot be synced: {error.strerror}"
            ) from None

    def _count(self, spans: int, marks: int = 0, snapshots: int = 0) -> None:
        self.counts.update({"spans": spans, "marks": marks, "snapshots": snapshots})

    def _attempt(self, frame: Frame, what: Callable[[Frame], Any]) -> bool:
        """Call `what`, and return whether it succeeded; if it did not, save the frame next to the
        journal.

        Raises TargetError if the spool cannot be written.
        """
        try:
            what(frame)
        except OverCapError as error:
            self._set_aside(frame, error)
            return False
        except TargetError:
            raise
        except Exception as error:
            self._set_aside(frame, error)
            return False
        return True

    def _set_aside(self, frame: Frame, error: Exception) -> None:
        """Save a request that cannot be stored, because its journal segment will be removed."""
        path = self._directory / f"{REFUSED_PREFIX}{frame.sha256[:32]}.bin"
        write_synced(path, frame.body)
        self.counts["set_aside"] += 1
        is_expected = isinstance(error, InputError | TargetError)
        reason = str(error) if is_expected else f"{type(error).__name__}: {error}"
        logger.warning("a request cannot be stored (%s): kept as %s", reason, path)


def _words(headers: TenantHeaders) -> list[str]:
    return [word for pair in headers for word in pair]


def _id_of(kind: str, frames: Sequence[Frame]) -> str:
    """Return the id of a batch made from `frames`, derived from their positions and contents."""
    id_digest = digest(kind, *frames[0].start, *(frame.sha256 for frame in frames))
    return uuid4_shaped(id_digest)


def _checked(name: str) -> str:
    """Return `name`. Raises RefusedNameError if no batch may be stored under it."""
    if not encodable(checked_name(name)):
        raise RefusedNameError(f"the file name {name!a} is not UTF-8")
    return name
