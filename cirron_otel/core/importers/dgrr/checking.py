"""The checks of a trace, in constant memory."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterator
from typing import Final, Protocol

from .layout import (
    HEADER_CRC_BYTES,
    RECORD,
    RECORD_CRC_BYTES,
    TraceFinding,
    TraceHeader,
    bits_of,
    identify,
    incomplete_field,
)

_CHECKED: Final = struct.Struct("<Q16s16x16s8xI4x")
"""A record's step id, its parameters before and after as bytes, and its CRC."""
_PAIR: Final = struct.Struct("<dd")
_FIELDS: Final = ("w", "b")


class TraceData(Protocol):
    """A trace whose bytes can be read more than once."""

    @property
    def head(self) -> bytes:
        """The first 64 bytes; fewer if the file is shorter."""

    @property
    def records(self) -> int:
        """The number of complete records."""

    @property
    def tail(self) -> bytes:
        """The bytes after the last complete record."""

    def chunks(self) -> Iterator[bytes]:
        """Yield the complete records from the first one, many at a time."""


def check_trace(trace: TraceData) -> Iterator[TraceFinding]:
    """Yield the findings on a trace: on its header, its records in order, its length and its CRC.

    A file that is not a trace of version 1 has one finding.
    """
    check = TraceCheck(trace)
    yield from check.check_head()
    if check.is_readable:
        for chunk in trace.chunks():
            yield from check.check_chunk(chunk)
        yield from check.finish()


class TraceCheck:
    """The checks of a trace whose chunks its caller reads."""

    def __init__(self, trace: TraceData) -> None:
        """Check nothing yet."""
        self._trace = trace
        self._header = TraceHeader.parse(trace.head)
        self._records = RecordChecker()
        self._crc = 0
        self.is_readable = False
        """Whether the header is complete, and of a trace of version 1."""

    def check_head(self) -> Iterator[TraceFinding]:
        """Yield the findings on the header."""
        head = self._trace.head
        problem = identify(head)
        missing = None if problem is not None else incomplete_field(head)
        if missing is not None:
            message = f"the file ends in the header, after {len(head)} bytes: expected 64"
            problem = TraceFinding(missing, None, message)
        if problem is not None:
            yield problem
            return
        self.is_readable = True
        yield from _check_header(head, self._header)

    def check_chunk(self, chunk: bytes) -> list[TraceFinding]:
        """Return the findings on the next records."""
        self._crc = zlib.crc32(chunk, self._crc)
        return list(self._records.check(chunk))

    def finish(self) -> Iterator[TraceFinding]:
        """Yield the findings on the length and the CRC of the file."""
        yield from _check_count(self._header, self._trace)
        crc = zlib.crc32(self._trace.tail, self._crc)
        if crc != self._header.file_crc32:
            yield _file_crc_finding(self._trace, self._header, crc)


def _check_header(head: bytes, header: TraceHeader) -> Iterator[TraceFinding]:
    crc = zlib.crc32(head[:HEADER_CRC_BYTES])
    if crc != header.header_crc32:
        yield TraceFinding(
            "header_crc32",
            None,
            f"header_crc32 is {header.header_crc32:08x}: bytes 0 to 35 have {crc:08x}",
        )


def _check_count(header: TraceHeader, trace: TraceData) -> Iterator[TraceFinding]:
    if trace.records == header.step_count and not trace.tail:
        return
    message = f"step_count is {header.step_count}, but the file has {trace.records} records"
    if trace.tail:
        message += f" and {len(trace.tail)} bytes of another"
    yield TraceFinding("step_count", min(trace.records, header.step_count), message)


class RecordChecker:
    """Checks the records of a trace in order: their CRCs, step ids, and parameters."""

    def __init__(self) -> None:
        self._records = 0
        self._expected: int | None = None
        """The next step id; None before the first record."""
        self._after = b""
        """The parameters after the last record."""

    def check(self, chunk: bytes) -> Iterator[TraceFinding]:
        """Yield the findings on the next records."""
        if not chunk:
            return
        rows = _CHECKED.iter_unpack(chunk)
        ids, before, after, crcs = (tuple(column) for column in zip(*rows, strict=True))
        if self._expected is None:
            self._expected = min(ids[0], 1)
            self._after = before[0]
        view = memoryview(chunk)
        computed = tuple([
            zlib.crc32(view[start : start + RECORD_CRC_BYTES])
            for start in range(0, len(chunk), RECORD.size)
        ])  # fmt: skip
        is_continuous = before[0] == self._after and before[1:] == after[:-1]
        expected = tuple(range(self._expected, self._expected + len(ids)))
        if ids != expected or crcs != computed or not is_continuous:
            for number, row in enumerate(zip(ids, before, after, crcs, computed, strict=True)):
                yield from self._check_one(self._records + number, *row)
        self._records += len(ids)
        self._expected = ids[-1] + 1
        self._after = after[-1]

    def _check_one(
        self, record: int, step_id: int, before: bytes, after: bytes, crc: int, computed: int
    ) -> Iterator[TraceFinding]:
        if step_id != self._expected:
            expected = "0 or 1" if record == 0 else str(self._expected)
            message = f"step_id is {step_id}: expected {expected}"
            yield TraceFinding("step_id", record, message)
        for name, number, previous in zip(
            _FIELDS, _PAIR.unpack(before), _PAIR.unpack(self._after), strict=True
        ):
            if bits_of(number) != bits_of(previous):
                message = (
                    f"{name}_before is {number!r} ({bits_of(number)}): the previous"
                    f" {name}_after is {previous!r} ({bits_of(previous)})"
                )
                yield TraceFinding(f"{name}_before", record, message)
        if crc != computed:
            message = f"record_crc32 is {crc:08x}: bytes 0 to 63 of the record have {computed:08x}"
            yield TraceFinding("record_crc32", record, message)
        self._expected, self._after = step_id + 1, after


def _file_crc_finding(trace: TraceData, header: TraceHeader, crc: int) -> TraceFinding:
    """Return a note if the CRC fits other bytes than those from 64 to the end; else an error."""
    message = f"file_crc32 is {header.file_crc32:08x}"
    for coverage, other in _other_coverages(trace).items():
        if other == header.file_crc32:
            return TraceFinding(
                "file_crc32", None, f"{message}: it covers {coverage}", is_note=True
            )
    return TraceFinding("file_crc32", None, f"{message}: bytes 64 to the end have {crc:08x}")


def _other_coverages(trace: TraceData) -> dict[str, int]:
    """Return the CRCs of other bytes that a writer might cover, by their description."""
    head, zeros = trace.head, bytes(4)
    starts = {
        "the complete file, with file_crc32 as zero": head[:32] + zeros + head[36:],
        "the complete file, with file_crc32 and header_crc32 as zero": (
            head[:32] + zeros + zeros + head[40:]
        ),
        "bytes 0 to 31, and 64 to the end": head[:32],
        "bytes 0 to 35 with file_crc32 as zero, and 64 to the end": head[:32] + zeros,
    }
    crcs = {name: zlib.crc32(start) for name, start in starts.items()}
    fields = "bytes 0 to 63 of each record"
    crcs[fields] = 0
    for chunk in itertools.chain(trace.chunks(), (trace.tail,)):
        for name in starts:
            crcs[name] = zlib.crc32(chunk, crcs[name])
        view = memoryview(chunk)
        for start in range(0, len(chunk), RECORD.size):
            crcs[fields] = zlib.crc32(view[start : start + RECORD_CRC_BYTES], crcs[fields])
    return crcs
