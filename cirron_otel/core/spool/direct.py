"""Writing without the page cache, for data that is synced at once and rarely read again.

Writing through the page cache costs a copy and, if memory is not mapped yet (in a virtual machine),
a page fault per page. It evicts data that other processes read (a training job's data, for
example), and the sync has to write the data anyway. Direct I/O (open(2), "O_DIRECT") writes
complete blocks from aligned memory. If the file system rejects it, at any point, the page cache is
used instead.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os

BLOCK = 4096
"""The alignment of direct I/O, bytes: no common device has larger logical blocks."""
BUFFER = 1024 * 1024
DIRECT = getattr(os, "O_DIRECT", 0)
"""The flag for direct I/O; 0 if the system does not support it."""

_WORTH_IT = 1024 * 1024
"""The minimum size for direct I/O, bytes: for smaller data, it is slower than the page cache."""
_CANNOT = frozenset({errno.EINVAL, errno.EOPNOTSUPP})


def write_all(descriptor: int, data: bytes, *, is_synced: bool) -> None:
    """Write `data` into the file, which is empty. Raises OSError.

    Data that is not synced afterwards goes through the page cache, whatever its size.
    """
    view = memoryview(data)
    is_direct = is_synced and DIRECT and len(data) >= _WORTH_IT
    at = _write_blocks(descriptor, view) if is_direct else 0
    while at < len(view):
        at += os.pwrite(descriptor, view[at:], at)


def _write_blocks(descriptor: int, data: memoryview) -> int:
    """Write the complete blocks of `data` without the page cache; return the bytes written."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | DIRECT)
    except OSError:
        return 0  # the file system does not support it
    at, end = 0, len(data) // BLOCK * BLOCK
    try:
        # Anonymous memory is aligned to a page. It is not closed explicitly: after an error, the
        # traceback still refers to it, so closing it would raise and hide the original error.
        buffer = mmap.mmap(-1, BUFFER)
        while at < end:
            size = min(end - at, BUFFER)
            buffer[:size] = data[at : at + size]
            at += write_whole(descriptor, memoryview(buffer)[:size], at)
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return at


def write_whole(descriptor: int, view: memoryview, at: int) -> int:
    """Write the aligned `view` completely at the offset `at`; return its size. Raises OSError."""
    written = 0
    while written < len(view):
        written += _write_some(descriptor, view[written:], at + written)
    return written


def _write_some(descriptor: int, view: memoryview, at: int) -> int:
    try:
        return os.pwrite(descriptor, view, at)
    except OSError as error:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        if error.errno not in _CANNOT or not flags & DIRECT:
            raise
        # The device has larger blocks, or the file system rejects direct I/O only on writing.
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~DIRECT)
        return os.pwrite(descriptor, view, at)
