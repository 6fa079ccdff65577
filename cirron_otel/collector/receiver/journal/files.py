"""The format of the intake journal's segment files, and functions that list, repair and remove
them.

A segment is a file `intake-<number, 16 hexadecimal digits>.log` with mode 0600. It contains a
header and then frames, and is only ever appended to. Integers are unsigned and little-endian.

| header | bytes | |
|---|---|---|
| magic | 8 | `CIRRONIJ` |
| version | 4 | 1 |
| checksum | 4 | crc32 of the preceding 12 bytes and of the segment's number (8 bytes) |

| frame | bytes | |
|---|---|---|
| lengths | 4, 4 | of the head, of the body |
| checksum | 4 | crc32 of head and body |
| checksum | 4 | crc32 of the preceding 12 bytes, seeded with the lower half of the number |
| head, body | | |

The head is a JSON object (`Head`). The lengths have a separate checksum, so that a damaged body
loses one frame and not all later ones. After damaged lengths, the reader searches for the next
complete frame by the beginning of its head. An incomplete frame was left by a crash; it was never
acknowledged. While a segment is being written, its last frame is followed by zeros up to a complete
block (segment.py).

The segments are in the directory `state/intake/` of a spool, together with `lock`, `consumer.json`
(position) and copies of damaged segments, named `<segment>.damaged`. The total size of the copies
is limited (service/service.py), because their readable data is already in the spool.
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
"""Frames are translated in groups of about this many bytes."""
PARTS = "parts"
"""The directory of unfinished uploads."""
REFUSED_PREFIX = "refused-"
"""The name prefix of files with requests that cannot be translated."""
HEAD_START = b'{"signal":'
"""The beginning of every head's JSON."""

_MAGIC = b"CIRRONIJ"
_HEADER = struct.Struct("<8sII")
_PREFIX = struct.Struct("<IIII")
_WORD = struct.Struct("<I")
HEADER_BYTES = _HEADER.size
PREFIX_BYTES = _PREFIX.size

_NAME = re.compile(r"intake-([0-9a-f]{16})\.log(\.damaged)?", re.ASCII)


class Position(NamedTuple):
    """A position between two frames. Positions only ever increase, even across restarts."""

    segment: int
    """The number of a segment file."""
    offset: int
    """The offset from the beginning of the segment, bytes."""


class Head(msgspec.Struct, frozen=True):
    """The properties of a request that are stored with its body."""

    signal: ReceivedSignal
    encoding: BodyEncoding
    received_ns: int
    """Time of arrival, Unix ns."""
    headers: dict[str, str]
    """The retained headers, as in `ReceivedRequest.headers`."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A request in the journal."""

    head: Head
    body: bytes
    start: Position
    end: Position
    """The position after this frame, which `append` returned."""
    sha256: str
    """The SHA-256 hash of the body, 64 hexadecimal digits. It is computed when the frame is read
    and not when it is written, because a client waits for the write."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A segment that is partly unreadable."""

    number: int
    """The number of the segment; if it is still being written, the writer should `roll(number)`."""
    path: Path
    offset: int
    """The position of the damage, bytes from the beginning of the file."""
    reason: str
    backup: Path | None
    """The copy of the file, which survives the removal of the segment; None if that failed."""


OnDamage = Callable[[Damage], None]

_decoder = msgspec.json.Decoder(Head)


def intake_directory(state: Path) -> Path:
    """Return the directory of the intake journal in a spool's `state/`."""
    return state / "intake"


def segment_path(directory: Path, number: int) -> Path:
    """Return the path of a segment."""
    return directory / f"intake-{number:016x}.log"


def segment_numbers(directory: Path) -> list[int]:
    """Return the numbers of the existing segments, ascending; none if there is no directory."""
    return sorted(number for number, is_aside in _entries(directory) if not is_aside)


def highest_number(directory: Path) -> int:
    """Return the highest number of a segment or of a damaged copy; 0 if there is none."""
    return max((number for number, _ in _entries(directory)), default=0)


def segment_sizes(directory: Path) -> dict[int, int]:
    """Return the size of each existing segment, bytes, by its number."""
    sizes = {}
    for number in segment_numbers(directory):
        with contextlib.suppress(OSError):
            sizes[number] = segment_path(directory, number).lstat().st_size
    return sizes


def aside_bytes(directory: Path) -> int:
    """Return the size of all files set aside, bytes, except hard links to existing segments."""
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
    """Return the header of segment `number`."""
    start = _HEADER.pack(_MAGIC, VERSION, 0)[:-4]
    return start + _WORD.pack(zlib.crc32(number.to_bytes(8, "little"), zlib.crc32(start)))


def header_problem(data: bytes, number: int) -> str | None:
    """Return why `data` is not the header of segment `number`; None if it is."""
    if len(data) < HEADER_BYTES:
        return f"a header of {len(data)} bytes, expected {HEADER_BYTES}"
    magic, version, _ = _HEADER.unpack(data)
    if magic != _MAGIC:
        return "not a segment of an intake journal"
    if not is_whole_header(data, number):
        return "a damaged header, or the header of another segment"
    if version != VERSION:
        return f"version {version}, expected {VERSION}: read it with the version that wrote it"
    return None


def is_whole_header(data: bytes, number: int) -> bool:
    """Return whether `data` is the intact header of segment `number`, of any version."""
    expected = zlib.crc32(number.to_bytes(8, "little"), zlib.crc32(data[:-4]))
    return len(data) == HEADER_BYTES and _WORD.unpack(data[-4:])[0] == expected


def encode_head(head: Head) -> bytes:
    """Return the JSON text of a head. Raises UsageError if it is too large."""
    try:
        text = msgspec.json.encode(head)
    except UnicodeEncodeError:  # headers may contain bytes that are not UTF-8, as lone surrogates
        text = exactjson.dumps(msgspec.to_builtins(head))
    if len(text) > MAX_HEAD_BYTES:
        raise UsageError(
            f"headers of {len(text)} bytes: {MAX_HEAD_BYTES} can be stored with a request;"
            " store fewer or shorter headers"
        )
    return text


def decode_head(text: bytes) -> Head | None:
    """Return the head encoded in `text`; None if `text` is not a valid head."""
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return msgspec.convert(exactjson.loads(text), Head)
    except (msgspec.ValidationError, InputError, ValueError):
        return None


def checksum(head: bytes, body: bytes) -> int:
    """Return the checksum of a head and a body."""
    return zlib.crc32(body, zlib.crc32(head))


def encode_prefix(number: int, head: bytes, body: bytes, crc: int) -> bytes:
    """Return the prefix of a frame in segment `number`; `crc` is the checksum of head and body."""
    lengths = _PREFIX.pack(len(head), len(body), crc, 0)[:-4]
    return lengths + _WORD.pack(zlib.crc32(lengths, number & 0xFFFFFFFF))


class Prefix(NamedTuple):
    """The first bytes of a frame, which precede its head and body."""

    head_bytes: int
    body_bytes: int
    crc: int


def decode_prefix(data: bytes, number: int) -> Prefix | None:
    """Return the prefix in `data`, from segment `number`; None if it is damaged."""
    head, body, crc, stored_crc = _PREFIX.unpack(data)
    if stored_crc != zlib.crc32(data[:-4], number & 0xFFFFFFFF):
        return None
    if head > MAX_HEAD_BYTES or body > MAX_BODY_BYTES:
        return None
    return Prefix(head, body, crc)


def write_synced(path: Path, data: bytes) -> None:
    """Replace the content of `path` atomically; it is on disk when this returns.

    Only one process may write a path. Raises TargetError if it cannot be written; the previous file
    is then unchanged.
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
    """Copy a damaged file to `<name>.damaged`; return None if that fails.

    The file also keeps its name until `remove_before`: its readable frames are not in the spool
    yet, and are read again after a crash.
    """
    copy = path.with_name(path.name + DAMAGED_SUFFIX)
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        try:
            copy.hardlink_to(path)
        except FileExistsError:
            return copy
        except OSError:  # a file system without hard links
            shutil.copyfile(path, copy)
            copy.chmod(0o600)
    except OSError:
        return None
    return copy


def remove_before(directory: Path, position: Position) -> int:
    """Remove the segments that end at or before `position`; return their number.

    The last segment is never removed, because it may be being written. If a segment cannot be
    removed, the next call tries again.
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
    """Cut off the incomplete frame that a crash left at the end of a segment; return its size.

    No process may be writing the segment. A segment without a complete header is removed. Complete
    frames are retained, and other damage is left for a reader to report. Raises OSError.
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
    """Return the offset of an incomplete last frame; `size` if the last frame is complete, or if
    there is other damage.
    """
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
    """Return whether all bytes from `offset` on are zero: a file may grow before it is filled."""
    while data := os.pread(descriptor, 2**16, offset):
        if data.count(0) != len(data):
            return False
        offset += len(data)
    return True
