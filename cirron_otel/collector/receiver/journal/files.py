"""The intake journal on disk: what its segment files hold, and which of them are there.

A segment is `intake-<its number, 16 hexadecimal digits>.log`, mode 0600, only ever appended to: a
header and then frames. Integers are unsigned and little-endian.

| header | bytes | |
|---|---|---|
| magic | 8 | `CIRRONIJ` |
| version | 4 | 1 |
| checksum | 4 | crc32 of the 12 bytes before and of the segment's number (8 bytes) |

| frame | bytes | |
|---|---|---|
| lengths | 4, 4 | of the head, of the body |
| checksum | 4 | crc32 of head and body |
| checksum | 4 | crc32 of the 12 bytes before, begun with the lower half of the segment's number |
| head, body | | |

The head is a JSON object (`Head`). The lengths have a checksum of their own, so that a damaged body
costs one frame and not all that follow; behind damaged lengths the next whole frame is looked for,
by how its head begins. A frame that is not whole is the trace of a crash: nobody was told that it
is kept. Zeros follow the last frame while a segment is written, up to a whole block (direct_file).

All of it lies in one directory, `state/intake/` of a spool, with `lock`, `consumer.json`
(journal_place) and, beside a damaged segment, a copy of it named `<segment>.damaged`. The copies
have a limit (damaged_copies): their readable data is in the spool already.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from .... import exactjson
from ....core.atomic_files import sync_directory
from ....core.spool.state import unwritable
from ....errors import InputError, UsageError
from ..consumer import BodyEncoding, ReceivedSignal

VERSION = 1
MAX_HEAD_BYTES = 2**16
MAX_BODY_BYTES = 2**28
DAMAGED_SUFFIX = ".damaged"
GROUP_BYTES = 2 * 1024 * 1024
"""Frames that become batches together: as many as it takes to have so much."""
PARTS = "parts"
"""The directory of unfinished uploads."""
REFUSED_PREFIX = "refused-"
"""Of files that hold requests which cannot be translated."""
HEAD_START = b'{"signal":'
"""How the JSON of every head begins."""

_MAGIC = b"CIRRONIJ"
_HEADER = struct.Struct("<8sII")
_PREFIX = struct.Struct("<IIII")
_WORD = struct.Struct("<I")
HEADER_BYTES = _HEADER.size
PREFIX_BYTES = _PREFIX.size

_NAME = re.compile(r"intake-([0-9a-f]{16})\.log(\.damaged)?", re.ASCII)


class Position(NamedTuple):
    """A place between frames. Positions only grow, also from one run to the next."""

    segment: int
    """The number of a segment file."""
    offset: int
    """Bytes from its beginning."""


class Head(msgspec.Struct, frozen=True):
    """What is kept of a request beside its body."""

    signal: ReceivedSignal
    encoding: BodyEncoding
    received_ns: int
    """When it arrived, Unix ns."""
    headers: dict[str, str]
    """As in `Request.headers`."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A request as it was journalled."""

    head: Head
    body: bytes
    start: Position
    end: Position
    """What a reader that is done with this frame goes on after; `append` returned it."""
    sha256: str
    """Of the body, 64 hexadecimal digits; computed where it is read, for nobody waits there."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A segment in which something cannot be read."""

    number: int
    """The segment's; a writer that is at it should `roll(number)`."""
    path: Path
    offset: int
    """Where, bytes from the beginning of the file."""
    reason: str
    kept: Path | None
    """Where the file is kept, which goes its way in the journal; None where that failed."""


OnDamage = Callable[[Damage], None]

_decoder = msgspec.json.Decoder(Head)


def intake_directory(state: Path) -> Path:
    """Where the intake journal lies in a spool's `state/`."""
    return state / "intake"


def segment_path(directory: Path, number: int) -> Path:
    """The file of a segment."""
    return directory / f"intake-{number:016x}.log"


def segment_numbers(directory: Path) -> list[int]:
    """The segments that are there, ascending; none where the directory is not there."""
    return sorted(number for number, is_aside in _entries(directory) if not is_aside)


def highest_number(directory: Path) -> int:
    """The highest number that a segment had, set aside ones included; 0 where there is none."""
    return max((number for number, _ in _entries(directory)), default=0)


def segment_sizes(directory: Path) -> dict[int, int]:
    """The bytes of each segment that is there, by its number."""
    sizes = {}
    for number in segment_numbers(directory):
        with contextlib.suppress(OSError):
            sizes[number] = segment_path(directory, number).lstat().st_size
    return sizes


def aside_bytes(directory: Path) -> int:
    """The bytes of what was set aside and does not lie there as a segment, too."""
    total = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if DAMAGED_SUFFIX in entry.name or entry.name.startswith(REFUSED_PREFIX):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    total += status.st_size if status.st_nlink == 1 else 0
    return total


def _entries(directory: Path) -> list[tuple[int, bool]]:
    try:
        names = os.listdir(directory)  # noqa: PTH208 - names are all that is needed
    except FileNotFoundError:
        return []
    matches = filter(None, map(_NAME.fullmatch, names))
    return [(int(match[1], 16), match[2] is not None) for match in matches]


def encode_header(number: int) -> bytes:
    """The first bytes of segment `number`."""
    start = _HEADER.pack(_MAGIC, VERSION, 0)[:-4]
    return start + _WORD.pack(zlib.crc32(number.to_bytes(8, "little"), zlib.crc32(start)))


def header_problem(data: bytes, number: int) -> str | None:
    """Why `data` is not the header of segment `number`; None where it is."""
    if len(data) < HEADER_BYTES:
        return f"a header of {len(data)} bytes, expected {HEADER_BYTES}"
    magic, version, _ = _HEADER.unpack(data)
    if magic != _MAGIC:
        return "no segment of an intake journal"
    if not is_whole_header(data, number):
        return "a damaged header, or another segment's"
    if version != VERSION:
        return f"version {version}, expected {VERSION}: read it with the version that wrote it"
    return None


def is_whole_header(data: bytes, number: int) -> bool:
    """Whether `data` was written as the header of segment `number`, by whatever version."""
    own = zlib.crc32(number.to_bytes(8, "little"), zlib.crc32(data[:-4]))
    return len(data) == HEADER_BYTES and _WORD.unpack(data[-4:])[0] == own


def encode_head(head: Head) -> bytes:
    """The JSON text of a head. Raises UsageError where it is too large."""
    try:
        text = msgspec.json.encode(head)
    except UnicodeEncodeError:  # headers may hold bytes that are no text, as lone surrogates
        text = exactjson.dumps(msgspec.to_builtins(head))
    if len(text) > MAX_HEAD_BYTES:
        raise UsageError(
            f"headers of {len(text)} bytes: {MAX_HEAD_BYTES} can be kept with a request;"
            " keep fewer, or shorter ones"
        )
    return text


def decode_head(text: bytes) -> Head | None:
    """The head that `text` is; None where it is none."""
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return msgspec.convert(exactjson.loads(text), Head)
    except (msgspec.ValidationError, InputError, ValueError):
        return None


def checksum(head: bytes, body: bytes) -> int:
    """What a prefix says of a head and a body."""
    return zlib.crc32(body, zlib.crc32(head))


def encode_prefix(number: int, head: bytes, body: bytes, crc: int) -> bytes:
    """What stands before a head and a body, of which `crc` is the checksum, in segment `number`."""
    lengths = _PREFIX.pack(len(head), len(body), crc, 0)[:-4]
    return lengths + _WORD.pack(zlib.crc32(lengths, number & 0xFFFFFFFF))


class Prefix(NamedTuple):
    """What stands before a head and a body."""

    head_bytes: int
    body_bytes: int
    crc: int


def decode_prefix(data: bytes, number: int) -> Prefix | None:
    """The prefix that `data` is in segment `number`; None where it is damaged."""
    head, body, crc, own = _PREFIX.unpack(data)
    if own != zlib.crc32(data[:-4], number & 0xFFFFFFFF):
        return None
    if head > MAX_HEAD_BYTES or body > MAX_BODY_BYTES:
        return None
    return Prefix(head, body, crc)


def write_synced(path: Path, data: bytes) -> None:
    """Bring `data` under `path`: when this returns it is on disk, and never half of it.

    For one process. Raises TargetError where it cannot be written; then what was there still is.
    """
    tmp = path.with_name(path.name + ".tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(tmp, flags, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        tmp.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            tmp.unlink(missing_ok=True)
        raise unwritable(path, error) from None


def set_aside(path: Path) -> Path | None:
    """Keep a damaged file as `<name>.damaged` too; None where that cannot be done.

    It stays under its own name until `remove_before`: what could be read of it is not stored yet,
    and is read again after a crash.
    """
    kept = path.with_name(path.name + DAMAGED_SUFFIX)
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        try:
            kept.hardlink_to(path)
        except FileExistsError:
            return kept
        except OSError:  # a file system without hard links
            shutil.copyfile(path, kept)
            kept.chmod(0o600)
    except OSError:
        return None
    return kept


def remove_before(directory: Path, position: Position) -> int:
    """Remove the segments all of whose frames lie before `position`; returns how many.

    The last one is never removed: it may be the one that is written. What cannot be removed stays
    until the next time.
    """
    removed = 0
    for number in segment_numbers(directory)[:-1]:
        path = segment_path(directory, number)
        with contextlib.suppress(OSError):
            if number < position.segment or (
                number == position.segment and path.lstat().st_size <= position.offset
            ):
                path.unlink()
                removed += 1
    return removed


def trim(directory: Path, number: int) -> int:
    """Cut off what a crash left of a frame at the end of a segment that nobody writes any more.

    Returns how many bytes that were. A segment without a whole header goes altogether. Nothing
    whole is cut, nor what is damaged in another way: a reader reports it. Raises OSError.
    """
    path = segment_path(directory, number)
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        end = _end_of_frames(descriptor, number, size)
        if end == size and size > 0:
            return 0
        if end > 0:
            os.ftruncate(descriptor, end)
            os.fsync(descriptor)
        else:
            path.unlink()
        return size - end
    finally:
        os.close(descriptor)


def _end_of_frames(descriptor: int, number: int, size: int) -> int:
    """Where a frame that is not whole begins; `size` where there is none, or other damage."""
    header = os.pread(descriptor, HEADER_BYTES, 0)
    if header_problem(header, number) is not None:
        is_torn = len(header) < HEADER_BYTES or _is_zero(descriptor, 0)
        return 0 if is_torn else size
    offset = HEADER_BYTES
    while offset < size:
        data = os.pread(descriptor, PREFIX_BYTES, offset)
        if len(data) < PREFIX_BYTES:
            return offset
        prefix = decode_prefix(data, number)
        if prefix is None:
            return offset if _is_zero(descriptor, offset) else size
        end = offset + PREFIX_BYTES + prefix.head_bytes + prefix.body_bytes
        if end > size:
            return offset
        offset = end
    return size


def _is_zero(descriptor: int, offset: int) -> bool:
    """Whether all from `offset` on is zero: a file may have been lengthened before it is filled."""
    while data := os.pread(descriptor, 2**16, offset):
        if data.count(0) != len(data):
            return False
        offset += len(data)
    return True
